"""Return models to an earlier generation: the very folders that were displaced since."""

from collections.abc import Callable, Sequence
from pathlib import Path

from repogen import generations
from repogen.errors import Refused
from repogen.files import text_of
from repogen.generations import Generation, Step, kept, state_folder
from repogen.publish import Live, Work, carry_out


def steps_back(root: Path, number: int | None = None) -> tuple[int, tuple[Step, ...]]:
    """Return the generation to return to (by default the one before the last), and the steps that it takes.

    Raises Refused where a folder that it needs is not kept any more.
    """
    state = state_folder(root)
    past = generations.history(state)
    target = generations.target_of(past, number, root)
    now = generations.current(past)
    steps = []
    for name, folder in sorted(generations.as_of(past, target).items()):
        present = now.get(name) if (root / name).exists() else None
        if folder == present:
            continue
        if folder is not None and not kept(state, name, folder).is_dir():
            hint = "`keep:` in the manifest says how many are kept of each model"
            raise Refused(f"generation {target} of {name} is not kept any more", where=str(state / "kept"), hint=hint)
        steps.append(Step(name, "rollback", present, folder))
    return target, tuple(steps)


def roll_back(
    root: Path,
    target: int,
    steps: Sequence[Step],
    *,
    keep: int = 1,
    live: Live | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Generation:
    """Do the steps that `steps_back` found; folders are exchanged, so that a rollback can be rolled back."""
    state = state_folder(root)
    number = generations.history(state)[-1].number + 1
    works = [
        Work(step, _config_of(step.after, step.name, state), None, text_of(root / step.name / "config.pbtxt"))
        for step in steps
    ]
    works.sort(key=lambda work: (work.step.after is None, "ensemble_scheduling" in work.config, work.step.name))
    return carry_out(root, works, number=number, what=f"rollback to {target}", keep=keep, live=live, progress=progress)


def _config_of(number: int | None, name: str, state: Path) -> str:
    return "" if number is None else text_of(kept(state, name, number) / "config.pbtxt")
