"""How long a batch takes an instance, fitted from what closed-loop runs showed.

Triton's `batch_stats` tell the backend's time for each batch size. An instance is taken for longer: requests are
gathered, tensors copied, answers sent, the next batch fetched. Where an instance never waits for work, the pace of its
executions tells that whole cycle, and the difference is a time for each request and one for each batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repogen.errors import RepogenError
from repogen.tune.batcher import closed_loop
from repogen.tune.setting import Setting

_ENOUGH = 50
"""Executions that a batch size needs for its mean time to be believed, where others have them."""
_BUSY = 1.9
"""Clients for each sample in execution above which there is always another batch ready."""
_SPREADS = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
_DRAWS = 4096
_TRIED = 1500  # requests of each simulation by which the spread is fitted


@dataclass(frozen=True)
class Latencies:
    """What clients saw in one run, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class ClosedRun:
    """One closed-loop run: `batches` has (size, executions, mean seconds in the backend) from Triton's statistics."""

    setting: Setting
    clients: int
    seconds: float
    batches: tuple[tuple[int, int, float], ...]
    latencies: Latencies

    @property
    def executions(self) -> int:
        return sum(count for _, count, _ in self.batches)

    @property
    def samples(self) -> int:
        return sum(size * count for size, count, _ in self.batches)

    @property
    def busy(self) -> bool:
        """Whether an instance always found the next batch ready."""
        mean_batch = self.samples / max(self.executions, 1)
        waiting = self.clients >= max(2, _BUSY * mean_batch) * self.setting.instances
        return waiting and not self.setting.delay and self.executions > 0


@dataclass(frozen=True)
class Service:
    """The service times of one instance count.

    `infer`: (batch size, seconds in the backend); `per_request` and `per_batch`: what a cycle takes beyond; `spread`:
    relative standard deviation of a cycle; `gap`: quantiles of what passes between client and server, as
    (probability, seconds).
    """

    instances: int
    infer: tuple[tuple[int, float], ...]
    per_request: float
    per_batch: float
    spread: float = 0.0
    gap: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 0.0))
    scale: float = 1.0  # what confirmed trials corrected

    def cycles(self, max_batch: int) -> list[float]:
        """Return the seconds that a batch of each size takes an instance; index 0 is unused."""
        import numpy as np

        sizes, times = zip(*self.infer, strict=True)
        inside = np.interp(range(max_batch + 1), sizes, times)
        half = max(sizes[-1] // 2, 1)
        slope = (times[-1] - float(np.interp(half, sizes, times))) / max(sizes[-1] - half, 1)
        beyond = [max(size - sizes[-1], 0) * slope for size in range(max_batch + 1)]
        whole = [
            self.scale * (float(inside[size]) + beyond[size] + self.per_request * size + self.per_batch)
            for size in range(max_batch + 1)
        ]
        return [0.0, *whole[1:]]

    def jitter(self, seed: int, count: int = _DRAWS) -> list[float]:
        """Return factors with mean 1 by which cycles differ: the same ones for the same seed."""
        import numpy as np

        if not self.spread:
            return [1.0]
        sigma = math.sqrt(math.log1p(self.spread**2))
        draws = np.random.default_rng([seed, 1]).lognormal(-(sigma**2) / 2, sigma, count)
        return [float(draw) for draw in draws]

    def gaps(self, seed: int, count: int) -> Any:
        """Return seconds to add to each request's latency."""
        import numpy as np

        probabilities, seconds = zip(*self.gap, strict=True)
        return np.interp(np.random.default_rng([seed, 2]).uniform(size=count), probabilities, seconds)


@dataclass(frozen=True)
class Calibration:
    """The services of the instance counts that were tried, by the count."""

    services: Mapping[int, Service]

    def service(self, instances: int) -> Service:
        """Return the service of an instance count: as tried, or between its neighbours; never beyond them."""
        if instances in self.services:
            return self.services[instances]
        below = [count for count in self.services if count < instances]
        above = [count for count in self.services if count > instances]
        if not below or not above:
            known = ", ".join(map(str, sorted(self.services)))
            raise RepogenError(f"{instances} instances are outside what was calibrated: {known}")
        low, high = self.services[max(below)], self.services[min(above)]
        part = (instances - low.instances) / (high.instances - low.instances)
        return _between(low, high, part, instances)

    def covers(self, instances: int) -> bool:
        return min(self.services) <= instances <= max(self.services)

    def scaled(self, scales: Mapping[int, float]) -> Calibration:
        """Return the calibration with each service's `scale` set."""
        return Calibration({n: replace(s, scale=scales.get(n, s.scale)) for n, s in self.services.items()})


def calibrate(runs: Sequence[ClosedRun]) -> Service:
    """Fit the service of one instance count from closed-loop runs, one of them with a single client."""
    instances = {run.setting.instances for run in runs}
    alone = sorted((r for r in runs if r.clients == 1 and not r.setting.delay), key=lambda r: not r.setting.batching)
    if len(instances) != 1 or not alone or not any(run.busy for run in runs):
        raise RepogenError(
            "the calibration needs runs of one instance count: one with a single client, and busy ones without a delay"
        )
    infer = _infer_times(runs)
    per_request, per_batch = _overheads([run for run in runs if run.busy])
    bare = Service(instances.pop(), infer, per_request, per_batch)
    service = replace(bare, gap=_gap(alone[0].latencies, bare.cycles(1)[1]))
    return replace(service, spread=_spread(service, runs))


def _infer_times(runs: Sequence[ClosedRun]) -> tuple[tuple[int, float], ...]:
    """Return the mean time of each batch size: none shorter than a smaller one's, rare sizes left out."""
    totals: dict[int, tuple[int, float]] = {}
    for run in runs:
        for size, count, seconds in run.batches:
            before = totals.get(size, (0, 0.0))
            totals[size] = before[0] + count, before[1] + count * seconds
    enough = min(_ENOUGH, max(count for count, _ in totals.values()))
    blocks: list[tuple[float, float, list[int]]] = []  # (mean, weight, sizes), rising: pooled where they fall
    for size in sorted(totals):
        count, seconds = totals[size]
        if count < enough:
            continue
        block = (seconds / count, float(count), [size])
        while blocks and blocks[-1][0] > block[0]:
            mean, weight, sizes = blocks.pop()
            joint = weight + block[1]
            block = ((mean * weight + block[0] * block[1]) / joint, joint, sizes + block[2])
        blocks.append(block)
    return tuple((size, mean) for mean, _, sizes in blocks for size in sizes)


def _overheads(runs: Sequence[ClosedRun]) -> tuple[float, float]:
    """Return the seconds that a cycle takes beyond the backend, for each request and for each batch.

    In a busy run of T seconds N instances are taken all the time: N*T = backend + requests*A + executions*B.
    """
    import numpy as np

    taken = np.array([run.seconds * run.setting.instances for run in runs])
    backend = np.array([sum(count * seconds for _, count, seconds in run.batches) for run in runs])
    columns = np.array([(run.samples, run.executions) for run in runs], dtype=float)
    left, rest = columns / taken[:, None], 1 - backend / taken
    both, *_ = np.linalg.lstsq(left, rest, rcond=None)
    if (both >= 0).all() and len({tuple(np.round(row / row[1], 2)) for row in left}) > 1:
        return float(both[0]), float(both[1])
    # One of them would be negative: then all of it is the other's, whichever explains the runs better.
    fits = []
    for column in (0, 1):
        value = max(float(left[:, column] @ rest / (left[:, column] @ left[:, column])), 0.0)
        fits.append((float(((left[:, column] * value - rest) ** 2).sum()), column, value))
    _, column, value = min(fits)
    return (value, 0.0) if column == 0 else (0.0, value)


def _gap(seen: Latencies, cycle: float) -> tuple[tuple[float, float], ...]:
    """Return the quantiles of what a single client's requests take beyond their execution.

    The smallest is chosen so that the mean is right.
    """
    p50, p90, p99, top = (value - cycle for value in (seen.p50, seen.p90, seen.p99, seen.max))
    above = 0.4 * (p50 + p90) / 2 + 0.09 * (p90 + p99) / 2 + 0.01 * (p99 + top) / 2
    lowest = (seen.mean - cycle - above) / 0.25 - p50
    points = ((0.0, min(lowest, p50)), (0.5, p50), (0.9, p90), (0.99, p99), (1.0, top))
    return tuple((probability, max(value, 0.0)) for probability, value in points)


def _spread(service: Service, runs: Sequence[ClosedRun]) -> float:
    """Return the spread with which simulated closed loops show the P99 that was seen."""
    import numpy as np

    busy = [run for run in runs if run.busy]
    busy = sorted(busy, key=lambda run: run.clients)[:: max(len(busy) // 4, 1)]
    errors = []
    for spread in _SPREADS:
        tried = replace(service, spread=spread)
        total = 0.0
        for run in busy:
            gaps = tried.gaps(0, _TRIED)
            outcome = closed_loop(
                run.setting, run.clients, _TRIED, tried.cycles(run.setting.max_batch), tried.jitter(0), gaps.tolist()
            )
            settled = (outcome.latencies + gaps)[min(2 * run.clients, _TRIED // 2) :]
            total += abs(math.log(float(np.percentile(settled, 99)) / run.latencies.p99))
        errors.append((total, spread))
    return min(errors)[1]


def _between(low: Service, high: Service, part: float, instances: int) -> Service:
    def mix(one: float, other: float) -> float:
        return one + (other - one) * part

    sizes = sorted({size for size, _ in (*low.infer, *high.infer)})
    lows, highs = low.cycles(sizes[-1]), high.cycles(sizes[-1])
    gap = tuple((p, mix(a, b)) for (p, a), (_, b) in zip(low.gap, high.gap, strict=True))
    cycles = tuple((size, mix(lows[size], highs[size])) for size in sizes)
    return Service(instances, cycles, 0.0, 0.0, mix(low.spread, high.spread), gap)
