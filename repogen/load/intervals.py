"""How far a percentile can be trusted: an interval by block bootstrap, and when it is tight enough to stop; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Array = np.ndarray[Any, Any]

BEYOND = 10
"""Samples that are expected above a percentile before it is given."""
_BLOCKS = 40
_RESAMPLES = 200
_GOAL = re.compile(r"p(\d{1,2}(?:\.\d+)?)\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%", re.IGNORECASE)


@dataclass(frozen=True)
class Goal:
    """A run may end when the interval of `percent` is within `tolerance` (0.05: 5 %) of it."""

    percent: Fraction
    tolerance: float


def parse_goal(text: str) -> Goal:
    match = _GOAL.fullmatch(text.strip())
    if match is None or not 0 < Fraction(match[1]) < 100 or float(match[2]) <= 0:  # noqa: PLR2004 - percent
        raise RepogenError(f"{text!r} says no precision", where="--until", hint="p99±5% (or p99+-5%)")
    return Goal(Fraction(match[1]), float(match[2]) / 100)


def percentile(ordered: Sequence[int] | Array, percent: Fraction | int | str) -> int:
    """Return the nearest-rank percentile: the smallest sample that `percent` of all samples do not exceed."""
    rank = ceil(Fraction(percent) * len(ordered) / 100)
    return int(ordered[max(rank, 1) - 1])


def enough(percent: Fraction | int | str) -> int:
    """Return how many samples a percentile needs, so that ten of them are expected above it: 1,000 for P99."""
    return ceil(BEYOND * 100 / (100 - Fraction(percent)))


def interval(values: Array, percent: Fraction | int | str) -> tuple[float, float]:
    """Return the 95 % interval of a percentile of `values`, which are in the order in which they came about.

    Latencies that follow each other share a batch, a queue, a pause: whole stretches of the run are drawn again,
    never single samples. The same values give the same interval.
    """
    import numpy as np

    blocks = min(_BLOCKS, len(values))
    order = np.argsort(values, kind="stable")
    ordered, block_of = values[order], (order * blocks // len(values)).astype(np.int32)
    sizes = np.bincount(block_of, minlength=blocks)
    rng = np.random.default_rng(0)
    part = float(Fraction(percent) / 100)
    found = []
    for _ in range(_RESAMPLES):
        times = np.bincount(rng.integers(0, blocks, blocks), minlength=blocks)
        reached = np.cumsum(times[block_of], dtype=np.int64)
        found.append(float(ordered[np.searchsorted(reached, part * int(times @ sizes) - 1e-9)]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def is_reached(goal: Goal, values: Array) -> bool:
    """Return whether enough samples give the percentile as closely as the goal wants it."""
    import numpy as np

    if len(values) < enough(goal.percent):
        return False
    low, high = interval(values, goal.percent)
    return (high - low) / 2 <= goal.tolerance * percentile(np.sort(values), goal.percent)
