"""`repogen history`: what each sync changed, and what is still there to return to."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from repogen.console import Console

if TYPE_CHECKING:
    from repogen.generations import Generation


def history(manifest: Path, *, console: Console) -> int:
    from repogen.manifest import load_manifest
    from repogen.places import place_of

    root = load_manifest(manifest).root
    place = place_of(root)
    past = place.history(root)
    rows = [(row.number, row.when, row.who, row.what + _unfinished(row), _summary(row)) for row in past]
    if rows:
        console.table(["generation", "when", "who", "what", "changed"], rows)
    else:
        console.say(f"nothing was published to {root} yet")
    kept = place.kept(root)
    for name, number in kept:
        console.say(f"kept: {name} as of {f'generation {number}' if number > 0 else 'before repogen came'}")
    document = {
        "repository": root,
        "generations": [asdict(row) for row in past],
        "kept": [{"model": name, "generation": number} for name, number in kept],
    }
    console.document(document)
    return 0


def _unfinished(generation: "Generation") -> str:
    return "" if generation.state == "done" else " (cut short)"


def _summary(generation: "Generation", shown: int = 4) -> str:
    by_action: dict[str, list[str]] = {}
    for step in generation.steps:
        by_action.setdefault(step.action, []).append(step.name)
    return "; ".join(f"{action} {_names(names, shown)}" for action, names in by_action.items())


def _names(names: Sequence[str], shown: int) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
