"""`repogen report`: the report of load tests whose samples were kept, also of one that was killed."""

from collections.abc import Sequence
from pathlib import Path

from repogen.commands.bench import show
from repogen.console import Console
from repogen.errors import RepogenError


def report(paths: Sequence[Path], *, output: Path | None, csv: Path | None, console: Console) -> int:
    """Fold the samples in `paths`, files or folders, run by run, and print what came of each."""
    from repogen.load import samples
    from repogen.load.metrics import result

    found: list[samples.Samples] = []
    for path in paths:
        read = samples.load_all(path) if path.is_dir() else (samples.load(path),)
        if not read:
            raise RepogenError("has no samples", where=str(path), hint="bench --samples writes them: *.npz")
        found += read
    runs = [(result(parts), tuple(parts)) for parts in samples.parts_of(found).values()]
    show(runs, report=output, csv=csv, console=console)
    return 0
