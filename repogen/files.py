"""Files as content: hash, copy, and the version folder's file list."""

import errno
import fcntl
import hashlib
import os
import shutil
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from repogen import hash_hints
from repogen.errors import RepogenError
from repogen.model import ModelFile

_BLOCK = 2**19  # with this size hashing was fastest: it stays in the processor's cache
_CHUNK = 8 * 2**20  # what the kernel copies at a time
_SENT = 256 * 2**20  # what is written before the disk is told to begin
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.EPERM)
_FICLONE = 0x40049409
_NOTHING: Future[None] = Future()
_NOTHING.set_result(None)


def sha256(path: Path) -> str:
    """Return the sha256 of a file: read in blocks, or remembered where nothing of it changed since."""
    found = hash_hints.known(path.stat())
    if found is not None:
        return found
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        begun, before = time.time_ns(), os.fstat(file.fileno())
        _hash_part(file.fileno(), 0, sys.maxsize, digest)
        if _times(os.fstat(file.fileno())) == _times(before):
            hash_hints.remember(before, digest.hexdigest(), now=begun)
    return digest.hexdigest()


def model_file(name: str, source: Path) -> ModelFile:
    return ModelFile(name, source, sha256(source), source.stat().st_size)


def copy_synced(source: Path, target: Path) -> str:
    """Copy a file's content, mode 0644 whatever the umask, force it to the disk; return the sha256 of the copy.

    The file system shares the blocks where it can (a reflink), and the copy stays a file of its own: ONNX
    refuses weights that have a second name.
    """
    with source.open("rb", buffering=0) as read, target.open("x+b", buffering=0) as write:
        if _reflinked(read, write):
            digest = hashlib.sha256()
            _hash_part(write.fileno(), 0, sys.maxsize, digest)
            found = digest.hexdigest()
        else:
            found = _copied(read, write)
        _finish(write)
    return found


def write_synced(target: Path, content: bytes) -> None:
    """Write a new file, mode 0644 whatever the umask, and force it to the disk."""
    with target.open("xb", buffering=0) as write:
        _write_all(write, memoryview(content))
        _finish(write)


def replace_synced(target: Path, text: str) -> None:
    """Write a text file in one step: readers see the old or the new one, also after a power cut."""
    temporary = target.with_name(f"{target.name}.new")
    with suppress(FileNotFoundError):
        temporary.unlink()
    write_synced(temporary, text.encode())
    temporary.replace(target)
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Force a folder's own entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _times(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reflinked(read: Any, write: Any) -> bool:
    try:
        fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        return False
    return True


def _copied(read: Any, write: Any) -> str:
    """Copy all of `read`, and hash what arrives.

    Hashing takes longer than copying, so for a large file it is done in a thread of its own, close enough behind
    that it reads from the processor's cache; another one sends to the disk what is there already.
    """
    digest = hashlib.sha256()
    if os.fstat(read.fileno()).st_size < _CHUNK:
        while block := read.read(_BLOCK):
            digest.update(block)
            _write_all(write, memoryview(block))
        return digest.hexdigest()
    there = sent = 0
    with ThreadPoolExecutor(1) as hasher, ThreadPoolExecutor(1) as sender:
        hashing = sending = _NOTHING
        while count := _moved(read, write):
            hashing.result()
            hashing = hasher.submit(_hash_part, write.fileno(), there, there + count, digest)
            there += count
            if there - sent >= _SENT and sending.done():
                sending.result()
                sending, sent = sender.submit(os.fdatasync, write.fileno()), there
        hashing.result()
        sending.result()
    return digest.hexdigest()


def _moved(read: Any, write: Any) -> int:
    """Copy the next part, in the kernel where it can; return its size, 0 at the end."""
    try:
        if count := os.copy_file_range(read.fileno(), write.fileno(), _CHUNK):
            return count
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    block = read.read(_BLOCK)
    _write_all(write, memoryview(block))
    return len(block)


def _hash_part(descriptor: int, start: int, end: int, digest: Any) -> None:
    """Add what a file holds from `start` on to a digest, to `end` or its own end."""
    buffer = memoryview(bytearray(min(_BLOCK, end - start, os.fstat(descriptor).st_size + 1)))
    while start < end and (count := os.preadv(descriptor, [buffer[: end - start]], start)):
        digest.update(buffer[:count])
        start += count


def _write_all(write: Any, block: memoryview) -> None:
    while block:
        block = block[write.write(block) :]


def _finish(file: BinaryIO | Any) -> None:
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; [] where there is none. Unlike glob it raises for what it may not read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are what is wanted
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RepogenError(f"cannot be read: {error.strerror}", where=str(folder)) from None


def text_of(path: Path) -> str:
    """Return what a text file holds, "" where there is none."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise RepogenError(f"cannot be read: {error.strerror}", where=str(path)) from None


def remove(path: Path) -> None:
    """Remove a folder with all that it holds, or a link to one; nothing where there is nothing."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
