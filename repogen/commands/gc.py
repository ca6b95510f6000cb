"""`repogen gc`: remove what nobody returns to."""

from pathlib import Path

from repogen.console import Console
from repogen.units import size_text


def gc(manifest: Path, *, keep: int | None, wait: float, console: Console) -> int:
    from repogen import generations
    from repogen.lock import writer
    from repogen.manifest import load_manifest
    from repogen.staging import recover

    read = load_manifest(manifest)
    state = generations.state_folder(read.repository)
    if not state.is_dir():
        console.say("nothing to remove")
        console.document({"removed": [], "bytes": 0})
        return 0
    # Under the lock nothing that another run is working with can be taken for a leftover.
    with writer(state, wait=wait, note=console.note):
        recover(read.repository)
        sizes = {folder: _size(folder) for _, _, folder in generations.all_kept(state)}
        gone = generations.trim(state, generations.history(state), read.keep if keep is None else keep)
    freed = sum(sizes[folder] for folder in gone)
    for folder in gone:
        console.say(f"removed {folder}")
    console.say(f"{size_text(freed)} freed" if gone else "nothing to remove")
    console.document({"removed": [str(folder) for folder in gone], "bytes": freed})
    return 0


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
