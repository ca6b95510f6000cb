"""`repogen sync`: make the repository what the manifest says."""

import time
from pathlib import Path

from repogen.commands.plan import as_document, planned, show
from repogen.console import Console
from repogen.errors import Refused


def sync(manifest: Path, *, jobs: int, overwrite: bool, console: Console) -> int:
    from repogen.publish import publish

    started = time.perf_counter()
    found = planned(manifest, jobs=jobs, overwrite=overwrite, console=console)
    show(found, console)
    if found.blocked:
        names = ", ".join(change.name for change in found.blocked)
        raise Refused(f"{names} would be overwritten", hint="--overwrite does it; nothing was written")
    publish(found)
    seconds = time.perf_counter() - started
    if found.writes:
        console.say(f"published {len(found.writes)} of {len(found.changes)} models in {seconds:.1f} s")
    console.document(as_document(found) | {"published": [change.name for change in found.writes], "seconds": seconds})
    return 0
