"""When requests are due: constant, poisson, burst, ramp, or a recorded trace; pure, and endless unless recorded."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CLOSED = "closed"
_BLOCK = 0.25
"""Seconds that are planned at a time: a change of rate takes effect after at most as long."""
_FORM = re.compile(r"(?P<kind>burst|ramp)\((?P<one>[\d.]+)\s*,\s*(?P<two>[\d.]+)\)")
_HINT = "constant, poisson, burst(ON_SECONDS, OFF_SECONDS), ramp(FROM_RATE, SECONDS), or trace:FILE.csv"
_S = 1e9


@dataclass(frozen=True)
class Arrivals:
    """How requests arrive. `closed` waits for answers and has no schedule."""

    kind: str
    values: tuple[float, ...] = ()
    file: str = ""

    @property
    def scheduled(self) -> bool:
        return self.kind != CLOSED


@dataclass(frozen=True)
class Block:
    """The next requests: nanoseconds from the start at which each is due, and which payload (None: in turn).

    Until `end` there are no others.
    """

    due: Array
    payload: Array | None = None
    end: int = 0


def parse(text: str) -> Arrivals:
    """Read what `--arrivals` says; RepogenError says what is wrong."""
    plain = text.strip()
    if plain in (CLOSED, "constant", "poisson"):
        return Arrivals(plain)
    if plain.startswith("trace:") and len(plain) > len("trace:"):
        return Arrivals("trace", file=plain.removeprefix("trace:"))
    match = _FORM.fullmatch(plain)
    if match is None:
        raise RepogenError(f"{text!r} is no way to arrive", where="--arrivals", hint=_HINT)
    one, two = float(match["one"]), float(match["two"])
    if two <= 0 or (match["kind"] == "burst" and one <= 0):
        raise RepogenError(f"{text!r}: seconds must be above 0", where="--arrivals", hint=_HINT)
    return Arrivals(match["kind"], (one, two))


def schedule(arrivals: Arrivals, rate: Callable[[], float], seed: int) -> Iterator[Block]:
    """Yield block after block; `rate`, in requests a second, is asked before each."""
    import numpy as np

    if arrivals.kind == "trace":
        yield read_trace(Path(arrivals.file))
        return
    rng = np.random.default_rng(seed)
    phase = 1.0  # of the next request: it is due when this reaches 1
    for begin, end, factor in _spans(arrivals):
        amount = _rate(arrivals, (begin + end) / 2, rate()) * factor * (end - begin)
        if arrivals.kind == "poisson":
            marks = np.sort(rng.random(rng.poisson(amount))) * amount
        else:
            marks = np.arange(1.0 - phase, amount, 1.0)
            phase += amount - len(marks)
        share = marks / amount if amount else marks
        yield Block(np.round((begin + share * (end - begin)) * _S).astype(np.int64), end=round(end * _S))


def _spans(arrivals: Arrivals) -> Iterator[tuple[float, float, float]]:
    """Yield spans of time of even arrivals: begin, end, and how many times the rate is on in it."""
    pattern: tuple[tuple[float, float], ...] = ((_BLOCK, 1.0),)
    if arrivals.kind == "burst":
        on, off = arrivals.values
        pattern = ((on, (on + off) / on), (off, 0.0))  # the mean over both is the rate that was asked for
    begin = 0.0
    while True:
        for seconds, factor in pattern:
            pieces = math.ceil(seconds / _BLOCK)
            for piece in range(pieces):
                yield begin + seconds * piece / pieces, begin + seconds * (piece + 1) / pieces, factor
            begin += seconds


def _rate(arrivals: Arrivals, at: float, rate: float) -> float:
    if arrivals.kind != "ramp":
        return rate
    start, seconds = arrivals.values
    return start + (rate - start) * min(at / seconds, 1.0)


def read_trace(path: Path) -> Block:
    """Read a CSV of timestamps in seconds, one request a line; a second column names its payload by number."""
    import numpy as np

    due, payload = [], []
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if not row or (number == 1 and not _is_number(row[0])):
                    continue
                due.append(float(row[0]))
                payload.append(int(row[1]) if len(row) > 1 and row[1].strip() else -1)
    except OSError as error:
        raise RepogenError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise RepogenError(f"line {number}: {error}", where=str(path), hint="seconds, then maybe a number") from None
    if not due:
        raise RepogenError("has no timestamps", where=str(path), hint="seconds, one request a line")
    times = np.round((np.array(due) - min(due)) * _S).astype(np.int64)
    order = np.argsort(times, kind="stable")
    chosen = np.array(payload, dtype=np.int64)[order]
    return Block(times[order], chosen if (chosen >= 0).all() else None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
