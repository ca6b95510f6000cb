"""The history of a repository on an object store: records, and what each kept generation of a model consists of.

Beside the served prefix `models` lies `.repogen/models` with `generations/NUMBER.json` (as in a folder),
`kept/MODEL/NUMBER.json` (a config, and the sha256 of each file) and `kept/MODEL/objects/SHA256` (files that are not
served any more). So a generation that differs in its config alone costs one small object.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from repogen import generations
from repogen.cache import cached
from repogen.errors import RepogenError
from repogen.generations import Generation, Step
from repogen.object_store import Entry, Store

_RECORDS = "generations"
_KEPT = "kept"


@dataclass(frozen=True)
class Snapshot:
    """One generation of a model: its config, and its other files with their sha256."""

    config: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Dropped:
    """An object that was kept and is not needed any more."""

    name: str
    size: int


def state_store(store: Store) -> Store:
    """Return where lock, records and previous generations of a repository lie: beside what is served."""
    above, _, name = store.root.rpartition("/")
    if not above:
        hint = f"name a prefix in the bucket: {store.url.rstrip('/')}/models"
        message = "is a whole bucket, and repogen keeps its history beside the repository"
        raise RepogenError(message, where=store.url, hint=hint)
    url = store.url.rstrip("/").rpartition("/")[0]
    return replace(store, root=f"{above}/.repogen/{name}", url=f"{url}/.repogen/{name}")


def text(store: Store, name: str, entry: Entry) -> str:
    """Return a small object as text, remembered for as long as it is the same."""

    def read() -> str:
        return (store.read(name) or b"").decode(errors="replace")

    key = f"{store.path(name)} {entry.token} {entry.size} {entry.when}"
    return str(cached("texts", key, read)) if entry.token else read()


def history(state: Store) -> tuple[Generation, ...]:
    """Return the generations on record, oldest first."""
    return tuple(_read(state, name, entry) for name, entry in state.entries(_RECORDS).items())


def latest(state: Store) -> Generation | None:
    rows = list(state.entries(_RECORDS).items())
    return _read(state, *rows[-1]) if rows else None


def record(state: Store, generation: Generation) -> Generation:
    state.write(_path(generation.number), json.dumps(asdict(generation), indent=1).encode())
    return generation


def forget(state: Store, numbers: Sequence[int]) -> None:
    state.delete([_path(number) for number in numbers])


def remember(state: Store, name: str, number: int, snapshot: Snapshot) -> None:
    """Write down what generation `number` of a model consists of."""
    state.write(_snapshot_path(name, number), json.dumps(asdict(snapshot), indent=1).encode())


def snapshot(state: Store, name: str, number: int | None) -> Snapshot | None:
    """Return what generation `number` of a model consists of, None where that is not known any more."""
    content = None if number is None else state.read(_snapshot_path(name, number))
    return None if content is None else Snapshot(**json.loads(content))


def pooled(name: str, digest: str) -> str:
    """Return where a file that is not served any more is kept."""
    return f"{_KEPT}/{name}/objects/{digest}"


def pool(state: Store, name: str) -> dict[str, Entry]:
    """Return the files kept of a model, by their sha256."""
    top = f"{_KEPT}/{name}/objects"
    return {path.rpartition("/")[2]: entry for path, entry in state.entries(top).items()}


def all_kept(state: Store) -> Iterator[tuple[str, int]]:
    """Return the generations of each model that can be returned to: those known, but for the one that is served."""
    now = generations.current(history(state))
    for name, numbers in _snapshots(state.entries(_KEPT)).items():
        for number in sorted(numbers):
            if number != now.get(name):
                yield name, number


def trim(
    state: Store, past: Sequence[Generation], keep: int, names: Sequence[str] | None = None, *, dry: bool = False
) -> list[Dropped]:
    """Remove all but the `keep` generations of each model (of `names`) that were displaced last, and their files."""
    entries = state.entries(_KEPT)
    now = generations.current(past)
    gone: list[str] = []
    for name, numbers in _snapshots(entries).items():
        if names is not None and name not in names:
            continue
        ordered = _oldest_first([number for number in numbers if number != now.get(name)], past, name)
        kept = ordered[max(len(ordered) - keep, 0) :]
        gone += [_snapshot_path(name, number) for number in ordered if number not in kept]
        needed = {digest for number in kept for digest in _files(state, entries, name, number)}
        top = pooled(name, "")
        gone += [path for path in entries if path.startswith(top) and path.removeprefix(top) not in needed]
    if gone and not dry:
        state.delete(gone)
    return [Dropped(state.path(path), entries[path].size) for path in gone]


def _oldest_first(numbers: Sequence[int], past: Sequence[Generation], name: str) -> list[int]:
    """Return generations of a model in the order in which they were displaced, those of no record first."""
    displaced = {step.before: row.number for row in past for step in row.steps if step.name == name}
    return sorted(numbers, key=lambda number: (displaced.get(number, -1), number))


def _files(state: Store, entries: Mapping[str, Entry], name: str, number: int) -> list[str]:
    path = _snapshot_path(name, number)
    return list(json.loads(text(state, path, entries[path]))["files"].values())


def _snapshots(entries: Mapping[str, Entry]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for path in entries:
        _, name, *rest = path.split("/")
        numbers = found.setdefault(name, [])
        if len(rest) == 1 and rest[0].endswith(".json"):
            numbers.append(int(rest[0].removesuffix(".json")))
    return found


def _snapshot_path(name: str, number: int) -> str:
    return f"{_KEPT}/{name}/{number}.json"


def _path(number: int) -> str:
    return f"{_RECORDS}/{number:06}.json"


def _read(state: Store, name: str, entry: Entry) -> Generation:
    try:
        row = json.loads(text(state, name, entry))
        return Generation(**{**row, "steps": tuple(Step(**step) for step in row["steps"])})
    except (ValueError, TypeError, KeyError) as error:
        hint = "it was damaged or written by another repogen: move the records away to begin a new history"
        raise RepogenError(f"is no record of a generation: {error}", where=f"{state.url}/{name}", hint=hint) from None
