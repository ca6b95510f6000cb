"""Predictions: what the simulator says of a setting, given a calibration and how requests come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from repogen.tune.arrivals import Arrivals
from repogen.tune.batcher import Outcome, Workload, simulate
from repogen.tune.service import Calibration, Corrections
from repogen.tune.setting import Setting

COARSE = 2500
"""Simulated requests with which the whole grid is looked at."""
FINE = 20_000
"""Simulated requests of a prediction that is compared with a measurement."""
_STEPS = 9
_FULL = 0.985  # of what full batches serve: beyond it a queue grows for as long as the load lasts


@dataclass(frozen=True)
class Mix:
    """How many samples requests have: (size, its part of all requests)."""

    sizes: tuple[tuple[int, float], ...] = ((1, 1.0),)

    @property
    def mean(self) -> float:
        return sum(size * part for size, part in self.sizes)

    def draw(self, count: int, seed: int) -> Sequence[int]:
        import numpy as np

        if self.sizes == ((1, 1.0),):
            return ()
        sizes, parts = zip(*self.sizes, strict=True)
        drawn = np.random.default_rng([seed, 3]).choice(sizes, count, p=parts)
        return [int(size) for size in drawn]


@dataclass(frozen=True)
class Forecast:
    """What one setting is predicted to do at one rate; latencies in seconds."""

    setting: Setting
    rate: float
    latency: float  # at the goal's percentile
    median: float
    mean_batch: float
    busy: float  # part of the time that the instances are taken: small batches can take all of it
    load: float  # the rate as a part of what full batches could serve
    histogram: dict[int, int] = field(hash=False)

    @property
    def steady(self) -> bool:
        return self.load < _FULL


@dataclass(frozen=True)
class Predictor:
    """A calibration with an arrival process: the same luck for every setting."""

    calibration: Calibration
    arrivals: Arrivals = field(default_factory=Arrivals)
    percentile: float = 99.0
    mix: Mix = field(default_factory=Mix)
    seed: int = 0

    @cached_property
    def _known(self) -> dict[tuple[Setting, float, int], Forecast]:
        return {}

    def at(self, setting: Setting, rate: float, requests: int = FINE) -> Forecast:
        key = (setting, rate, requests)
        if key not in self._known:
            self._known[key] = self._simulated(setting, rate, requests)
        return self._known[key]

    def capacity(self, setting: Setting, slo: float, requests: int = FINE, steps: int = _STEPS) -> float:
        """Return the highest rate whose percentile is within `slo`; 0 where none is."""
        low, high = 0.0, self.ceiling(setting)
        for _ in range(steps):
            rate = (low + high) / 2
            if self.at(setting, rate, requests).latency <= slo:
                low = rate
            else:
                high = rate
        return low

    def ceiling(self, setting: Setting) -> float:
        """Return the rate at which the instances are taken all the time by the batches that serve most."""
        cycles = self.calibration.service(setting.instances).at(math.inf).cycles(setting.max_batch, self.mix.mean)
        largest = setting.max_batch if setting.batching else 1
        best = max(size / cycles[size] for size in range(1, largest + 1))
        return setting.instances * best / self.mix.mean

    @cached_property
    def _variants(self) -> dict[tuple[tuple[int, Corrections], ...], Predictor]:
        return {}

    def corrected(self, by: Mapping[int, Corrections]) -> Predictor:
        """Return the predictor with the services' corrections set; the same one for the same corrections."""
        key = tuple(sorted(by.items()))
        if key not in self._variants:
            self._variants[key] = replace(self, calibration=self.calibration.corrected(by))
        return self._variants[key]

    def outcome(self, setting: Setting, rate: float, requests: int) -> tuple[Outcome, list[float]]:
        """Return the simulation and the latencies that clients would see."""
        service = self.calibration.service(setting.instances).at(rate)
        times = self.arrivals.draw(rate, requests, self.seed).tolist()
        workload = Workload(times, sizes=self.mix.draw(requests, self.seed))
        outcome = simulate(
            setting, workload, service.cycles(setting.max_batch, self.mix.mean), service.jitter(self.seed)
        )
        return outcome, sorted((outcome.latencies + service.gaps(self.seed, requests))[outcome.execution_of >= 0])

    def _simulated(self, setting: Setting, rate: float, requests: int) -> Forecast:
        outcome, seen = self.outcome(setting, rate, requests)
        cycles = self.calibration.service(setting.instances).at(rate).cycles(setting.max_batch, self.mix.mean)
        taken = sum(cycles[size] * count for size, count in outcome.histogram.items())

        def rank(percent: float) -> float:
            return seen[max(math.ceil(percent / 100 * len(seen) - 1e-9), 1) - 1] if seen else math.inf

        busy = taken / (setting.instances * outcome.seconds) if outcome.seconds else 0.0
        load = rate / self.ceiling(setting)
        return Forecast(
            setting, rate, rank(self.percentile), rank(50.0), outcome.mean_batch, busy, load, outcome.histogram
        )
