"""Service times from an open-loop run whose rate rises: what requests met, simulated with the very same arrivals.

A closed loop that keeps every instance busy also keeps the cores busy, and then times are found that no lighter load
sees. Here most of what counts is light.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError
from repogen.tune.batcher import Workload, simulate
from repogen.tune.service import Service, pooled_times
from repogen.tune.setting import Setting

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_COMPARED = (25, 50, 75, 90, 95, 98)  # percentiles; those beyond are luck in a few seconds
_GAP_AT = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
_TOP = 0.995  # the largest gap: beyond it the machine stood still
_SPREADS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.25)
_BEYOND = (-0.08, -0.04, 0.0, 0.04, 0.08, 0.16)
"""What a batch may take beyond the statistics, as parts of one sample's time: answers overlap with the next batch."""
_WAKES = (0.0, 0.04, 0.08, 0.12, 0.16, 0.2)
"""What an idle instance may take to wake up, as parts of the same."""
_NEAR_FULL = 0.7  # of the capacity: beyond it luck and the load on the cores decide
_QUICK = 0.1
_FEW = 20


@dataclass(frozen=True)
class Level:
    """A while at one rate: `batches` has (size, executions, mean seconds by Triton's statistics).

    `due` and `latencies` are those of each request, in seconds. `full`: the instances were never idle.
    """

    setting: Setting
    rate: float
    seconds: float
    batches: tuple[tuple[int, int, float], ...]
    due: tuple[float, ...]
    latencies: tuple[float, ...]
    full: bool = False

    @property
    def executions(self) -> int:
        return sum(count for _, count, _ in self.batches)

    @property
    def samples(self) -> int:
        return sum(size * count for size, count, _ in self.batches)


def fit(levels: Sequence[Level]) -> Service:
    """Fit the service of one instance count."""
    import numpy as np

    counts = {level.setting.instances for level in levels}
    light = [level for level in levels if not level.full and len(level.due) >= _FEW]
    if len(counts) != 1 or not light:
        raise RepogenError("the calibration needs levels of one instance count, and one that the server follows")
    times = _times(levels)
    bare = Service(counts.pop(), times, _per_request(levels), 0.0)
    alone = _alone(light)
    steady = _steady(light, bare)
    unit = times[0][1]
    # The quickest answers met an instance that had to wake up, too.
    quick = float(np.quantile(alone, _QUICK)) - bare.cycles(1)[1]
    tried = (
        _with(bare, batch * unit, wake * unit, spread, alone)
        for batch in _BEYOND
        for wake in _WAKES
        for spread in _SPREADS
        if not wake or batch + wake <= quick / unit
    )
    return min(tried, key=lambda service: _distance(service, steady))


def _times(levels: Sequence[Level]) -> tuple[tuple[int, float], ...]:
    """Return the mean time of each batch size; where the server is overrun, only of those that nothing else shows."""
    light = [row for level in levels if not level.full for row in level.batches]
    seen: Counter[int] = Counter()
    for size, count, _ in light:
        seen[size] += count
    rest = [row for level in levels if level.full for row in level.batches if seen[row[0]] < _FEW]
    return pooled_times([*light, *rest], enough=_FEW)


def _per_request(levels: Sequence[Level]) -> float:
    """Return what a request takes an instance beyond the statistics, where the instances were never idle."""
    full = [level for level in levels if level.full and level.samples]
    taken = sum(level.seconds * level.setting.instances for level in full)
    told = sum(count * seconds for level in full for _, count, seconds in level.batches)
    return max((taken - told) / sum(level.samples for level in full), 0.0) if full else 0.0


def _with(bare: Service, per_batch: float, wake: float, spread: float, alone: Array) -> Service:
    """Return the service with its gap: what requests that met no other took beyond their own cycle."""
    import numpy as np

    service = replace(bare, per_batch=per_batch, spread=spread, wake=wake)
    beyond = np.maximum(alone - service.cycles(1)[1] - wake, 0.0)
    points = [*zip(_GAP_AT, np.quantile(beyond, _GAP_AT), strict=True), (1.0, np.quantile(beyond, _TOP))]
    return replace(service, gap=tuple((at, float(seconds)) for at, seconds in points))


def _alone(levels: Sequence[Level]) -> Array:
    """Return the latencies of the requests that no other was beside; the quickest where there are too few."""
    import numpy as np

    found = []
    for level in levels:
        due, taken = np.array(level.due), np.array(level.latencies)
        before = np.concatenate([[-math.inf], np.maximum.accumulate(due + taken)[:-1]])
        after = np.concatenate([due[1:], [math.inf]])
        found.append(taken[(before < due) & (after > due + taken)])
    alone = np.concatenate(found)
    if len(alone) >= _FEW:
        return alone
    everyone = np.sort(np.array(levels[0].latencies))
    return everyone[: max(len(everyone) // 2, 1)]


def _steady(light: Sequence[Level], service: Service) -> Sequence[Level]:
    """Return the levels well below what full batches serve; the lightest at least."""
    setting = light[0].setting
    cycles = service.cycles(setting.max_batch)
    sizes = range(1, setting.max_batch + 1) if setting.batching else (1,)
    limit = setting.instances * max(size / cycles[size] for size in sizes)
    return [level for level in light if level.rate <= _NEAR_FULL * limit] or light[:1]


def _distance(service: Service, levels: Sequence[Level]) -> float:
    """Return how far simulated percentiles and batches are from those that were seen, as a mean of logarithms."""
    import numpy as np

    total = 0.0
    for number, level in enumerate(levels):
        cycles = service.cycles(level.setting.max_batch)
        outcome = simulate(level.setting, Workload(level.due), cycles, service.jitter(number), service.wake)
        seen = outcome.latencies + service.gaps(number, len(level.due))
        told = np.percentile(seen, _COMPARED) / np.percentile(level.latencies, _COMPARED)
        formed = outcome.mean_batch * level.executions / max(level.samples, 1)
        total += float(np.abs(np.log([*told, formed])).mean())
    return total / len(levels)
