"""Put a folder in another's place in one step."""

import ctypes
import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the kernel or the file system cannot. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if not libc.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def can_exchange(scratch: Path) -> bool:
    """Return whether folders can be swapped where `scratch`, a new and empty one, lies."""
    scratch.mkdir(parents=True, exist_ok=True)
    one, other = Path(tempfile.mkdtemp(dir=scratch)), Path(tempfile.mkdtemp(dir=scratch))
    try:
        return exchange(one, other)
    finally:
        one.rmdir()
        other.rmdir()
        with suppress(OSError):  # another run's
            scratch.rmdir()


def is_mount_point(folder: Path | str) -> bool:
    """Return whether something is mounted at `folder`, a part of the same file system included."""
    place = os.path.realpath(folder)
    if os.path.ismount(place):
        return True
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # The fifth field is where; blanks in it are written \040.
    return any(place == line.split()[4].encode().decode("unicode_escape") for line in lines)
