import errno
import os
import stat

import pytest

from repogen import exchange as swapping
from repogen import publish as publishing
from repogen.desired import desired_models
from repogen.errors import RepogenError
from repogen.plan import make_plan
from repogen.publish import publish, state_folder
from repogen.repository import read_repository
from tests.conftest import tree


def planned(project, **options):
    root = project / "served" / "models"
    return make_plan(desired_models(project / "repogen.yaml"), read_repository(root), root, **options)


def previous(project):
    """What `kept` holds of the one model, in its only generation."""
    (folder,) = (state_folder(project / "served/models") / "kept/add").iterdir()
    return tree(folder)


def edit(project, before, after):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace(before, after))


def test_the_folder_is_complete_and_readable_by_another_user(project):
    old = os.umask(0o077)
    try:
        publish(planned(project))
    finally:
        os.umask(old)
    folder = project / "served/models/add"
    assert sorted(tree(folder)) == ["1/model.onnx", "config.pbtxt"]
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644), path
    assert (folder / "1/model.onnx").read_bytes() == (project / "add.onnx").read_bytes()


def test_nothing_but_models_ever_stands_in_the_root(project, monkeypatch):
    seen = set()
    copy = publishing.copy_synced

    def watched(source, target):
        seen.update(os.listdir(project / "served/models"))
        return copy(source, target)

    monkeypatch.setattr(publishing, "copy_synced", watched)
    publish(planned(project))
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    publish(planned(project))
    assert seen <= {"add"}
    assert os.listdir(project / "served/models") == ["add"]


def test_the_displaced_folder_is_the_previous_generation(project):
    publish(planned(project))
    first = tree(project / "served/models/add")
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    publish(planned(project))
    assert tree(project / "served/models/add") != first
    assert previous(project) == first


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL])
def test_a_system_without_exchange_still_publishes(project, monkeypatch, code):
    publish(planned(project))
    first = tree(project / "served/models/add")

    class NoExchange:
        def __init__(self, *_, **__):
            pass

        def renameat2(self, *_):
            swapping.ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(swapping.ctypes, "CDLL", NoExchange)
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    publish(planned(project))
    assert tree(project / "served/models/add") != first
    assert previous(project) == first


@pytest.mark.parametrize("step", ["copy_synced", "write_synced", "sync_folder", "swap"])
def test_a_failure_at_any_step_leaves_the_old_model_whole(project, monkeypatch, step):
    publish(planned(project))
    first = tree(project / "served/models")

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/file")

    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    plan = planned(project)
    with monkeypatch.context() as patched:
        patched.setattr(publishing, step, fails)
        with pytest.raises(RepogenError, match="No space left"):
            publish(plan)
    assert tree(project / "served/models") == first
    assert not (state_folder(project / "served/models") / "staging").exists()
    publish(planned(project))
    assert tree(project / "served/models") != first


def test_a_folder_that_cannot_be_written_is_named(project):
    (project / "served").write_text("in the way")
    with pytest.raises(RepogenError, match="served"):
        publish(planned(project))
