"""`repogen export`: what runs the repository in production, rendered from the manifest."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from repogen.console import Console
from repogen.errors import RepogenError


def export(manifest: Path, *, what: str, output: Path, jobs: int, console: Console) -> int:
    """Render `what` (compose, k8s or monitoring) into the folder `output`; files that are the same stay untouched."""
    from repogen.desired import models_of
    from repogen.export.settings import Settings
    from repogen.manifest import load_manifest

    read = load_manifest(manifest)
    models = models_of(read, jobs=jobs)
    rendered = import_module(f"repogen.export.{what}").files(models, Settings(read, output))
    states = _write(rendered, output)
    for name, state in states.items():
        console.say(f"{state:9}  {output / name}")
    console.document({"what": what, "folder": str(output), "files": states})
    return 0


def _write(rendered: Mapping[str, str], output: Path) -> dict[str, str]:
    """Write what differs, and return what became of each file."""
    states = {}
    for name, text in sorted(rendered.items()):
        path = output / name
        try:
            before = path.read_text(encoding="utf-8") if path.is_file() else None
            if before != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RepogenError(f"cannot be written: {error}", where=str(path)) from None
        states[name] = "unchanged" if before == text else "written" if before is None else "rewritten"
    return states
