"""Remembered sha256 of files that have not changed since: a hint that saves reading them, never the truth.

A file is taken for unchanged while its device, inode, size, mtime and ctime are the same. What changed within
the last moments before it was hashed is not remembered: a later change could leave the same times.
"""

import atexit
import json
import os
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from repogen.cache import cache_folder

_RACY_NS = 2 * 10**9  # FAT counts in steps of two seconds, every other file system in finer ones
_LIMIT = 200_000
_FILE = "hashes.json"
_VERSION = 1

Hints = dict[str, list[int | str]]


def known(status: os.stat_result) -> str | None:
    """Return the sha256 of a file with this status, or None where it must be read."""
    row = _hints(cache_folder()).get(f"{status.st_dev}:{status.st_ino}")
    if row is None or row[:3] != [status.st_size, status.st_mtime_ns, status.st_ctime_ns]:
        return None
    return str(row[3])


def remember(status: os.stat_result, digest: str, *, now: int | None = None) -> None:
    """Remember the sha256 of a file, unless it changed so lately (or in the future) that its times say nothing."""
    now = time.time_ns() if now is None else now
    if max(status.st_mtime_ns, status.st_ctime_ns) + _RACY_NS > now:
        return
    hints = _hints(cache_folder())
    hints[f"{status.st_dev}:{status.st_ino}"] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest]
    _save_at_exit(cache_folder())


def save(folder: Path) -> None:
    """Write what is remembered, beside what other processes remembered meanwhile."""
    merged = _read(folder) | _hints(folder)
    newest = dict(list(merged.items())[-_LIMIT:])
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=_FILE, delete=False) as file:
            json.dump({"version": _VERSION, "hints": newest}, file, separators=(",", ":"))
        Path(file.name).replace(folder / _FILE)


@lru_cache
def _hints(folder: Path) -> Hints:
    return _read(folder)


def _read(folder: Path) -> Hints:
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((folder / _FILE).read_text())
        if stored["version"] == _VERSION:
            return dict(stored["hints"])
    return {}


@lru_cache
def _save_at_exit(folder: Path) -> None:
    atexit.register(save, folder)
