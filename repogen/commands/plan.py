"""`repogen plan`: what a sync would do. Changes nothing."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.child import MEMORY
from repogen.console import Console
from repogen.errors import Refused
from repogen.units import size_text

if TYPE_CHECKING:
    from repogen.plan import Plan

_SIGNS = {
    "create": ("+", "green"),
    "rebuild": ("~", "cyan"),
    "rewrite": ("~", "yellow"),
    "keep": ("=", "dim"),
    "remove": ("-", "dim"),
    "drifted": ("!", "red"),
    "foreign": ("?", "dim"),
}


@dataclass(frozen=True)
class Question:
    """What a plan is made for: the manifest and what the user allows."""

    manifest: Path
    jobs: int
    overwrite: bool
    prune: bool
    memory: int = MEMORY


@dataclass(frozen=True)
class Answer:
    """A plan, what it was made from (another manifest or generation makes it stale), and how much is to be kept."""

    plan: "Plan"
    basis: str
    keep: int


def plan(
    manifest: Path,
    *,
    jobs: int,
    overwrite: bool,
    exit_code: bool,
    console: Console,
    prune: bool = False,
    memory: int = MEMORY,
) -> int:
    found = planned(Question(manifest, jobs, overwrite, prune, memory), console).plan
    show(found, console)
    console.document(as_document(found))
    return 1 if found.blocked or (exit_code and (found.writes or found.removes)) else 0


def planned(question: Question, console: Console, *, first: Callable[[str], None] = lambda _: None) -> Answer:
    """Read the manifest, its models and the repository, and compare; `first` is called with the repository."""
    from repogen.desired import models_of
    from repogen.manifest import load_manifest
    from repogen.places import place_of
    from repogen.plan import make_plan

    read = load_manifest(question.manifest)
    root = read.root
    place = place_of(root)
    first(root)
    seen = basis(question.manifest, root)
    desired = models_of(
        read,
        jobs=question.jobs,
        progress=lambda name: console.note(f"reading {name}") if console.verbose else None,
        memory=question.memory,
    )
    found = make_plan(
        desired,
        place.read(root),
        read.repository,
        overwrite=question.overwrite,
        prune=question.prune,
        strays=place.strays(root),
        url=read.store,
        arranged=place.fitting,
    )
    return Answer(found, seen, read.keep)


def basis(manifest: Path, root: str) -> str:
    """Return what tells whether a plan still holds: the manifest's digest and the newest generation."""
    from repogen.places import place_of

    newest = place_of(root).latest(root)
    number = f"{newest.number} {newest.state}" if newest else ""
    return f"{hashlib.sha256(manifest.read_bytes()).hexdigest()} {number}"


def refuse_unasked(found: "Plan", *, yes: bool) -> None:
    """Raise where a sync would overwrite what is not its own, or remove so much that it must be asked twice."""
    if found.blocked:
        names = ", ".join(change.name for change in found.blocked)
        raise Refused(f"{names} would be overwritten", hint="--overwrite does it; nothing was written")
    if found.removes_many and not yes:
        ours = sum(change.action not in ("create", "foreign") for change in found.changes)
        message = f"{len(found.removes)} of {ours} models would be removed"
        raise Refused(message, hint="--yes does it, when that is meant; nothing was written")


def show(found: "Plan", console: Console) -> None:
    """Print the plan: strays, then one line a model, then the diff of each config that changes."""
    for stray in found.strays:
        console.say(console.paint(f"! {found.place}/{stray.path}: {stray.what}", "red"))
    width = max((len(change.name) for change in found.changes), default=0)
    removed = {change.name for change in found.removes}
    for change in found.changes:
        sign, colour = _SIGNS[change.action]
        if change.name in removed:
            colour = "red"
        if change.action != "keep" or len(found.changes) <= _MANY or console.verbose:
            console.say(console.paint(f"{sign} {change.name:<{width}}  {change.action:<8}  {change.reason}", colour))
        if change.model and (change.action == "create" or console.verbose):
            for note in change.model.notes:
                console.say(console.paint(f"  {'':<{width}}  {'':<8}  {note}", "dim"))
        for line in change.diff.splitlines() if change.action != "create" else ():
            console.say(f"    {_coloured(line, console)}")
    counts = ", ".join(_counted(action, count, found) for action, count in found.counts().items())
    if found.blocked and not found.writes and not found.removes:
        console.say(f"{found.place}: {counts}")
    elif not found.writes and not found.removes:
        console.say(f"nothing to do in {found.place}: {counts}")
    else:
        console.say(f"{found.place}: {counts} ({_sizes(found)})")


def _counted(action: str, count: int, found: "Plan") -> str:
    if action == "remove" and not found.prune:
        return f"{count} no longer in the manifest"
    return f"{count} {action}" if action in ("drifted", "foreign") else f"{count} to {action}"


_MANY = 50
"""Beyond so many models the lines of those that stay say nothing to anybody."""


def as_document(found: "Plan") -> dict[str, Any]:
    return {
        "repository": found.place,
        "counts": found.counts(),
        "bytes": found.bytes_to_write,
        "space": _space(found),
        "prune": found.prune,
        "strays": [{"path": stray.path, "what": stray.what} for stray in found.strays],
        "changes": [
            {
                "model": change.name,
                "action": change.action,
                "reason": change.reason,
                "source": change.model.source if change.model else None,
                "version": change.model.version if change.model else None,
                "notes": change.model.notes if change.model else [],
                "diff": change.diff,
            }
            for change in found.changes
        ],
    }


def _space(found: "Plan") -> dict[str, int] | None:
    """Return the bytes that publishing needs and those that are free; None where nobody knows, as on a store."""
    if found.url:
        return None
    from repogen.publish import space

    needed, free = space(found)
    return {"needed": needed, "free": free}


def _sizes(found: "Plan") -> str:
    if found.url:
        return f"{size_text(found.bytes_to_write)} at most to upload"
    from repogen.publish import space

    needed, free = space(found)
    building = ", and what is built" if found.pending else ""
    return f"{size_text(found.bytes_to_write)}; needs {size_text(needed)}{building} of {size_text(free)} free"


def _coloured(line: str, console: Console) -> str:
    return console.paint(line, {"+": "green", "-": "red"}.get(line[:1], "dim"))
