"""The history of a repository: what each sync put in place of what, and the folders that it displaced.

A folder is known by the number of the generation that published it, wherever it stands now; what was there before
repogen came has a negative number. A record is written before anything is renamed, so that the next run can tell
how far this one came.
"""

import getpass
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from repogen.errors import Refused, RepogenError
from repogen.files import listed, replace_synced, sync_folder

_RECORDS = "generations"
_KEPT = "kept"
RECORDS = 100
"""So many records stay as they are; gc makes one of the older ones."""
SQUASHED = "all before"


@dataclass(frozen=True)
class Step:
    """One model's change: the numbers of the folders before and after it; None where there is no folder."""

    name: str
    action: str  # create | rebuild | rewrite | remove | rollback
    before: int | None
    after: int | None


@dataclass(frozen=True)
class Generation:
    """What one run changed. While `state` is "running" its steps are intentions; "settled" is all but cleaned up."""

    number: int
    when: str
    who: str
    what: str  # sync | rollback to N
    steps: tuple[Step, ...]
    state: str = "running"  # running | settled | done
    keep: int = 1


def state_folder(root: Path) -> Path:
    """Return the folder beside the repository that holds its lock, staging and previous generations."""
    root = Path(os.path.realpath(root))
    return root.parent / ".repogen" / root.name


def unfinished(state: Path) -> list[Path]:
    """Return the records whose writing was cut short."""
    return [state / _RECORDS / name for name in listed(state / _RECORDS) if name.endswith(".new")]


def history(state: Path) -> tuple[Generation, ...]:
    """Return the generations on record, oldest first."""
    return tuple(_read(path) for path in _records(state))


def latest(state: Path) -> Generation | None:
    """Return the newest generation, running or done."""
    paths = _records(state)
    return _read(paths[-1]) if paths else None


def record(state: Path, generation: Generation) -> Generation:
    """Write a generation's record, in one step and to the disk."""
    (state / _RECORDS).mkdir(parents=True, exist_ok=True)
    replace_synced(_path(state, generation.number), json.dumps(asdict(generation), indent=1))
    return generation


def forget(state: Path, number: int) -> None:
    """Remove a record: of a run that changed nothing, or of one that is older than anybody asks for."""
    _path(state, number).unlink(missing_ok=True)
    sync_folder(state / _RECORDS)


def begun(number: int, what: str, steps: Sequence[Step], keep: int) -> Generation:
    """Return the generation of a run that begins now."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):
        who = str(os.getuid())
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Generation(number, when, who, what, tuple(steps), keep=keep)


def current(generations: Sequence[Generation]) -> dict[str, int | None]:
    """Return the number of each model's folder as the history has it; None for one that was removed."""
    return {step.name: step.after for generation in generations for step in generation.steps}


def as_of(generations: Sequence[Generation], number: int) -> dict[str, int | None]:
    """Return the folder that each model touched since generation `number` had then."""
    found: dict[str, int | None] = {}
    for generation in generations:
        if generation.number > number:
            for step in generation.steps:
                found.setdefault(step.name, step.before)
    return found


def target_of(generations: Sequence[Generation], number: int | None, where: object) -> int:
    """Return the generation to return to; by default the one before the last. Raises Refused."""
    place = str(where)
    if not generations:
        raise Refused("nothing was published yet", where=place)
    newest, oldest = generations[-1].number, generations[0].number
    target = newest - 1 if number is None else number
    if target >= newest:
        message = f"cannot return to {target}: the newest generation is {newest}"
        raise Refused(message, where=place, hint="repogen history lists them")
    if generations[0].what == SQUASHED and target < oldest:
        raise Refused(f"the history before generation {oldest} was collected", where=place)
    return target


def squashed(generations: Sequence[Generation], limit: int = RECORDS) -> tuple[Generation | None, list[int]]:
    """Return one record in place of all but the newest `limit`, and the numbers of those that it makes needless.

    It says which folder of each model was the newest then; nobody can return to before it.
    """
    old = generations[: max(len(generations) - limit, 0)]
    if not old:
        return None, []
    newest = {step.name: step for generation in old for step in generation.steps}
    whole = replace(old[-1], what=SQUASHED, steps=tuple(newest.values()))
    return whole, [generation.number for generation in old[:-1]]


def kept(state: Path, name: str, number: int) -> Path:
    """Return where the displaced folder `number` of a model is kept."""
    return state / _KEPT / name / str(number)


def all_kept(state: Path) -> Iterator[tuple[str, int, Path]]:
    """Return every displaced folder: the model's name, the folder's number, and where it is."""
    for name in listed(state / _KEPT):
        for number in listed(state / _KEPT / name):
            yield name, int(number), kept(state, name, int(number))


def trim(
    state: Path,
    generations: Sequence[Generation],
    keep: int,
    names: Sequence[str] | None = None,
    *,
    dry: bool = False,
) -> list[Path]:
    """Remove all but the `keep` folders of each model (of `names`) that were displaced last; return those removed."""
    displaced: Mapping[tuple[str, int | None], int] = {
        (step.name, step.before): generation.number for generation in generations for step in generation.steps
    }
    by_name: dict[str, list[tuple[int, Path]]] = {}
    for name, number, folder in all_kept(state):
        if names is None or name in names:
            by_name.setdefault(name, []).append((displaced.get((name, number), -1), folder))
    gone = [folder for rows in by_name.values() for _, folder in sorted(rows, reverse=True)[keep:]]
    for folder in () if dry else gone:
        shutil.rmtree(folder)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    return gone


def settled(generation: Generation, steps: Sequence[Step]) -> Generation:
    return replace(generation, steps=tuple(steps), state="settled")


def closed(generation: Generation) -> Generation:
    return replace(generation, state="done")


def _path(state: Path, number: int) -> Path:
    return state / _RECORDS / f"{number:06}.json"


def _records(state: Path) -> list[Path]:
    return [state / _RECORDS / name for name in listed(state / _RECORDS) if name.endswith(".json")]


def _read(path: Path) -> Generation:
    try:
        row = json.loads(path.read_text())
        return Generation(**{**row, "steps": tuple(Step(**step) for step in row["steps"])})
    except OSError as error:
        raise RepogenError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, TypeError, KeyError) as error:
        hint = "it was damaged or written by another repogen: move that folder away to begin a new history"
        raise RepogenError(f"is no record of a generation: {error}", where=str(path), hint=hint) from None
