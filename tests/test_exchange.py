import ctypes
import errno

import pytest

from repogen import exchange as swapping
from repogen import server
from repogen.errors import RepogenError
from repogen.exchange import can_exchange, exchange, is_mount_point
from repogen.publish import publish
from repogen.staging import staging, swap
from tests.conftest import tree
from tests.serverkit import needs_server
from tests.test_object_layout import ECHO
from tests.test_publish import edit, planned, state_folder


@pytest.fixture
def two(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    return tmp_path / "one", tmp_path / "other"


def answering(monkeypatch, code):
    """Let the kernel answer every exchange with this error."""

    class Library:
        def __init__(self, *_, **__):
            pass

        def renameat2(self, *_):
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(swapping.ctypes, "CDLL", Library)


def test_two_folders_change_places(two):
    assert exchange(*two)
    assert [(folder / "content").read_text() for folder in two] == ["other", "one"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_without_exchange_two_renames_do(two, monkeypatch, tmp_path, code):
    answering(monkeypatch, code)
    assert not exchange(*two)
    swap(*two, tmp_path / "aside" / "1")
    assert (two[1] / "content").read_text() == "one"
    assert (tmp_path / "aside/1/content").read_text() == "other"


def test_a_second_rename_that_fails_is_undone(two, monkeypatch, tmp_path):
    answering(monkeypatch, errno.ENOSYS)
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "none", two[1], tmp_path / "aside")
    assert (two[1] / "content").read_text() == "other"


def test_another_error_is_one(two, monkeypatch):
    answering(monkeypatch, errno.EXDEV)
    with pytest.raises(OSError, match="cross-device"):
        exchange(*two)


def test_a_layer_of_an_image_is_told_with_the_way_out(project, monkeypatch):
    publish(planned(project))
    before = tree(project / "served/models")
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    answering(monkeypatch, errno.EXDEV)
    with pytest.raises(RepogenError, match="layer of an image"):
        publish(planned(project))
    assert tree(project / "served/models") == before
    assert not staging(state_folder(project / "served/models")).exists()


def test_mount_points_are_seen():
    assert is_mount_point("/proc")
    assert not is_mount_point("/proc/self/fd")


def test_a_repository_that_is_a_mount_point_is_refused_with_the_way_out(project, monkeypatch):
    publish(planned(project))
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    monkeypatch.setattr("repogen.publish.is_mount_point", lambda _: True)
    with pytest.raises(RepogenError, match="serve the subfolder models"):
        publish(planned(project))


def test_a_read_only_repository_is_refused_before_anything_is_built(project, invoke, monkeypatch):
    import os

    publish(planned(project))
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "served" not in str(path) and real(path, mode))
    assert "mounted read-only" in invoke("sync", "-f", project / "repogen.yaml", code=2).stderr


def test_whether_a_place_can_exchange_is_found_by_trying(tmp_path, monkeypatch):
    assert can_exchange(tmp_path / "scratch")
    answering(monkeypatch, errno.EINVAL)
    assert not can_exchange(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_a_sync_that_leaves_gaps_says_so(project, invoke, monkeypatch):
    answering(monkeypatch, errno.EINVAL)
    assert "absent" not in invoke("sync", "-f", project / "repogen.yaml").stderr  # nothing is replaced yet
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    assert "warning: this file system cannot exchange" in invoke("sync", "-f", project / "repogen.yaml").stderr


class TestUnderAServerThatPolls:
    pytestmark = needs_server

    def test_gaps_are_refused_unless_asked_for(self, project, invoke, monkeypatch):
        for text in ("    source: add.onnx\n", "    backend: python\n    source: model.py\n"), ("add:", "echo:"):
            edit(project, *text)
        (project / "model.py").write_text(ECHO)
        tensors = "    inputs: {x: {dtype: FP32, dims: [2]}}\n    outputs: {y: {dtype: FP32, dims: [2]}}\n"
        edit(project, "    max_batch_size: 4\n", f"    max_batch_size: 4\n{tensors}")
        invoke("sync", "-f", project / "repogen.yaml")
        config = project / "served/models/echo/config.pbtxt"
        first = config.read_text()
        edit(project, "max_batch_size: 4", "max_batch_size: 2")
        answering(monkeypatch, errno.EINVAL)
        with server.start(project / "served/models", control="poll") as triton:
            arguments = ("sync", "--url", triton.grpc, "-f", project / "repogen.yaml")
            assert "polls" in invoke(*arguments, code=1).stderr
            assert config.read_text() == first
            invoke(*arguments, "--yes")
        assert config.read_text() != first
