"""`repogen plan`: what a sync would do. Changes nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.console import Console
from repogen.units import size_text

if TYPE_CHECKING:
    from repogen.plan import Plan

_SIGNS = {
    "create": ("+", "green"),
    "rewrite": ("~", "yellow"),
    "keep": ("=", "dim"),
    "remove": ("-", "dim"),
    "drifted": ("!", "red"),
    "foreign": ("?", "dim"),
}


def plan(manifest: Path, *, jobs: int, overwrite: bool, exit_code: bool, console: Console) -> int:
    found = planned(manifest, jobs=jobs, overwrite=overwrite, console=console)
    show(found, console)
    console.document(as_document(found))
    return 1 if found.blocked or (exit_code and found.writes) else 0


def planned(manifest: Path, *, jobs: int, overwrite: bool, console: Console) -> "Plan":
    """Read the manifest, its models and the repository, and compare."""
    from repogen.desired import models_of
    from repogen.manifest import load_manifest
    from repogen.plan import make_plan
    from repogen.repository import read_repository

    read = load_manifest(manifest)
    desired = models_of(
        read, jobs=jobs, progress=lambda name: console.note(f"reading {name}") if console.verbose else None
    )
    return make_plan(desired, read_repository(read.repository), read.repository, overwrite=overwrite)


def show(found: "Plan", console: Console) -> None:
    """Print the plan: one line a model, then the diff of each config that changes."""
    width = max((len(change.name) for change in found.changes), default=0)
    for change in found.changes:
        sign, colour = _SIGNS[change.action]
        console.say(console.paint(f"{sign} {change.name:<{width}}  {change.action:<8}  {change.reason}", colour))
        if change.model and (change.action == "create" or console.verbose):
            for note in change.model.notes:
                console.say(console.paint(f"  {'':<{width}}  {'':<8}  {note}", "dim"))
        for line in change.diff.splitlines() if change.action != "create" else ():
            console.say(f"    {_coloured(line, console)}")
    counts = ", ".join(f"{count} to {action}" for action, count in found.counts().items())
    if not found.writes:
        console.say(f"nothing to do in {found.repository}: {counts}")
    else:
        console.say(f"{found.repository}: {counts} ({size_text(found.bytes_to_write)})")


def as_document(found: "Plan") -> dict[str, Any]:
    return {
        "repository": str(found.repository),
        "counts": found.counts(),
        "bytes": found.bytes_to_write,
        "changes": [
            {
                "model": change.name,
                "action": change.action,
                "reason": change.reason,
                "notes": change.model.notes if change.model else [],
                "diff": change.diff,
            }
            for change in found.changes
        ],
    }


def _coloured(line: str, console: Console) -> str:
    return console.paint(line, {"+": "green", "-": "red"}.get(line[:1], "dim"))
