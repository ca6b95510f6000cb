"""Files as content: hash, copy, and the version folder's file list."""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from repogen import hash_hints
from repogen.errors import RepogenError
from repogen.model import ModelFile

_BLOCK = 2**19  # it stays in the processor's cache: twice as much was slower, and so was a quarter
_CHUNK = 4 * 2**20
_LARGE = 8 * 2**20  # a thread costs more than it brings below
_CANNOT = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)
_SENT = 32 * 2**20
_SYNC_FILE_RANGE_WRITE = 2
_FICLONE = 0x40049409


def sha256(path: Path) -> str:
    """Return the sha256 of a file: read in blocks, or remembered where nothing of it changed since."""
    found = hash_hints.known(path.stat())
    if found is not None:
        return found
    with path.open("rb", buffering=0) as file:
        begun, before = time.time_ns(), os.fstat(file.fileno())
        digest = _hashed(file)
        if _times(os.fstat(file.fileno())) == _times(before):
            hash_hints.remember(before, digest, now=begun)
    return digest


def model_file(name: str, source: Path) -> ModelFile:
    return ModelFile(name, source, sha256(source), source.stat().st_size)


def copy_synced(source: Path, target: Path) -> str:
    """Copy a file's content, mode 0644 whatever the umask, force it to the disk; return the sha256 of the copy.

    The file system shares the blocks where it can (a reflink), and the copy stays a file of its own: ONNX
    refuses weights that have a second name.
    """
    with source.open("rb", buffering=0) as read, target.open("x+b", buffering=0) as write:
        found = _hashed(write) if _reflinked(read, write) else _copied(read, write)
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


def _hashed(file: Any) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_BLOCK, os.fstat(file.fileno()).st_size + 1)))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def _copied(read: Any, write: Any) -> str:
    """Copy all of `read`; return the sha256 of what was written."""
    if os.fstat(read.fileno()).st_size >= _LARGE:
        found = _copied_inside(read, write)
        if found is not None:
            return found
    digest = hashlib.sha256()
    while block := read.read(_BLOCK):
        digest.update(block)
        _write_all(write, memoryview(block))
    return digest.hexdigest()


def _copied_inside(read: Any, write: Any) -> str | None:
    """Let the kernel copy while a thread hashes the copy where it lies; None, nothing written, where it does not.

    Neither the bytes nor their hash pass through a buffer of ours: of two threads that share a processor's core each
    copy in memory is felt.
    """
    source, target, size = read.fileno(), write.fileno(), os.fstat(read.fileno()).st_size
    digest = hashlib.sha256()
    os.ftruncate(target, size)
    with (
        mmap.mmap(target, size, prot=mmap.PROT_READ) as copy,
        memoryview(copy) as view,
        ThreadPoolExecutor(1) as hasher,
        ThreadPoolExecutor(1) as sender,
    ):
        there = sent = 0
        parts = []
        while there < size:
            try:
                count = os.copy_file_range(source, target, min(_CHUNK, size - there))
            except OSError as error:
                if there or error.errno not in _CANNOT:
                    raise
                os.ftruncate(target, 0)
                return None
            if not count:  # the source was cut short meanwhile: whoever knows its hash will say so
                os.ftruncate(target, there)
                break
            parts.append(hasher.submit(_hash_part, digest, view, there, count))
            there += count
            if there - sent >= _SENT:
                sender.submit(_send, target, sent, there - sent)
                sent = there
        for part in parts:
            part.result()
    return digest.hexdigest()


def _hash_part(digest: Any, view: memoryview, start: int, count: int) -> None:
    with view[start : start + count] as part:
        digest.update(part)


def _send(descriptor: int, start: int, size: int) -> None:
    """Let the disk begin with what is written, so that `fsync`, which alone counts, finds little left to wait for."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


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
