"""`repogen check`: what the server would refuse, or accept and then do wrong. Changes nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.console import Console

if TYPE_CHECKING:
    from repogen.check.findings import Finding

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def check(repository: Path, *, server: str, console: Console) -> int:
    """Check every model of `repository` for `server`; return 1 when there are errors."""
    from repogen.check.engine import check_repository
    from repogen.check.target import target_of

    found = check_repository(repository, target_of(server))
    _show(found, repository, server, console)
    counts = _counts(found)
    console.document({"repository": str(repository), "server": server, "counts": counts, "findings": _plain(found)})
    return 1 if counts["error"] else 0


def _show(found: Sequence["Finding"], repository: Path, server: str, console: Console) -> None:
    for model, findings in groupby(found, key=lambda it: it.model):
        console.say(console.paint(model or str(repository), "bold"))
        for finding in findings:
            label = console.paint(f"{finding.severity} {finding.code}", _COLOURS[finding.severity])
            console.say(f"  {finding.where}: {label} {finding.message}")
            if finding.hint:
                console.say(console.paint(f"      {finding.hint}", "dim"))
    counts = _counts(found)
    said = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count)
    colour = next((_COLOURS[name] for name, count in counts.items() if count), "green")
    console.say(f"{repository} for Triton {server}: {console.paint(said or 'nothing to mend', colour)}")


def _counts(found: Iterable["Finding"]) -> dict[str, int]:
    counts = Counter(finding.severity for finding in found)
    return {name: counts[name] for name in ("error", "warning", "note")}


def _plain(found: Iterable["Finding"]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(finding) for finding in found]
