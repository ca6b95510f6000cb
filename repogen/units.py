"""Durations and sizes as people write them, with a unit."""

import re

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)$")
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB|TiB)$")
_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def microseconds(text: object) -> int:
    """Return the microseconds of a duration such as `2ms`; ValueError says what is wrong."""
    match = _DURATION.match(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 500us, 2ms or 10s")
    value = float(match[1]) * _MICROSECONDS[match[2]]
    if value != int(value):
        raise ValueError(f"{text!r} is finer than a microsecond, the unit that Triton knows")
    return int(value)


def duration_text(value: int) -> str:
    """Return `value` microseconds in the largest unit that keeps it whole."""
    for unit, factor in (("s", 1_000_000), ("ms", 1_000)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}us" if value else "0ms"


def size_bytes(text: object) -> int:
    """Return the bytes of a size such as `4GiB`; ValueError says what is wrong."""
    match = _SIZE.match(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 512MiB or 4GiB")
    return int(float(match[1]) * _BYTES[match[2]])


def size_text(value: int) -> str:
    """Return `value` bytes for people: `4.7 MB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} B"
