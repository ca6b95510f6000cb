"""A repository on an object store: what plan, sync, history, rollback and gc need of it (places.Place)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repogen import generations, object_history, object_lock, object_publish
from repogen.errors import Refused
from repogen.fingerprint import model_files
from repogen.generations import Generation, Step
from repogen.model import ServedModel
from repogen.object_history import Snapshot, state_store
from repogen.object_layout import arranged
from repogen.object_publish import CONFIG, Move
from repogen.object_store import Entry, Store, connected
from repogen.plan import Change, Plan, in_order, removal_order
from repogen.publish import Live
from repogen.repository import Published, Stray, fingerprint_of, state_of, version_strays

RECOVERS_FIRST = True
_IGNORED = "__pycache__"


def read(root: str) -> dict[str, Published]:
    """Return the model folders below a URL: one listing, and what is not remembered of the objects."""
    store = connected(root)
    return {name: _published(store, name, rows) for name, rows in _folders(store).items()}


def strays(root: str) -> tuple[Stray, ...]:
    found = []
    store = connected(root)
    newest = latest(root)
    if newest is not None and newest.state != "done":
        found.append(Stray("", "an earlier sync was cut short: the next one brings it to its end"))
    for name, rows in _folders(store, hidden=True).items():
        if name.startswith("."):
            found.append(Stray(name, "a hidden folder, which Triton takes for a model"))
        else:
            folders = sorted({path.split("/")[0] for path in rows if "/" in path} - {_IGNORED})
            found += version_strays(name, folders)
    return tuple(found)


def fitting(model: ServedModel) -> ServedModel:
    return arranged(model)


def latest(root: str) -> Generation | None:
    return object_history.latest(state_store(connected(root)))


def history(root: str) -> tuple[Generation, ...]:
    return object_history.history(state_store(connected(root)))


def kept(root: str) -> tuple[tuple[str, int], ...]:
    return tuple(object_history.all_kept(state_store(connected(root))))


@contextmanager
def writer(root: str, *, wait: float = 0.0, note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    with object_lock.writer(state_store(connected(root)), wait=wait, note=note):
        yield


def needs_recovery(root: str) -> bool:
    newest = latest(root)
    return newest is not None and newest.state != "done"


def recover(root: str) -> bool:
    return object_publish.recover(connected(root))


def refuse_unpublishable(plan: Plan) -> None:
    """Raise, before anything is built or written, where the store is not there or a plan is for no Triton."""
    state_store(connected(plan.url))
    if built := [change.model for change in plan.writes if change.model and change.model.build]:
        from repogen.builds import refuse_not_for_triton

        refuse_not_for_triton(built)


def has_gaps(_: Plan) -> bool:
    return False  # a config is replaced in one step


def publish(
    plan: Plan, *, keep: int = 1, live: Live | None = None, progress: Callable[[str], None] = lambda _: None
) -> Generation | None:
    """Write every model that the plan creates or rewrites, remove those that it prunes; return what took place."""
    changes = (*in_order(plan.writes), *removal_order(plan.removes))
    if not changes:
        return None
    store = connected(plan.url)
    recover(plan.url)
    past = history(plan.url)
    number = past[-1].number + 1 if past else 1
    now = generations.current(past)
    folders = _folders(store)
    moves = [_move(store, change, folders.get(change.name, {}), number, now.get(change.name)) for change in changes]
    return object_publish.carry_out(store, moves, number=number, what="sync", keep=keep, live=live, progress=progress)


def steps_back(root: str, number: int | None = None) -> tuple[int, tuple[Step, ...]]:
    """Return the generation to return to (by default the one before the last), and the steps that it takes."""
    store = connected(root)
    state = state_store(store)
    past = object_history.history(state)
    target = generations.target_of(past, number, root)
    now = generations.current(past)
    folders = _folders(store)
    steps = []
    for name, wanted in sorted(generations.as_of(past, target).items()):
        present = now.get(name) if name in folders else None
        if wanted == present:
            continue
        if wanted is not None and object_history.snapshot(state, name, wanted) is None:
            hint = "`keep:` in the manifest says how many are kept of each model"
            raise Refused(f"generation {target} of {name} is not kept any more", where=state.url, hint=hint)
        steps.append(Step(name, "rollback", present, wanted))
    return target, tuple(steps)


def roll_back(
    root: str,
    target: int,
    steps: Sequence[Step],
    *,
    keep: int = 1,
    live: Live | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Generation:
    """Do the steps that `steps_back` found, without any upload."""
    store = connected(root)
    state = state_store(store)
    number = history(root)[-1].number + 1
    folders = _folders(store)
    moves = []
    for step in steps:
        before = None if step.before is None else _snapshot(store, step.name, folders[step.name])
        moves.append(Move(step, before, object_history.snapshot(state, step.name, step.after)))
    moves.sort(key=lambda move: (move.after is None, "ensemble_scheduling" in _config(move), move.step.name))
    what = f"rollback to {target}"
    return object_publish.carry_out(store, moves, number=number, what=what, keep=keep, live=live, progress=progress)


def trim(root: str, keep: int, *, dry: bool = False) -> list[tuple[str, int]]:
    """Remove previous generations beyond those to keep, and old records; return what went, with its size."""
    store = connected(root)
    state = state_store(store)
    past = object_history.history(state)
    gone = object_history.trim(state, past, keep, dry=dry)
    whole, dropped = generations.squashed(past)
    if whole and dropped and not dry:
        object_history.record(state, whole)
        object_history.forget(state, dropped)
    if not dry:
        store.abort_uploads()
    return [(row.name, row.size) for row in gone] + [(f"{state.url}/generations/{number:06}", 0) for number in dropped]


def touch(root: str, name: str) -> None:
    """Write a config anew, so that a server takes the model for changed."""
    store = connected(root)
    if content := store.read(f"{name}/{CONFIG}"):
        store.write(f"{name}/{CONFIG}", content)


def _config(move: Move) -> str:
    return move.after.config if move.after else ""


def _folders(store: Store, *, hidden: bool = False) -> dict[str, dict[str, Entry]]:
    """Return the objects of each model, by their path in its folder."""
    found: dict[str, dict[str, Entry]] = {}
    for path, entry in store.entries().items():
        name, slash, below = path.partition("/")
        if slash and _IGNORED not in below.split("/") and (hidden or not name.startswith(".")):
            found.setdefault(name, {})[below] = entry
    return found


def _published(store: Store, name: str, rows: dict[str, Entry]) -> Published:
    text = _text(store, name, rows)
    mark = fingerprint_of(text)
    files = _digests(store, name, rows) if mark else {}
    sizes = {path: entry.size for path, entry in rows.items()}
    return Published(name, Path(store.path(name)), text, mark, files, state_of(text, mark, files), sizes)


def _snapshot(store: Store, name: str, rows: dict[str, Entry]) -> Snapshot:
    return Snapshot(_text(store, name, rows), _digests(store, name, rows))


def _text(store: Store, name: str, rows: dict[str, Entry]) -> str:
    return object_history.text(store, f"{name}/{CONFIG}", rows[CONFIG]) if CONFIG in rows else ""


def _digests(store: Store, name: str, rows: dict[str, Entry]) -> dict[str, str]:
    return {path: store.digest(f"{name}/{path}", entry) for path, entry in rows.items() if path != CONFIG}


def _move(store: Store, change: Change, rows: dict[str, Entry], number: int, now: int | None) -> Move:
    before = _snapshot(store, change.name, rows) if rows else None
    past = None if before is None else now or -number
    if change.action == "remove":
        return Move(Step(change.name, "remove", past, None), before, None)
    assert change.model is not None
    after = Snapshot(change.config, model_files(change.model))
    return Move(Step(change.name, change.action, past, number), before, after, change.model)
