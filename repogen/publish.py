"""Put models into a repository: staged outside the root, forced to the disk, published by one rename each.

Triton drops healthy models when a listing of the root fails, so nothing but whole model folders ever
appears there (triton core, ModelRepositoryManager::Poll).
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from repogen import generations
from repogen.errors import Refused, RepogenError, ServerError
from repogen.exchange import is_mount_point
from repogen.files import copy_synced, sync_folder, text_of, write_synced
from repogen.generations import Generation, Step, kept, state_folder
from repogen.model import ServedModel
from repogen.plan import Change, Plan, in_order, removal_order
from repogen.staging import keep_displaced, marked, put_back, recover, settle, staging, swap
from repogen.units import size_text

__all__ = ["Live", "Work", "carry_out", "publish", "refuse_unpublishable", "space", "state_folder", "write_model"]

_SLACK = 64 * 2**10  # a folder, its config and their inodes


class Live(Protocol):
    """The servers that read the repository."""

    def bring(self, name: str, config: str, model: ServedModel | None) -> None:
        """Let `name` serve what is published, and prove it. Raises ServerError."""

    def unload(self, name: str) -> None:
        """Let no server serve `name` any more. Raises ServerError."""


@dataclass(frozen=True)
class Work:
    """One step and what it takes: `config` is the text that is to serve after it, "" where nothing is.

    `model` is what is to be written; None where a displaced folder comes back, or a model goes. `former` is the
    config that serves again when the step is undone.
    """

    step: Step
    config: str = ""
    model: ServedModel | None = None
    former: str = ""


def publish(
    plan: Plan, *, keep: int = 1, live: Live | None = None, progress: Callable[[str], None] = lambda _: None
) -> Generation | None:
    """Write every model that the plan creates or rewrites, remove those that it prunes; return what took place.

    A failure leaves each model old or new, never mixed, and the models before it published.
    """
    assert not plan.pending, "build first"
    changes = (*in_order(plan.writes), *removal_order(plan.removes))
    if not changes:
        return None
    refuse_unpublishable(plan)
    root = plan.repository
    recover(root)
    past = generations.history(state_folder(root))
    number = past[-1].number + 1 if past else 1
    now = generations.current(past)
    works = [_work(change, root, number, now) for change in changes]
    return carry_out(root, works, number=number, what="sync", keep=keep, live=live, progress=progress)


def carry_out(
    root: Path,
    works: Sequence[Work],
    *,
    number: int,
    what: str,
    keep: int,
    live: Live | None,
    progress: Callable[[str], None] = lambda _: None,
) -> Generation:
    """Do the steps of a generation one after another, and record which of them took place."""
    state = state_folder(root)
    _prepare(root, state)
    generation = generations.begun(number, what, [work.step for work in works], keep)
    done: list[str] = []
    try:
        generations.record(state, generation)
        for work in works:
            progress(f"{work.step.action} {work.step.name}")
            _do(work, root, state, live)
            done.append(work.step.name)
        generation = settle(root, generation)
    except OSError as error:
        _recover_quietly(root)
        raise _failed(error, root, done, works) from error
    except ServerError as error:
        _recover_quietly(root)
        error.message += f"; {_so_far(done, works)}"
        raise
    except BaseException:  # an interrupt too: what took place is found out by what lies where
        _recover_quietly(root)
        raise
    return generation


def refuse_unpublishable(plan: Plan) -> None:
    """Raise, before anything is built or written, where the repository cannot take what is planned."""
    root = plan.repository
    state = state_folder(root)
    for folder in (root, root.parent, state):
        there = _nearest(folder)
        if not os.access(there, os.W_OK | os.X_OK):
            raise RepogenError("cannot be written: no permission, or mounted read-only", where=str(there))
    refuse_mount_point(root)
    if built := [change.model for change in plan.writes if change.model and change.model.build]:
        from repogen.builds import refuse_not_for_triton  # half a second, for those who need it

        refuse_not_for_triton(built)
    needed, free = space(plan)
    if needed > free:
        message = f"needs {size_text(needed)}, and {size_text(free)} are free; nothing was written"
        raise Refused(message, where=str(root), hint="make room, or let `repogen gc` remove previous generations")


def refuse_mount_point(root: Path) -> None:
    if root.exists() and is_mount_point(root):
        hint = f"mount {root.parent} instead and let Triton serve the subfolder {root.name}"
        raise RepogenError("is a mount point of its own, so nothing can be renamed into it", where=str(root), hint=hint)


def space(plan: Plan) -> tuple[int, int]:
    """Return the bytes that publishing takes beside what is there, and those that are free."""
    status = os.statvfs(_nearest(plan.repository))
    block = status.f_frsize
    models = [change.model for change in plan.writes if change.model]
    sizes = [file.size for model in models for file in (*model.files, *model.carried)]
    needed = sum(-(-size // block) * block for size in sizes) + len(models) * _SLACK
    return needed, status.f_bavail * block


def write_model(model: ServedModel, config: str, folder: Path) -> None:
    """Write one model's folder, new and complete: folders 0755, files 0644, all forced to the disk."""
    version = str(model.version)
    copies = [(file, f"{version}/{file.name}") for file in model.files]
    copies += [(file, file.name) for file in model.carried]
    written = [name for _, name in copies] + [extra.name for extra in model.extra_files]
    folders = {folder, folder / version}
    for name in written:
        folders |= {folder / parent for parent in Path(name).parents}
    for path in sorted(folders):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.chmod(0o755)
    for file, name in copies:
        if copy_synced(file.source, folder / name) != file.sha256:
            raise RepogenError("changed while it was being published", where=str(file.source), hint="sync again")
    for extra in model.extra_files:
        write_synced(folder / extra.name, extra.content)
    write_synced(folder / "config.pbtxt", config.encode())
    for path in sorted(folders, reverse=True):
        sync_folder(path)


def _work(change: Change, root: Path, number: int, now: dict[str, int | None]) -> Work:
    target = root / change.name
    before = (now.get(change.name) or -number) if target.exists() else None
    former = text_of(target / "config.pbtxt")
    if change.action == "remove":
        return Work(Step(change.name, "remove", before, None), former=former)
    return Work(Step(change.name, change.action, before, number), change.config, change.model, former)


def _nearest(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _prepare(root: Path, state: Path) -> None:
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        staging(state).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RepogenError(f"cannot be written: {error.strerror}", where=str(error.filename or root)) from None
    refuse_mount_point(root)


def _do(work: Work, root: Path, state: Path, live: Live | None) -> None:
    step = work.step
    target = root / step.name
    if step.after is None:
        if live:
            live.unload(step.name)
        _take_out(step, target, state)
        return
    ready = _staged(work, state)
    if step.before is None:
        ready.rename(target)
        sync_folder(root)
    else:
        swap(ready, target, kept(state, step.name, step.before))
        sync_folder(root)
        if ready.exists():  # else it was put aside already
            keep_displaced(state, step, ready)
    if live:
        _bring(work, root, live)


def _staged(work: Work, state: Path) -> Path:
    """Return the complete folder, named after its inode, that is to be put in place."""
    step = work.step
    if work.model is None:
        assert step.after is not None
        folder = kept(state, step.name, step.after)
    else:
        folder = staging(state) / step.name
        write_model(work.model, work.config, folder)
    ready = marked(state, step.name, "@", folder)
    folder.rename(ready)
    sync_folder(staging(state))
    return ready


def _take_out(step: Step, target: Path, state: Path) -> None:
    if step.before is None:  # somebody else removed it meanwhile
        return
    place = kept(state, step.name, step.before)
    place.parent.mkdir(parents=True, exist_ok=True)
    target.rename(place)
    sync_folder(place.parent)
    sync_folder(target.parent)


def _bring(work: Work, root: Path, live: Live) -> None:
    """Let the servers take the new folder; what they refuse gives its place back to the previous one."""
    step = work.step
    try:
        live.bring(step.name, work.config, work.model)
    except ServerError as error:
        put_back(root, step)
        error.message += "; the previous generation is back" if step.before is not None else "; it was taken out again"
        try:
            if step.before is None:
                live.unload(step.name)
            else:
                live.bring(step.name, work.former, None)
        except ServerError as second:
            error.message += f", but does not serve: {second.message}"
        raise


def _recover_quietly(root: Path) -> None:
    try:
        recover(root)
    except RepogenError:  # the disk that failed us fails again: the next run does it
        return


def _failed(error: OSError, root: Path, done: Sequence[str], works: Sequence[Work]) -> RepogenError:
    message = f"cannot be published: {error.strerror or error}"
    hint = _so_far(done, works)
    if error.errno == errno.EXDEV:
        hint += f"; {root} must lie on one file system with the folder over it, and not in a layer of an image"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        status = os.statvfs(_nearest(root))
        hint += f"; {size_text(status.f_bavail * status.f_frsize)} are free"
    return RepogenError(message, where=str(error.filename or root), hint=hint)


def _so_far(done: Sequence[str], works: Sequence[Work]) -> str:
    left = [work.step.name for work in works if work.step.name not in done]
    published = f"published: {', '.join(done)}" if done else "nothing of it was published"
    return published + (f"; not: {', '.join(left)}" if done and left else "")
