"""Where a folder waits for its place, and how a run that was cut short is brought to its end.

All of it lies beside the repository, on the same file system. A complete folder is named after its own inode,
`NAME@INODE`: when another inode is found under that name, the two have been exchanged, and what lies there is
the displaced one. `NAME!INODE` is a displaced folder on its way back.
"""

from contextlib import suppress
from pathlib import Path

from repogen import generations
from repogen.errors import RepogenError
from repogen.exchange import exchange
from repogen.files import listed, remove, sync_folder
from repogen.generations import Generation, Step, kept, state_folder


def staging(state: Path) -> Path:
    return state / "staging"


def marked(state: Path, name: str, sign: str, folder: Path) -> Path:
    """Return where `folder` goes under `sign`: "@" on its way in, "!" on its way back."""
    return staging(state) / f"{name}{sign}{folder.lstat().st_ino}"


def needs_recovery(root: Path) -> bool:
    """Return whether an earlier run was cut short."""
    state = state_folder(root)
    if staging(state).exists() or generations.unfinished(state):
        return True
    newest = generations.latest(state)
    return newest is not None and newest.state != "done"


def recover(root: Path) -> bool:
    """Bring a run that was cut short to its end, each model old or new; return whether there was one."""
    if not needs_recovery(root):
        return False
    try:
        _recover(root, state_folder(root))
    except OSError as error:
        message = f"an earlier run was cut short, and its rest cannot be cleared: {error.strerror}"
        raise RepogenError(message, where=str(error.filename or root), hint="mend that and sync again") from error
    return True


def _recover(root: Path, state: Path) -> None:
    for cut_short in generations.unfinished(state):
        cut_short.unlink()
    newest = generations.latest(state)
    if newest is not None and newest.state != "done":
        settle(root, newest)
    remove(staging(state))


def settle(root: Path, generation: Generation) -> Generation:
    """Find out by what lies where how far a run came, end the step that it was in, and clean up."""
    state = state_folder(root)
    if generation.state == "running":
        done = [step for step in generation.steps if _came_through(step, root, state)]
        sync_folder(root)
        generation = generations.record(state, generations.settled(generation, done))
    names = [step.name for step in generation.steps]
    generations.trim(state, generations.history(state), generation.keep, names)
    for name in names:
        with suppress(OSError):  # not empty, or not there
            (state / "kept" / name).rmdir()
    remove(staging(state))
    if not generation.steps:
        generations.forget(state, generation.number)
        return generation
    return generations.record(state, generations.closed(generation))


def swap(incoming: Path, target: Path, aside: Path) -> None:
    """Put `incoming` at `target` in one step; what stood there is at `incoming` then, or already at `aside`.

    Without RENAME_EXCHANGE it takes two renames, and the model is absent for an instant.
    """
    if exchange(incoming, target):
        return
    aside.parent.mkdir(parents=True, exist_ok=True)
    target.rename(aside)
    try:
        incoming.rename(target)
    except OSError:
        aside.rename(target)
        raise


def keep_displaced(state: Path, step: Step, displaced: Path) -> None:
    """Move what an exchange left behind to the kept generations."""
    assert step.before is not None
    place = kept(state, step.name, step.before)
    place.parent.mkdir(parents=True, exist_ok=True)
    remove(place)  # of a history that somebody deleted
    displaced.rename(place)
    sync_folder(place.parent)
    sync_folder(displaced.parent)


def put_back(root: Path, step: Step) -> None:
    """Undo a step whose folder is in its place: the previous one returns, byte for byte."""
    state = state_folder(root)
    target = root / step.name
    if step.before is None:
        target.rename(aside := staging(state) / f"{step.name}%out")
        sync_folder(root)
        _drop(state, step, aside)
        return
    old = kept(state, step.name, step.before)
    returning = marked(state, step.name, "!", old)
    old.rename(returning)
    _return(root, step, returning)


def _return(root: Path, step: Step, returning: Path) -> None:
    aside = returning.with_name(f"{step.name}%out")
    target = root / step.name
    if target.exists():
        swap(returning, target, aside)
    else:
        returning.rename(target)
    sync_folder(root)
    for left in (returning, aside):
        if left.exists():
            _drop(state_folder(root), step, left)


def _drop(state: Path, step: Step, folder: Path) -> None:
    """Get rid of a folder that did not make it; one that came from the kept ones returns there."""
    if step.action == "rollback" and step.after is not None:
        place = kept(state, step.name, step.after)
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)
    else:
        remove(folder)


def _came_through(step: Step, root: Path, state: Path) -> bool:
    """Return whether a step took place, after finishing or undoing the half of it."""
    target = root / step.name
    if returning := _waiting(state, step.name, "!"):
        if _is_own(returning):
            _return(root, step, returning)
        else:
            _drop(state, step, returning)
        return False
    if not (waiting := _waiting(state, step.name, "@")):
        return _has_left(step, target, state)
    if not _is_own(waiting):
        keep_displaced(state, step, waiting)
        return True
    if step.before is None or target.exists():
        _drop(state, step, waiting)
        return False
    waiting.rename(target)  # between the two renames of a system without exchange
    return True


def _has_left(step: Step, target: Path, state: Path) -> bool:
    if step.after is None:
        return not target.exists()
    if step.before is None:
        return target.exists()
    return target.exists() and kept(state, step.name, step.before).exists()


def _waiting(state: Path, name: str, sign: str) -> Path | None:
    return next((staging(state) / found for found in listed(staging(state)) if found.startswith(name + sign)), None)


def _is_own(folder: Path) -> bool:
    return folder.lstat().st_ino == int(folder.name.rpartition("@")[2].rpartition("!")[2])
