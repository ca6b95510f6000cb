"""`repogen rollback`: return to an earlier generation, and let the servers serve it."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from repogen.commands.sync import servers
from repogen.console import Console
from repogen.errors import Refused


def rollback(
    manifest: Path,
    *,
    number: int | None,
    yes: bool,
    wait: float,
    urls: Sequence[str],
    load_timeout: float,
    console: Console,
) -> int:
    from repogen.manifest import load_manifest
    from repogen.places import place_of

    read = load_manifest(manifest)
    root = read.root
    place = place_of(root)
    with ExitStack() as stack:
        live = stack.enter_context(servers(urls, root, load_timeout, console)) if urls else None
        stack.enter_context(place.writer(root, wait=wait, note=console.note))
        place.recover(root)
        target, steps = place.steps_back(root, number)
        for step in steps:
            to = f"generation {step.after}" if step.after and step.after > 0 else "what was there before"
            console.say(f"~ {step.name}  {'removed' if step.after is None else f'returns to {to}'}")
        gone = [step.name for step in steps if step.after is None]
        if gone and not yes:
            raise Refused(f"{', '.join(gone)} would go: not there in generation {target}", hint="--yes does it")
        if not steps:
            console.say(f"the repository is as it was in generation {target}")
            console.document({"to": target, "generation": None, "steps": []})
            return 0
        generation = place.roll_back(root, target, steps, keep=max(read.keep, 1), live=live, progress=console.note)
    console.say(f"generation {generation.number}: rolled back to {target}; the manifest still asks for what was there")
    console.document({"to": target, "generation": generation.number, "steps": [asdict(step) for step in steps]})
    return 0
