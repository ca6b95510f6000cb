"""Sizes that follow a distribution: `lognormal(320, 80)`, `uniform(1, 8)`, `choice(1*7, 8*3)`, or one number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from repogen.errors import RepogenError

if TYPE_CHECKING:
    import numpy as np

_FORM = re.compile(r"(?P<kind>[a-z]+)\((?P<parts>[^()]*)\)(?:\s+step\s+(?P<step>[1-9]\d*))?")
_PARAMETERS = {"uniform": "low, high", "normal": "mean, sd", "lognormal": "mean, sd", "choice": "value*weight, ..."}
_HINT = "320, uniform(low, high), normal(mean, sd), lognormal(mean, sd) or choice(1*7, 8*3), then maybe `step 32`"


@dataclass(frozen=True)
class Distribution:
    """Whole numbers: `kind` with its parameters; every draw is a multiple of `step`."""

    kind: str
    values: tuple[float, ...]
    weights: tuple[float, ...] = ()
    step: int = 1

    def quantile(self, part: float) -> float:
        """Return the value that `part` (0 to 1) of all draws do not exceed."""
        if self.kind == "choice":
            return self._chosen(part)
        one, two = self.values
        if self.kind == "uniform":  # the edges are drawn as often as what lies between
            return one - self.step / 2 + part * (two - one + self.step)
        normal = NormalDist().inv_cdf(min(max(part, 1e-9), 1 - 1e-9))
        if self.kind == "normal":
            return one + two * normal
        sigma = math.sqrt(math.log1p((two / one) ** 2))
        return math.exp(math.log(one) - sigma**2 / 2 + sigma * normal)

    def _chosen(self, part: float) -> float:
        total, reached = sum(self.weights), 0.0
        for value, weight in zip(self.values, self.weights, strict=True):
            reached += weight
            if part * total <= reached:
                return value
        return self.values[-1]

    def draw(self, count: int, rng: np.random.Generator, *, low: int = 1, high: int | None = None) -> list[int]:
        """Return `count` sizes from `low` to `high`, spread evenly over the distribution and then shuffled.

        Even a small pool has the distribution's mean and tails so, whatever the seed.
        """
        parts = (rng.permutation(count) + rng.random(count)) / count
        return [self._clipped(self.quantile(float(part)), low, high) for part in parts]

    def _clipped(self, value: float, low: int, high: int | None) -> int:
        size = round(value / self.step) * self.step
        if high is not None and size > high:
            size = high // self.step * self.step
        return max(size, -(-low // self.step) * self.step)


def parse(text: str, where: str) -> Distribution:
    """Read a distribution; RepogenError says what is wrong with it."""
    plain = text.strip()
    if plain.isdecimal() and int(plain) > 0:
        return Distribution("choice", (float(plain),), (1.0,))
    match = _FORM.fullmatch(plain)
    if match is None or match["kind"] not in _PARAMETERS:
        raise RepogenError(f"{text!r} is no distribution", where=where, hint=_HINT)
    step = int(match["step"] or 1)
    parts = [part.strip() for part in match["parts"].split(",")]
    try:
        made = _choice(parts, step) if match["kind"] == "choice" else _two(match["kind"], parts, step)
    except ValueError:
        hint = f"{match['kind']}({_PARAMETERS[match['kind']]})"
        raise RepogenError(f"the parameters of {text!r} are wrong", where=where, hint=hint) from None
    return made


def _choice(parts: Sequence[str], step: int) -> Distribution:
    pairs = [part.partition("*") for part in parts]
    values = tuple(float(value) for value, _, _ in pairs)
    weights = tuple(float(weight or 1) for _, _, weight in pairs)
    if min(values) < 1 or min(weights) <= 0:
        raise ValueError
    return Distribution("choice", values, weights, step)


def _two(kind: str, parts: Sequence[str], step: int) -> Distribution:
    one, two = (float(part) for part in parts)
    good = one <= two if kind == "uniform" else one > 0 and two >= 0
    if not good or not math.isfinite(one + two):
        raise ValueError
    return Distribution(kind, (one, two), step=step)
