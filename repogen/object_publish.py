"""Publish to an object store: weights first under new names, then the config that names them, then deletes.

A crash at any point leaves a config and all that it names. What was uploaded by then is moved out of the served
prefix by the next run, and copied back from there instead of being uploaded again.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from repogen import generations, object_history
from repogen.errors import RepogenError, ServerError
from repogen.generations import Generation, Step
from repogen.model import ServedModel
from repogen.object_history import Snapshot, pool, pooled, state_store
from repogen.object_layout import is_named_by_content
from repogen.object_store import Entry, Store
from repogen.publish import Live

CONFIG = "config.pbtxt"
_TOGETHER = 4  # models whose weights are uploaded at a time
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Move:
    """One step: what a model's folder consists of before and after it (None: nothing), and what is to be written."""

    step: Step
    before: Snapshot | None
    after: Snapshot | None
    model: ServedModel | None = None


def carry_out(
    store: Store, moves: Sequence[Move], *, number: int, what: str, keep: int, live: Live | None, progress: Tell
) -> Generation:
    """Do the steps of a generation, and record which of them took place."""
    state = state_store(store)
    generation = generations.begun(number, what, [move.step for move in moves], keep)
    done: list[str] = []
    try:
        with ThreadPoolExecutor(_TOGETHER) as workers:
            list(workers.map(lambda move: _remember(state, move), moves))
            object_history.record(state, generation)
            list(workers.map(lambda move: _bring_files(store, state, move, progress, named=True), moves))
        for move in moves:
            progress(f"{move.step.action} {move.step.name}")
            _do(store, state, move, live, progress)
            done.append(move.step.name)
        generation = object_history.record(state, generations.closed(generation))
    except RepogenError as error:
        _settle_quietly(store, generation)
        error.message += f"; {_so_far(done, moves)}"
        raise
    except BaseException:  # an interrupt too: what took place is found out by what is there
        _settle_quietly(store, generation)
        raise
    store.abort_uploads()
    names = [move.step.name for move in moves]
    object_history.trim(state, object_history.history(state), keep, names)
    return generation


def recover(store: Store) -> bool:
    """Bring a run that was cut short to its end, each model old or new; return whether there was one."""
    newest = object_history.latest(state_store(store))
    if newest is None or newest.state == "done":
        return False
    settle(store, newest)
    return True


def settle(store: Store, generation: Generation) -> Generation:
    """Find out by the configs how far a run came, end or undo the step that it was in, and record it."""
    state = state_store(store)
    done = [step for step in generation.steps if _settled(store, state, step)]
    if not done:
        object_history.forget(state, [generation.number])
        return generations.settled(generation, [])
    return object_history.record(state, generations.closed(generations.settled(generation, done)))


def _remember(state: Store, move: Move) -> None:
    for number, snapshot in ((move.step.before, move.before), (move.step.after, move.after)):
        if number is not None and snapshot is not None:
            object_history.remember(state, move.step.name, number, snapshot)


def _bring_files(store: Store, state: Store, move: Move, progress: Tell, *, named: bool) -> None:
    """Put those files in place that are not there yet: those named by their content, or all others."""
    if move.after is None:
        return
    name, before = move.step.name, move.before.files if move.before else {}
    wanted = {path: digest for path, digest in move.after.files.items() if before.get(path) != digest}
    wanted = {path: digest for path, digest in wanted.items() if is_named_by_content(path) == named}
    if not wanted:
        return
    kept = pool(state, name)
    beside = {digest: path for path, digest in before.items()}
    for path, digest in wanted.items():
        target = f"{name}/{path}"
        if path in before:
            _put_aside(store, state, name, path, before[path], kept)
        if digest in kept:
            progress(f"copying {target}")
            _copy_back(store, state, name, digest, target, kept[digest])
        elif digest in beside:
            source = f"{name}/{beside[digest]}"
            entry = _entry(store, source)
            assert entry is not None, source
            store.copy(store.path(source), store.path(target), entry.size, digest)
        else:
            progress(f"uploading {target}")
            _upload(store, move, path, digest)


def _upload(store: Store, move: Move, path: str, digest: str) -> None:
    model, target = move.model, f"{move.step.name}/{path}"
    assert model is not None, "a rollback finds its files in the store"
    for extra in model.extra_files:
        if extra.name == path:
            store.write(target, extra.content)
            return
    source = next(file.source for file in model.files if f"{model.version}/{file.name}" == path)
    store.upload(target, source, digest, resume=is_named_by_content(path))


def _do(store: Store, state: Store, move: Move, live: Live | None, progress: Tell) -> None:
    name = move.step.name
    if move.after is None:
        if live:
            live.unload(name)
        store.delete([f"{name}/{CONFIG}"])
    else:
        _bring_files(store, state, move, progress, named=False)
        if move.before is None or move.before.config != move.after.config:
            store.write(f"{name}/{CONFIG}", move.after.config.encode())
        if live:
            _bring_live(store, state, move, live)
    _clear(store, state, name, move.before, move.after)


def _bring_live(store: Store, state: Store, move: Move, live: Live) -> None:
    """Let the servers take the new config; what they refuse gives its place back to the previous one."""
    assert move.after is not None
    name = move.step.name
    try:
        live.bring(name, move.after.config, move.model)
    except ServerError as error:
        if move.before is None:
            store.delete([f"{name}/{CONFIG}"])
        else:
            store.write(f"{name}/{CONFIG}", move.before.config.encode())
        _undo(store, state, name, move.before, move.after)
        error.message += "; the previous generation is back" if move.before else "; it was taken out again"
        try:
            if move.before is None:
                live.unload(name)
            else:
                live.bring(name, move.before.config, None)
        except ServerError as second:
            error.message += f", but does not serve: {second.message}"
        raise


def _settled(store: Store, state: Store, step: Step) -> bool:
    """Return whether a step took place, after finishing or undoing the half of it."""
    name = step.name
    before = object_history.snapshot(state, name, step.before)
    after = object_history.snapshot(state, name, step.after)
    config = (store.read(f"{name}/{CONFIG}") or b"").decode(errors="replace")
    if step.after is None:
        if config:
            return False
    elif after is None or config != after.config or _same_config_without_files(store, name, before, after):
        _undo(store, state, name, before, after or Snapshot("", {}))
        return False
    _clear(store, state, name, before, after)
    return True


def _same_config_without_files(store: Store, name: str, before: Snapshot | None, after: Snapshot) -> bool:
    """Return whether a step that changes files alone has not brought all of them."""
    if before is None or before.config != after.config:
        return False
    there = _files(store, name)
    return any(there.get(path) != digest for path, digest in after.files.items())


def _files(store: Store, name: str) -> dict[str, str]:
    cut = len(name) + 1
    return {path[cut:]: store.digest(path, entry) for path, entry in store.entries(name).items()}


def _undo(store: Store, state: Store, name: str, before: Snapshot | None, after: Snapshot) -> None:
    """Make the files of a folder those of `before`; what had come already is kept for the next attempt."""
    there = store.entries(name)
    kept = pool(state, name)
    old = before.files if before else {}
    for path, digest in after.files.items():
        entry = there.get(target := f"{name}/{path}")
        if entry is None or old.get(path) == digest:
            continue
        if (found := store.digest(target, entry)) == digest and path not in old:
            _put_aside(store, state, name, path, found, kept)
        if path not in old:
            store.delete([target])
        elif found != old[path] and old[path] in kept:
            _copy_back(store, state, name, old[path], target, kept[old[path]])


def _clear(store: Store, state: Store, name: str, before: Snapshot | None, after: Snapshot | None) -> None:
    """Take out what only the previous generation had; it is kept beside."""
    left = set(before.files if before else ()) - set(after.files if after else ())
    there = store.entries(name) if left else {}
    present = sorted(path for path in left if f"{name}/{path}" in there)
    kept = pool(state, name) if present else {}
    for path in present:
        assert before is not None
        _put_aside(store, state, name, path, before.files[path], kept)
    store.delete([f"{name}/{path}" for path in present])


def _put_aside(store: Store, state: Store, name: str, path: str, digest: str, kept: Mapping[str, Entry]) -> None:
    if digest not in kept and (entry := _entry(store, f"{name}/{path}")) is not None:
        store.copy(store.path(f"{name}/{path}"), state.path(pooled(name, digest)), entry.size, digest)


def _copy_back(store: Store, state: Store, name: str, digest: str, target: str, entry: Entry) -> None:
    store.copy(state.path(pooled(name, digest)), store.path(target), entry.size, digest)


def _entry(store: Store, path: str) -> Entry | None:
    return store.entries(str(PurePosixPath(path).parent)).get(path)


def _settle_quietly(store: Store, generation: Generation) -> None:
    with suppress(RepogenError):  # the store that failed us fails again: the next run does it
        settle(store, generation)


def _so_far(done: Sequence[str], moves: Sequence[Move]) -> str:
    left = [move.step.name for move in moves if move.step.name not in done]
    published = f"published: {', '.join(done)}" if done else "nothing of it was published"
    return published + (f"; not: {', '.join(left)}" if done and left else "")
