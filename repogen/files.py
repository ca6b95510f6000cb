"""Files as content: hash, copy, and the version folder's file list."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from repogen.model import ModelFile

_BLOCK = 2**20


def sha256(path: Path) -> str:
    """Return the sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def model_file(name: str, source: Path) -> ModelFile:
    return ModelFile(name, source, sha256(source), source.stat().st_size)


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file's content, mode 0644 whatever the umask, and force it to the disk."""
    with source.open("rb") as read, target.open("xb") as write:
        shutil.copyfileobj(read, write, _BLOCK)
        _finish(write)


def write_synced(target: Path, content: bytes) -> None:
    """Write a new file, mode 0644 whatever the umask, and force it to the disk."""
    with target.open("xb") as write:
        write.write(content)
        _finish(write)


def sync_folder(path: Path) -> None:
    """Force a folder's own entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())
