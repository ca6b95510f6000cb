"""A repository in a folder of this machine: what plan, sync, history, rollback and gc need of it (places.Place)."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repogen import generations, lock, repository, staging
from repogen import publish as publishing
from repogen.exchange import can_exchange
from repogen.files import folder_size
from repogen.generations import Generation, Step, state_folder
from repogen.model import ServedModel
from repogen.plan import Plan
from repogen.publish import Live, refuse_unpublishable

__all__ = ["refuse_unpublishable"]

RECOVERS_FIRST = False  # every folder is whole at any time, so that a plan can be made before


def read(root: str) -> dict[str, repository.Published]:
    return repository.read_repository(Path(root))


def strays(root: str) -> tuple[repository.Stray, ...]:
    return repository.strays(Path(root))


def fitting(model: ServedModel) -> ServedModel:
    return model


def latest(root: str) -> Generation | None:
    return generations.latest(state_folder(Path(root)))


def history(root: str) -> tuple[Generation, ...]:
    return generations.history(state_folder(Path(root)))


def kept(root: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, number) for name, number, _ in generations.all_kept(state_folder(Path(root))))


@contextmanager
def writer(root: str, *, wait: float = 0.0, note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    with lock.writer(state_folder(Path(root)), wait=wait, note=note):
        yield


def needs_recovery(root: str) -> bool:
    return staging.needs_recovery(Path(root))


def recover(root: str) -> bool:
    return staging.recover(Path(root))


def has_gaps(plan: Plan) -> bool:
    """Return whether a model would be absent for an instant: where two folders cannot be exchanged in one step."""
    if not any((plan.repository / change.name).exists() for change in plan.writes):
        return False
    try:
        return not can_exchange(staging.staging(state_folder(plan.repository)))
    except OSError:
        return False  # publishing says what is wrong


def publish(
    plan: Plan, *, keep: int = 1, live: Live | None = None, progress: Callable[[str], None] = lambda _: None
) -> Generation | None:
    return publishing.publish(plan, keep=keep, live=live, progress=progress)


def steps_back(root: str, number: int | None = None) -> tuple[int, tuple[Step, ...]]:
    from repogen import rolling_back

    return rolling_back.steps_back(Path(root), number)


def roll_back(
    root: str,
    target: int,
    steps: Sequence[Step],
    *,
    keep: int = 1,
    live: Live | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Generation:
    from repogen import rolling_back

    return rolling_back.roll_back(Path(root), target, steps, keep=keep, live=live, progress=progress)


def trim(root: str, keep: int, *, dry: bool = False) -> list[tuple[str, int]]:
    """Remove previous generations beyond those to keep, and old records; return what went, with its size."""
    state = state_folder(Path(root))
    past = generations.history(state)
    sizes = {folder: folder_size(folder) for _, _, folder in generations.all_kept(state)}
    gone = [(str(folder), sizes[folder]) for folder in generations.trim(state, past, keep, dry=dry)]
    whole, dropped = generations.squashed(past)
    if whole and dropped and not dry:
        generations.record(state, whole)
        for number in dropped:
            generations.forget(state, number)
    return gone + [(str(state / "generations" / f"{number:06}.json"), 0) for number in dropped]


def touch(root: str, name: str) -> None:
    """Give a config another time, so that a server takes the model for changed."""
    os.utime(Path(root) / name / "config.pbtxt")
