"""Sources that are a pattern: which file is served, as which version, and what stays."""

import json
import os
import re
import threading
import time

import pytest

from repogen import newest
from repogen.errors import ManifestError
from repogen.manifest import load_manifest
from repogen.newest import with_newest
from tests.s3server import BUCKET, needs_s3
from tests.serverkit import onnx_file
from tests.test_watching import other_model

LONG_AGO = 1_700_000_000


def chosen(folder, pattern, *names, more=""):
    """Return the source and the version that a manifest with `pattern` gets where the files `names` lie."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (LONG_AGO, LONG_AGO))
    path = folder / "repogen.yaml"
    path.write_text(f'triton: "26.08"\nmodels:\n  rec:\n    source: "{pattern}"\n{more}')
    found = with_newest(load_manifest(path))
    return found.models["rec"].source, found.models["rec"].version, found.chosen["rec"].why


@pytest.mark.parametrize(
    ("pattern", "names", "source", "version"),
    [
        pytest.param("rec_*.onnx", ["rec_v9.onnx", "rec_v10.onnx"], "rec_v10.onnx", 10, id="numbers by value"),
        pytest.param("models", ["models/a1.onnx", "models/a2.onnx"], "models/a2.onnx", 2, id="a folder"),
        pytest.param("models/", ["models/a1.onnx", "models/a2.txt"], "models/a1.onnx", 1, id="a folder's models"),
        pytest.param("x/*/m.onnx", ["x/2026-12-01/m.onnx", "x/2026-2-9/m.onnx"], "x/2026-12-01/m.onnx", 20261201, id="dates"),
        pytest.param("v*/m.onnx", ["v1.9.2/m.onnx", "v1.10.0/m.onnx"], "v1.10.0/m.onnx", 11000, id="parts of a version"),
        pytest.param("v*.onnx", ["v2.9.onnx", "v2.10.onnx"], "v2.10.onnx", 210, id="two numbers"),
        pytest.param("resnet50_v*.onnx", ["resnet50_v2.onnx"], "resnet50_v2.onnx", 2, id="only what the star stands for"),
        pytest.param("x/*/m.onnx", ["x/7/m.onnx", "x/latest/m.onnx"], "x/7/m.onnx", 7, id="no number, no version"),
        pytest.param("*.onnx", ["r1.onnx", ".r2.onnx.tmp", ".r3.onnx"], "r1.onnx", 1, id="hidden files"),
        pytest.param("x/*/m.onnx", ["x/1/m.onnx", "x/2/deep/m.onnx"], "x/1/m.onnx", 1, id="a star is within a folder"),
        pytest.param("a[1]/*.onnx", ["a[1]/r3.onnx", "a1/r4.onnx"], "a[1]/r3.onnx", 3, id="brackets are letters"),
        pytest.param("*/r*.onnx", ["2/r1.onnx", "1/r9.onnx"], "2/r1.onnx", 201, id="two stars"),
    ],
)  # fmt: skip
def test_the_newest_is_told_by_its_name(tmp_path, pattern, names, source, version):
    assert chosen(tmp_path, pattern, *names)[:2] == (source, version)


def test_the_times_of_files_do_not_count(tmp_path):
    assert chosen(tmp_path, "r*.onnx", "r1.onnx", "r2.onnx")[1] == 2
    os.utime(tmp_path / "r1.onnx")
    assert chosen(tmp_path, "r*.onnx")[1] == 2


def test_why_it_was_chosen_is_told(tmp_path):
    why = chosen(tmp_path, "r*.onnx", "r1.onnx", "r2.onnx", "r.onnx")[2]
    assert why == "r2.onnx as version 2: the newest of 2 by name in r*.onnx, 1 without a number left out"


@pytest.mark.parametrize(
    ("pattern", "names", "more", "message"),
    [
        ("x/*.onnx", [], "", r":4 models.rec.source: nothing matches x/\*.onnx.*there is no folder x"),
        ("x/*/m.onnx", ["x/m.onnx"], "", r"there is no folder x/\*"),
        ("x/*.onnx", ["x/r1.txt"], "", r"nothing matches .*there is r1.txt"),
        ("x", ["x/r1.txt"], "", r"x is a directory, and no file in it is \*.onnx.*there is r1.txt"),
        (
            "*.onnx",
            ["best.onnx"],
            "",
            r":4 models.rec.source: .*best.onnx has no number to be its version.*rec_v2.onnx",
        ),
        ("*.onnx", ["r1.onnx", "r01.onnx"], "", r"r1.onnx is the newest by its name.*version 1, but r01.onnx is 1"),
        ("*.onnx", ["r1.9.2.onnx", "r1.10.onnx"], "", r"r1.10.onnx .*would be version 110, but r1.9.2.onnx is 10902"),
        ("*.onnx", ["r0.onnx"], "", r"r0.onnx would be version 0.*from 1 on"),
        ("*.onnx", [f"r{10**18}.onnx"], "", r"at most 18 digits"),
        ("**/m.onnx", ["x/1/m.onnx"], "", r"\*\* is not known.*one \* for each folder"),
        ("s3://*/m.onnx", [], "", r"a pattern begins below a bucket.*s3://bucket"),
        ("r*.onnx", ["r1.onnx"], "    version: 3\n", r":5 models.rec.version: the name of the newest file says it"),
    ],
)
def test_what_cannot_be_chosen_is_told_with_its_line(tmp_path, pattern, names, more, message):
    with pytest.raises(ManifestError) as found:
        chosen(tmp_path, pattern, *names, more=more)
    assert re.search(message, f"{found.value} {found.value.hint}")


def test_the_environment_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path / "secret"))
    assert chosen(tmp_path, "${WHERE}/r*.onnx", "secret/r4.onnx")[:2] == ("${WHERE}/r4.onnx", 4)


@pytest.fixture
def writing():
    """Let a file grow until the test is over."""
    over, threads = threading.Event(), []

    def grow(path):
        def write():
            with path.open("ab", buffering=0) as file:
                while not over.wait(0.02):
                    file.write(b"x")

        path.write_bytes(b"x")
        threads.append(threading.Thread(target=write))
        threads[-1].start()

    yield grow
    over.set()
    for thread in threads:
        thread.join()


def test_what_is_still_being_written_is_not_chosen(tmp_path, writing):
    chosen(tmp_path, "r*.onnx", "r1.onnx")
    writing(tmp_path / "r2.onnx")
    source, version, why = chosen(tmp_path, "r*.onnx")
    assert (source, version) == ("r1.onnx", 1)
    assert why.endswith("r2.onnx is still being written")
    (tmp_path / "r1.onnx").unlink()
    with pytest.raises(ManifestError, match=r":4 models.rec.source: r2.onnx is still being written"):
        chosen(tmp_path, "r*.onnx")


def test_an_empty_file_is_still_being_written(tmp_path):
    chosen(tmp_path, "r*.onnx", "r1.onnx")
    (tmp_path / "r2.onnx").touch()
    os.utime(tmp_path / "r2.onnx", (LONG_AGO, LONG_AGO))
    assert chosen(tmp_path, "r*.onnx")[1] == 1


def test_it_waits_once_for_all_models_and_not_for_old_files(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(newest, "time", type("Clock", (), {"time": time.time, "sleep": waited.append}))
    chosen(tmp_path, "r*.onnx", "r1.onnx")
    assert waited == []
    (tmp_path / "r2.onnx").write_bytes(b"x")
    chosen(tmp_path, "r*.onnx", more='  other:\n    source: "*.onnx"\n')
    assert len(waited) == 1


# --- in a repository


@pytest.fixture
def growing(project):
    """A project whose model is the newest in a folder."""
    (project / "exports").mkdir()
    (project / "add.onnx").rename(project / "exports/add_v1.onnx")
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add.onnx", "source: exports"))
    return project


def versions(project):
    return sorted(path.name for path in (project / "served/models/add").iterdir() if path.is_dir())


def changes(invoke, project, *arguments):
    (row,) = json.loads(invoke("plan", "--json", "-f", project / "repogen.yaml", *arguments).stdout)["changes"]
    return row


def test_a_new_file_is_a_new_version_beside_the_old(growing, invoke):
    manifest = growing / "repogen.yaml"
    invoke("sync", "-f", manifest)
    other_model(growing / "exports/add_v2.onnx", "Mul")
    row = changes(invoke, growing)
    assert (row["action"], row["source"], row["version"]) == ("rewrite", "exports/add_v2.onnx", 2)
    assert "2/model.onnx added" in row["reason"]
    assert "the newest of 2 by name in exports/*.onnx" in row["reason"]
    invoke("sync", "-f", manifest)
    served = growing / "served/models/add"
    assert (served / "1/model.onnx").read_bytes() == (growing / "exports/add_v1.onnx").read_bytes()
    assert (served / "2/model.onnx").read_bytes() == (growing / "exports/add_v2.onnx").read_bytes()
    assert changes(invoke, growing)["reason"] == "nothing changed"
    assert "nothing to mend" in invoke("check", served.parent).stdout
    other_model(growing / "exports/add_v10.onnx", "Sub")
    invoke("sync", "-f", manifest)
    assert versions(growing) == ["10", "2"], "keep_versions is 2"


def test_history_and_rollback_know_the_version_that_was(growing, invoke):
    manifest = growing / "repogen.yaml"
    invoke("sync", "-f", manifest)
    before = (growing / "served/models/add/config.pbtxt").read_bytes()
    other_model(growing / "exports/add_v2.onnx", "Mul")
    invoke("sync", "-f", manifest)
    assert "rewrite add" in invoke("history", "-f", manifest).stdout
    invoke("rollback", "-f", manifest)
    assert versions(growing) == ["1"]
    assert (growing / "served/models/add/config.pbtxt").read_bytes() == before
    assert changes(invoke, growing)["version"] == 2, "the pattern still asks for the newest"


def test_a_version_that_was_withdrawn_goes(growing, invoke):
    manifest = growing / "repogen.yaml"
    other_model(growing / "exports/add_v2.onnx", "Mul")
    invoke("sync", "-f", manifest)
    (growing / "exports/add_v2.onnx").unlink()
    assert changes(invoke, growing)["version"] == 1
    invoke("sync", "-f", manifest)
    assert versions(growing) == ["1"]


def test_a_version_that_is_written_once_more_does_not_bring_back_an_older_one(growing, invoke, writing):
    manifest = growing / "repogen.yaml"
    other_model(growing / "exports/add_v2.onnx", "Mul")
    invoke("sync", "-f", manifest)
    writing(growing / "exports/add_v2.onnx")
    row = changes(invoke, growing)
    assert (row["action"], row["reason"]) == ("keep", "exports/add_v2.onnx is still being written")
    assert "nothing to do" in invoke("sync", "-f", manifest).stdout


@needs_s3
def test_a_bucket_has_a_newest_too(growing, invoke, s3):
    client = s3.client()
    for name in ("add_v1", "add_v2"):
        onnx_file(
            growing / "m.onnx",
            [("Add", ["x", "x"], ["y"], {})],
            [("x", "FLOAT", ["N", name])],
            [("y", "FLOAT", ["N", name])],
        )
        client.pipe_file(f"{BUCKET}/in/{name}.onnx", (growing / "m.onnx").read_bytes())
    client.pipe_file(f"{BUCKET}/in/add_v3.onnx", b"")
    client.pipe_file(f"{BUCKET}/in/deeper/add_v4.onnx", b"x")
    manifest = growing / "repogen.yaml"
    text = manifest.read_text()
    for source in (f"s3://{BUCKET}/in/", f"s3://{BUCKET}/in/add_*.onnx", f"s3://{BUCKET}/*/add*.onnx"):
        manifest.write_text(text.replace("source: exports", f"source: {source}"))
        row = changes(invoke, growing)
        assert (row["source"], row["version"]) == (f"s3://{BUCKET}/in/add_v2.onnx", 2)
        assert "add_v3.onnx is still being written" in row["notes"][0]
    invoke("sync", "-f", manifest)
    assert (growing / "served/models/add/2/model.onnx").read_bytes() == (growing / "m.onnx").read_bytes()
    manifest.write_text(text.replace("source: exports", f"source: s3://{BUCKET}/none/*.onnx"))
    assert "nothing matches" in invoke("plan", "-f", manifest, code=2).stderr


@needs_s3
def test_a_repository_in_a_bucket_gets_the_new_version_beside_the_old(remote, invoke, s3):
    (remote / "exports").mkdir()
    (remote / "add.onnx").rename(remote / "exports/add_v1.onnx")
    manifest = remote / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add.onnx", "source: exports/\n    versions: {latest: 2}"))
    invoke("sync", "-f", manifest)
    other_model(remote / "exports/add_v2.onnx", "Mul")
    invoke("sync", "-f", manifest)
    there = {path.split("/")[4] for path in s3.client().find(f"{BUCKET}/served/models")}
    assert there == {"1", "2", "config.pbtxt"}
    assert changes(invoke, remote)["action"] == "keep"
    invoke("rollback", "-f", manifest)
    assert {path.split("/")[4] for path in s3.client().find(f"{BUCKET}/served/models")} == {"1", "config.pbtxt"}
    assert changes(invoke, remote)["version"] == 2
