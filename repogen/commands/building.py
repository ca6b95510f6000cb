"""How the building of plans is shown: a bar on a terminal, a line a phase elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from repogen.console import Console

if TYPE_CHECKING:
    from repogen.builds import Step


@contextmanager
def building(console: Console) -> Iterator[Callable[["Step"], None]]:
    """Give the function that `repogen.builds.build_pending` tells its steps."""
    if console.quiet or not sys.stderr.isatty():
        yield _Lines(console)
        return
    from rich.console import Console as Terminal
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as bars:
        tasks = {}

        def tell(step: "Step") -> None:
            if step.model not in tasks:
                tasks[step.model] = bars.add_task(f"building {step.model}", total=None)
            described = f"building {step.model}: {step.phase}"
            bars.update(tasks[step.model], description=described, total=step.of or None, completed=step.done)

        yield tell


class _Lines:
    """One line for each model, and with -v one for each phase."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, step: "Step") -> None:
        if not any(model == step.model for model, _ in self.seen):
            self.console.note(f"building {step.model}")
        if self.console.verbose and (step.model, step.phase) not in self.seen:
            self.console.note(f"building {step.model}: {step.phase}")
        self.seen.add((step.model, step.phase))
