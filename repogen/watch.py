"""What tells whether a sync is worth its while: the manifest, and what lies beside each source."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from repogen.errors import RepogenError
from repogen.manifest import load_manifest
from repogen.newest import folders_of


def signature(manifest: Path) -> str:
    """Return another text whenever the manifest changed, or any file in a folder that a source lies in.

    A folder and not the file alone: weights, labels and samples lie there too. Nothing of it is read, a look at
    names, sizes and times is enough. What cannot be seen is part of it: it may come back.
    """
    digest = hashlib.sha256()
    with suppress(OSError):
        digest.update(manifest.read_bytes())
    for row in sorted(_rows(manifest)):
        digest.update(f"\0{row}".encode())
    return digest.hexdigest()


def _rows(manifest: Path) -> Iterator[str]:
    try:
        read = load_manifest(manifest)
    except RepogenError as error:
        yield str(error)
        return
    try:
        folders = {folder for name in read.models if read.models[name].source for folder in folders_of(read, name)}
    except RepogenError as error:
        yield str(error)
        return
    for folder in sorted(folders):
        yield from _remote(folder) if "://" in folder else _local(Path(folder))


def _local(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # gone meanwhile
                    status = entry.stat()
                    if entry.is_file():
                        yield f"{entry.path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    except OSError as error:
        yield f"{folder} {error.strerror}"


def _remote(parent: str) -> Iterator[str]:
    from repogen.remote_sources import seen

    try:
        yield from (f"{parent}/{name} {size} {token}" for name, size, token in seen(f"{parent}/any"))
    except RepogenError as error:
        yield f"{parent} {error.message}"
