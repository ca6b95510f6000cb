"""One writer per repository: a lock that the kernel frees when its owner dies, however it dies."""

import errno
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from repogen.errors import Locked, RepogenError

_PAUSE = 0.05
_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)


@contextmanager
def writer(state: Path, *, wait: float = 0.0, note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock of the repository whose state folder is `state` while the block runs.

    The file is never removed: two runs would lock two different ones. Raises Locked, naming the owner, when
    another run holds it for longer than `wait` seconds.
    """
    path = state / "lock"
    descriptor = _opened(path)
    try:
        _acquire(descriptor, path, wait, note)
        _sign(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        hint = "sync writes beside the repository: the folder over it must be writable too"
        raise RepogenError(f"cannot be written: {error.strerror}", where=str(path), hint=hint) from None


def _acquire(descriptor: int, path: Path, wait: float, note: Callable[[str], None]) -> None:
    deadline = time.monotonic() + wait
    told = False
    while not _taken(descriptor, path):
        if time.monotonic() >= deadline:
            hint = "wait for it, or give --wait SECONDS; the lock frees itself when that process ends"
            raise Locked(f"another run writes this repository: {_owner(path)}", where=str(path.parent), hint=hint)
        if not told:
            note(f"waiting for {_owner(path)}")
            told = True
        time.sleep(_PAUSE)


def _taken(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RepogenError(f"cannot be locked: {error.strerror}", where=str(path)) from None
        message = f"this file system has no locks ({error.strerror}), so a second writer could not be kept out"
        hint = "put the repository and the folder over it on a local disk, or on NFS 4"
        raise RepogenError(message, where=str(path), hint=hint) from None
    return True


def _sign(descriptor: int, path: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(signature()).encode(), 0)
    except OSError as error:
        raise RepogenError(f"cannot be written: {error.strerror}", where=str(path)) from None


def signature() -> dict[str, str | int]:
    """Return who this process is, as a lock tells it to others."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"user": user, "pid": os.getpid(), "host": socket.gethostname(), "started": started}


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text())
        here = owner["host"] == socket.gethostname()
        if here and not Path("/proc", str(owner["pid"])).exists():  # the note of an earlier owner
            return "a run that has just begun"
        return f"{owner['user']}, process {owner['pid']} on {owner['host']}, since {owner['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a run that has just begun"
