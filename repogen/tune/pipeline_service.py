"""What runs of a whole pipeline say of its steps: how long each takes, and by how much more under load.

A lone client tells how long each step takes by itself, many at a time how that grows with the batch. Requests on a
schedule share the machine with one another: Triton's statistics of each step tell by how much it is slower then, and
what clients saw tells how much executions differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from repogen.tune.pipeline import Level, Pipeline, Stage, Traffic
from repogen.tune.service import Latencies, Service
from repogen.tune.setting import Setting

Batches = tuple[tuple[int, int, float], ...]
"""(samples, executions, mean seconds) of one step."""

_FEW = 8  # executions that a batch size needs for its time to be believed
_SPREADS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
_SCALES = tuple(1.03**step for step in range(-6, 13))
_TAIL_COUNTS = 0.5
_GAP_AT = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class Seen:
    """One run of the whole: `due` (seconds) of requests on a schedule, none of clients that wait for their answers."""

    settings: tuple[Setting, ...]
    batches: tuple[Batches, ...]
    latencies: Latencies
    clients: int = 0
    due: tuple[float, ...] = ()
    first: int = 0  # the place in the pool of the first request that was due

    @property
    def rate(self) -> float:
        return len(self.due) / (self.due[-1] - self.due[0])


def calibrated(stages: tuple[Stage, ...], traffic: tuple[Traffic, ...], runs: Sequence[Seen]) -> Pipeline:
    """Fit a pipeline: runs of one client and of many, all with the same settings, and some on a schedule."""
    closed = sorted((run for run in runs if run.clients), key=lambda run: run.clients)
    services = tuple(
        {run_settings.instances: Service(run_settings.instances, _times([run.batches[number] for run in closed]), 0, 0)}
        for number, run_settings in enumerate(closed[0].settings)
    )
    bare = Pipeline(stages, traffic, services, ())
    known = replace(bare, gap=_gap(closed[0].latencies, _paths(bare, closed[0].settings)))
    loads = sorted((run for run in runs if run.due), key=lambda run: run.rate)
    return replace(known, levels=tuple(_level(known, run) for run in loads))


def _times(runs: Sequence[Batches]) -> tuple[tuple[int, float], ...]:
    """Return the seconds of each batch size: as one client has them, those of larger batches in proportion."""
    alone = {size: seconds for size, _, seconds in _enough(runs[0])}
    found = dict(alone)
    for rows in runs[1:]:
        times = {size: seconds for size, _, seconds in _enough(rows)}
        both = sorted(alone.keys() & times.keys())
        ratio = alone[both[-1]] / times[both[-1]] if both else 1.0
        found = {**{size: seconds * ratio for size, seconds in times.items()}, **found}
    rising, longest = [], 0.0
    for size, seconds in sorted(found.items()):
        longest = max(longest, seconds)
        rising.append((size, longest))
    return tuple(rising)


def _enough(rows: Batches) -> Batches:
    most = max(count for _, count, _ in rows)
    return tuple(row for row in rows if row[1] >= min(_FEW, most))


def _paths(pipeline: Pipeline, settings: Sequence[Setting]) -> list[float]:
    """Return the seconds that the slowest way through the steps takes each request of the pool that is alone."""
    found = []
    for place in range(max(len(traffic.sizes) for traffic in pipeline.traffic)):
        ends: list[float] = []
        for number, stage in enumerate(pipeline.stages):
            traffic, setting = pipeline.traffic[number], settings[number]
            size = traffic.sizes[place % len(traffic.sizes)]
            cycle = pipeline.service(number, setting.instances).cycles(size, traffic.mean_size)[size]
            waits = setting.delay * 1e-6 if setting.batching and size < setting.sizes[0] else 0.0
            weight = traffic.weights[traffic.shapes[place % len(traffic.shapes)]]
            ends.append(max((ends[before] for before in stage.after), default=0.0) + waits + cycle * weight)
        found.append(max(ends))
    return found


def _gap(seen: Latencies, paths: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return what a lone client's requests take beyond their steps.

    The middle may be negative: a step answers before its instance is free again, and the next one begins meanwhile.
    What requests differ by themselves is taken out of the spread.
    """
    import numpy as np

    p50, p90 = np.percentile(paths, (50, 90))
    differ = math.sqrt(max((seen.p90 - seen.p50) ** 2 - float(p90 - p50) ** 2, 0.0))
    step = differ / NormalDist().inv_cdf(0.9)
    middle = seen.p50 - float(p50)
    return tuple((p, middle + step * NormalDist().inv_cdf(min(max(p, 0.01), 0.999))) for p in _GAP_AT)


def _level(pipeline: Pipeline, run: Seen) -> Level:
    """Return how the steps were under this load: each as slow as the server says, the rest as clients saw it."""
    import numpy as np

    told = tuple(_slower(pipeline, run, number) for number in range(len(pipeline.stages)))
    times = np.array(run.due)
    seen = run.latencies

    def unlike(scale: float, spread: float) -> float:
        level = Level(run.rate, tuple(one * scale for one in told), spread)
        found = pipeline.latencies(run.settings, times, run.rate, first=run.first, level=level)
        p50, p90, p99 = np.percentile(found, (50, 90, 99))
        pairs = ((p50, seen.p50), (p90, seen.p90))
        return sum(abs(math.log(a / b)) for a, b in pairs) + _TAIL_COUNTS * abs(math.log(p99 / seen.p99))

    _, scale = min((unlike(scale, 0.15), scale) for scale in _SCALES)
    near = [scale * step for step in (0.94, 0.97, 1.0, 1.03, 1.06)]
    _, scale, spread = min((unlike(one, spread), one, spread) for one in near for spread in _SPREADS)
    return Level(run.rate, tuple(one * scale for one in told), spread)


def _slower(pipeline: Pipeline, run: Seen, number: int) -> float:
    """Return how many times as long a step's executions took as they would have alone, by the server's statistics."""
    rows = run.batches[number]
    service = pipeline.service(number, run.settings[number].instances)
    cycles = service.cycles(max(size for size, _, _ in rows))
    took = sum(count * seconds for _, count, seconds in rows)
    return took / sum(count * cycles[size] for size, count, _ in rows)


def with_instances(pipeline: Pipeline, number: int, served: int, found: Mapping[int, float]) -> Pipeline:
    """Add a step's times with other numbers of instances, `found` by itself: in proportion to those as it is served."""
    base = pipeline.service(number, served)
    known = {
        count: replace(
            base, instances=count, infer=tuple((size, one * took / found[served]) for size, one in base.infer)
        )
        for count, took in found.items()
    }
    services = (*pipeline.services[:number], known, *pipeline.services[number + 1 :])
    return replace(pipeline, services=services)
