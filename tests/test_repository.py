import os
from pathlib import Path

import pytest

from repogen.repository import State, read_repository, strays


@pytest.fixture
def root(project, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    return project / "served/models"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda root: (root / "gone").symlink_to("nowhere"), "drops every model"),
        (lambda root: (root / ".git").mkdir(), "hidden folder"),
        (lambda root: (root / "lost+found").mkdir(), "serve a subfolder"),
        (lambda root: os.mkfifo(root / "pipe"), "neither a folder nor"),
        (lambda root: (root / "add/2.tmp").mkdir(), "reads it as version 2"),
        (lambda root: (root / "add/2_old").mkdir(), "reads it as version 2"),
        (lambda root: (root / "add/01").mkdir(), "ignores it"),
        (lambda root: (root / "add/99999999999999999999").mkdir(), "ends itself"),
    ],
    ids=["dangling", "hidden", "lost+found", "fifo", "2.tmp", "2_old", "01", "20 digits"],
)
def test_what_triton_stumbles_over_is_told_first_and_not_deleted(project, root, invoke, make, told):
    make(root)
    (stray,) = strays(root)
    assert told in stray.what
    lines = invoke("plan", "-f", project / "repogen.yaml").stdout.splitlines()
    assert told in lines[0]
    assert stray.path in lines[0]
    assert os.path.lexists(root / stray.path)


def test_ordinary_entries_are_none(root):
    (root / "README").write_text("")
    (root / "add/0").mkdir()
    (root / "add/labels").mkdir()
    assert strays(root) == ()
    assert list(read_repository(root)) == ["add"]


def test_hidden_folders_are_no_models(root):
    (root / ".staging").mkdir()
    assert list(read_repository(root)) == ["add"]


@pytest.mark.parametrize("layout", ["one line", "as Triton prints it", "with colons"])
def test_a_fingerprint_is_read_however_it_is_laid_out(root, layout):
    config = root / "add/config.pbtxt"
    text = config.read_text()
    before = {
        "one line": text.replace("\n  value {", " value {").replace("  key:", "key:"),
        "as Triton prints it": text.replace("value { string_value", "value {\n    string_value"),
        "with colons": text.replace("value {", "value: {"),
    }[layout]
    config.write_text(before)
    found = read_repository(root)["add"]
    assert found.fingerprint in text
    assert found.state in (State.DRIFTED, State.WHOLE)


def test_a_copied_fingerprint_makes_no_model_ours(root):
    config = root / "add/config.pbtxt"
    (root / "other/1").mkdir(parents=True)
    (root / "other/1/model.onnx").write_bytes(b"x")
    (root / "other/config.pbtxt").write_text(config.read_text())
    assert read_repository(root)["other"].state is State.DRIFTED


def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_one(root, monkeypatch, invoke, project):
    scandir = os.scandir

    def refused(folder):
        if Path(folder).name == "1":
            raise PermissionError(13, "Permission denied", "some/folder")
        return scandir(folder)

    monkeypatch.setattr("repogen.repository.os.scandir", refused)
    assert "some/folder" in invoke("plan", "-f", project / "repogen.yaml", code=2).stderr
