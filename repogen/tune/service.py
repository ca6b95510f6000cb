"""How long a batch takes an instance, fitted from what calibration runs showed.

Triton's `batch_stats` tell the backend's time for each batch size. An instance is taken for longer: requests are
gathered, tensors copied, answers sent, the next batch fetched. Where an instance never waits for work, the pace of its
executions tells that whole cycle, and the difference is a time for each request and one for each batch.

Clients that wait for their answers leave the server alone while it works; requests on a schedule do not, and cores are
shared. So cycles under a light and under a heavy open load are some per cent longer or shorter: by what makes the
simulation of the very requests that were sent show what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from repogen.errors import RepogenError
from repogen.tune.batcher import Workload, closed_loop, simulate
from repogen.tune.setting import Setting

_ENOUGH, _FEW = 50, 5
"""Executions that a batch size needs for its mean time to be believed: of a fast model many, of a slow one a few."""
_BUSY = 1.9
"""Clients for each sample in execution above which there is always another batch ready."""
_SPREADS = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
_SCALES = tuple(1.03**step for step in range(-12, 25))
_TAIL_COUNTS = 0.5  # as much as the median, P90 and the batches: one pause of the machine can decide a P99
_DRAWS = 4096
_TRIED = 1500  # requests of each simulation by which the spread is fitted
_GAP_AT = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


Corrections = tuple[tuple[float, float], ...]
"""Factors of the cycles by rising rate; between two it is on their line, and beyond as at the last."""


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
class OpenRun:
    """One run on a schedule: `due` are the seconds at which requests were due; their latencies count from there."""

    setting: Setting
    due: tuple[float, ...]
    batches: tuple[tuple[int, int, float], ...]
    latencies: Latencies

    @property
    def rate(self) -> float:
        return len(self.due) / (self.due[-1] - self.due[0])

    @property
    def mean_batch(self) -> float:
        return sum(size * count for size, count, _ in self.batches) / sum(count for _, count, _ in self.batches)


@dataclass(frozen=True)
class Load:
    """How cycles are at an open load: `scale` times as long, with a spread of their own."""

    rate: float
    scale: float
    spread: float


@dataclass(frozen=True)
class Service:
    """The service times of one instance count.

    `infer`: (batch size, seconds in the backend); `per_request` and `per_batch`: what a cycle takes beyond; `spread`:
    relative standard deviation of a cycle; `gap`: quantiles of what passes between client and server, as
    (probability, seconds); `loads`: what differs under open loads, by rising rate; `corrections`: what confirmed trials
    say beside that. `at` a rate both are in `scale` and `spread`.
    """

    instances: int
    infer: tuple[tuple[int, float], ...]
    per_request: float
    per_batch: float
    spread: float = 0.0
    gap: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 0.0))
    scale: float = 1.0
    loads: tuple[Load, ...] = ()
    corrections: Corrections = ()

    def at(self, rate: float) -> Service:
        """Return the service at an open load: on the line through those that were tried, and not beyond the last.

        More load never makes work shorter: where it seems to, the mean of both is taken.
        """
        import numpy as np

        scale, spread = self.scale, self.spread
        if self.loads:
            low, high = self.loads[0], self.loads[-1]
            place = min((max(rate, 0.0) - low.rate) / max(high.rate - low.rate, 1e-9), 1.0)
            rise = max(high.scale - low.scale, 0.0)
            middle = (low.scale + high.scale) / 2
            scale *= max(middle + rise * (place - 0.5), _SCALES[0])
            spread = low.spread + (high.spread - low.spread) * max(place, 0.0)
        if self.corrections:
            rates, factors = zip(*self.corrections, strict=True)
            scale *= float(np.interp(rate, rates, factors))
        return replace(self, scale=scale, spread=spread, loads=(), corrections=())

    def cycles(self, max_batch: int, each: float = 1.0) -> list[float]:
        """Return the seconds that a batch of each size takes an instance; index 0 is unused.

        `each`: samples of a request in the mean.
        """
        import numpy as np

        sizes, times = zip(*self.infer, strict=True)
        inside = np.interp(range(max_batch + 1), sizes, times)
        half = max(sizes[-1] // 2, 1)
        slope = (times[-1] - float(np.interp(half, sizes, times))) / max(sizes[-1] - half, 1)
        beyond = [max(size - sizes[-1], 0) * slope for size in range(max_batch + 1)]
        whole = [
            self.scale * (float(inside[size]) + beyond[size] + self.per_request * size / each + self.per_batch)
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

    def corrected(self, by: Mapping[int, Corrections]) -> Calibration:
        """Return the calibration with the corrections of each service set."""
        return Calibration({n: replace(s, corrections=by.get(n, ())) for n, s in self.services.items()})


def calibrate(runs: Sequence[ClosedRun | OpenRun]) -> Service:
    """Fit the service of one instance count: closed-loop runs, one with a single client, and open ones if there are."""
    closed = [run for run in runs if isinstance(run, ClosedRun)]
    loads = sorted((run for run in runs if isinstance(run, OpenRun)), key=lambda run: run.rate)
    service = _unloaded(closed)
    return replace(service, loads=tuple(_load(service, run) for run in loads))


def _unloaded(runs: Sequence[ClosedRun]) -> Service:
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
    most = max(count for count, _ in totals.values())
    enough = min(max(most // 20, _FEW), _ENOUGH, most)
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

    Beyond P90 they go on as those of a normal distribution do: the few hundred requests of a calibration show there
    what else the machine did meanwhile, and each prediction would carry it.
    """
    p50 = seen.p50 - cycle
    step = (seen.p90 - seen.p50) / NormalDist().inv_cdf(0.9)
    points = ((p, p50 + step * NormalDist().inv_cdf(min(max(p, 0.01), 0.999))) for p in _GAP_AT)
    return tuple((probability, max(value, 0.0)) for probability, value in points)


def _spread(service: Service, runs: Sequence[ClosedRun]) -> float:
    """Return the spread with which simulated closed loops show the P90 that was seen.

    Not the P99: where many clients wait for their answers, one pause of the machine delays all of them, and decides it.
    """
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
            total += abs(math.log(float(np.percentile(settled, 90)) / run.latencies.p90))
        errors.append((total, spread))
    return min(errors)[1]


def _load(service: Service, run: OpenRun) -> Load:
    """Return by how much cycles differ under this load: what makes its simulation most alike."""
    import numpy as np

    workload = Workload(run.due)
    gaps = service.gaps(0, len(run.due))
    seen = run.latencies

    def unlike(scale: float, spread: float) -> float:
        tried = replace(service, scale=scale, spread=spread)
        outcome = simulate(run.setting, workload, tried.cycles(run.setting.max_batch), tried.jitter(0))
        p50, p90, p99 = np.percentile(outcome.latencies + gaps, (50, 90, 99))
        pairs = ((p50, seen.p50), (p90, seen.p90), (outcome.mean_batch, run.mean_batch))
        return sum(abs(math.log(one / other)) for one, other in pairs) + _TAIL_COUNTS * abs(math.log(p99 / seen.p99))

    _, scale = min((unlike(scale, service.spread), scale) for scale in _SCALES)
    near = [scale * step for step in (0.94, 0.97, 1.0, 1.03, 1.06)]
    _, scale, spread = min((unlike(scale, spread), scale, spread) for scale in near for spread in _SPREADS)
    return Load(run.rate, scale, spread)


def _between(low: Service, high: Service, part: float, instances: int) -> Service:
    def mix(one: float, other: float) -> float:
        return one + (other - one) * part

    sizes = sorted({size for size, _ in (*low.infer, *high.infer)})
    lows, highs = low.cycles(sizes[-1]), high.cycles(sizes[-1])
    gap = tuple((p, mix(a, b)) for (p, a), (_, b) in zip(low.gap, high.gap, strict=True))
    cycles = tuple((size, mix(lows[size], highs[size])) for size in sizes)
    loads = tuple(
        Load(mix(a.rate, b.rate), mix(a.scale, b.scale), mix(a.spread, b.spread))
        for a, b in zip(low.loads, high.loads, strict=False)
    )
    return Service(instances, cycles, 0.0, 0.0, mix(low.spread, high.spread), gap, loads=loads)
