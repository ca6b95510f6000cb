"""Put a planned model into a repository: staged outside the root, forced to the disk, published by one rename.

Triton drops healthy models when a listing of the root fails, so nothing but whole model folders ever
appears there (triton core, ModelRepositoryManager::Poll).
"""

import ctypes
import errno
import os
import shutil
from pathlib import Path

from repogen.errors import RepogenError
from repogen.files import copy_synced, sync_folder, write_synced
from repogen.model import ServedModel
from repogen.plan import Change, Plan

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def publish(plan: Plan) -> None:
    """Write every model that the plan creates or rewrites; a failure leaves each model old or new, never mixed."""
    if not plan.writes:
        return
    root = plan.repository
    state = state_folder(root)
    staging = state / "staging"
    _prepare(root, state, staging)
    try:
        for change in plan.writes:
            _publish_one(change, root, staging, state / "previous")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def state_folder(root: Path) -> Path:
    """Return the folder beside the repository that holds staging and previous generations."""
    root = Path(os.path.abspath(root))  # noqa: PTH100 - a link to the repository keeps its own state
    return root.parent / ".repogen" / root.name


def write_model(model: ServedModel, config: str, folder: Path) -> None:
    """Write one model's folder, new and complete: folders 0755, files 0644, all forced to the disk."""
    folders = {folder, folder / str(model.version)}
    folders |= {(folder / str(model.version) / file.name).parent for file in model.files}
    folders |= {(folder / file.name).parent for file in model.extra_files}
    for path in sorted(folders):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.chmod(0o755)
    for file in model.files:
        copy_synced(file.source, folder / str(model.version) / file.name)
    for extra in model.extra_files:
        write_synced(folder / extra.name, extra.content)
    write_synced(folder / "config.pbtxt", config.encode())
    for path in sorted(folders, reverse=True):
        sync_folder(path)


def _prepare(root: Path, state: Path, staging: Path) -> None:
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        (state / "previous").mkdir(exist_ok=True)
    except OSError as error:
        raise RepogenError(f"cannot be written: {error.strerror}", where=str(error.filename or root)) from None
    if root.stat().st_dev != staging.stat().st_dev:
        hint = f"mount {root.parent} instead and let Triton serve the subfolder {root.name}"
        raise RepogenError("is a mount point of its own, so nothing can be renamed into it", where=str(root), hint=hint)


def _publish_one(change: Change, root: Path, staging: Path, previous: Path) -> None:
    assert change.model is not None
    staged = staging / change.name
    target = root / change.name
    try:
        write_model(change.model, change.config, staged)
        sync_folder(staging)
        _swap(staged, target)
        sync_folder(root)
    except OSError as error:
        message = f"cannot be published: {error.strerror}"
        raise RepogenError(message, where=str(error.filename or target), hint="nothing of it was published") from error
    if staged.exists():  # the exchange left the displaced generation here
        shutil.rmtree(previous / change.name, ignore_errors=True)
        staged.rename(previous / change.name)


def _swap(staged: Path, target: Path) -> None:
    """Put `staged` at `target` in one step; the folder that stood there, if any, is then at `staged`."""
    if not target.exists():
        staged.rename(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.renameat2(_AT_FDCWD, bytes(staged), _AT_FDCWD, bytes(target), _RENAME_EXCHANGE)
    if not failed:
        return
    code = ctypes.get_errno()
    if code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), str(target))
    aside = staged.with_name(f"{staged.name}.displaced")  # two renames: the model is absent for an instant
    target.rename(aside)
    staged.rename(target)
    aside.rename(staged)
