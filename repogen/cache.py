"""Answers that cost time, kept in the user's cache folder by the content that they depend on."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Return `$REPOGEN_CACHE`, or `repogen` in the user's cache folder."""
    if chosen := os.environ.get("REPOGEN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "repogen"


def cached(kind: str, key: str, make: Callable[[], Any]) -> Any:
    """Return the remembered JSON value of `key`, or make and remember it; None is never remembered.

    A value that cannot be read, or a folder that cannot be written, only costs the time to make it again.
    """
    path = cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):
        stored = json.loads(path.read_text())
        if stored["key"] == key:
            return stored["value"]
    value = make()
    if value is not None:
        with suppress(OSError):
            _write(path, json.dumps({"key": key, "value": value}))
    return value


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
