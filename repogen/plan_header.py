"""Read the first bytes of a TensorRT plan, without TensorRT."""

import struct
from dataclasses import dataclass
from pathlib import Path

_TENSORRT, _RTX = b"ftrt", b"vtrt"
_LENGTH = 28


@dataclass(frozen=True)
class PlanHeader:
    """What a plan says of itself. `problem` says why it is none, and all else is then empty.

    `version` is that of the TensorRT (or TensorRT-RTX) that wrote it; `declared` is the size that it had then.
    """

    problem: str = ""
    rtx: bool = False
    version: tuple[int, ...] = ()
    declared: int = 0
    size: int = 0


def read_header(path: Path) -> PlanHeader:
    """Return the header of the plan at `path`: magic, format, size, and the version that wrote it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH)
    if head.startswith(b"version https"):
        return PlanHeader("it is a Git LFS pointer, not the plan itself")
    if head[:4] not in (_TENSORRT, _RTX):
        return PlanHeader("it does not begin as a plan of TensorRT 8.6 or later" if size else "it is empty (0 bytes)")
    if len(head) < _LENGTH:
        return PlanHeader("it was cut short inside its header")
    serialization, declared = struct.unpack_from("<I", head, 4)[0], struct.unpack_from("<Q", head, 16)[0]
    if serialization != 0:
        return PlanHeader(f"its format is {serialization}, which no TensorRT up to 11.4 writes")
    return PlanHeader("", head[:4] == _RTX, tuple(head[24:28]), declared, size)


def header_bytes(version: tuple[int, int, int, int], *, rtx: bool = False, size: int = _LENGTH) -> bytes:
    """Return what a plan of `version` with `size` bytes begins with."""
    return struct.pack("<4sI8xQ4B", _RTX if rtx else _TENSORRT, 0, size, *version)
