"""`repogen gc`: remove what nobody returns to, and keep the caches within bounds."""

from pathlib import Path

from repogen.console import Console
from repogen.units import size_text


def gc(manifest: Path, *, keep: int | None, wait: float, dry_run: bool, cache_size: int, console: Console) -> int:
    from repogen import build_cache, remote_sources
    from repogen.lock_file import read_lock
    from repogen.manifest import load_manifest
    from repogen.places import place_of

    read = load_manifest(manifest)
    place = place_of(read.root)
    locked = {entry["key"] for entry in read_lock(manifest).values()}
    gone: list[tuple[str, int]] = []
    if place.latest(read.root) is not None or place.needs_recovery(read.root):
        # Under the lock nothing that another run is working with can be taken for a leftover.
        with place.writer(read.root, wait=wait, note=console.note):
            if not dry_run:
                place.recover(read.root)
            gone += place.trim(read.root, read.keep if keep is None else keep, dry=dry_run)
    plans = build_cache.collect(cache_size, keep=locked, dry=dry_run)
    gone += [(str(build_cache.plans_folder() / row.key), row.size) for row in plans]
    gone += remote_sources.collect(cache_size, dry=dry_run)
    freed = sum(size for _, size in gone)
    verb = "would remove" if dry_run else "removed"
    for name, size in gone:
        console.say(f"{verb} {name}" + (f" ({size_text(size)})" if size else ""))
    outcome = "would be freed" if dry_run else "freed"
    console.say(f"{size_text(freed)} {outcome}" if gone else "nothing to remove")
    console.document({"removed": [name for name, _ in gone], "bytes": freed, "dry_run": dry_run})
    return 0
