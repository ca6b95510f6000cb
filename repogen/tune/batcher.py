"""A simulation of Triton's dynamic batcher: which latencies a setting gives for given arrivals and service times.

Pure: the same input gives the same output. Time is in seconds. `jitter` holds factors by which the executions' service
times differ, taken in turn; given the same ones, candidates meet the same luck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import TYPE_CHECKING, Any

from repogen.tune.prefetch import run_prefetching
from repogen.tune.scheduler import Request, Scheduler
from repogen.tune.setting import Setting

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Cycles = Sequence[float] | Sequence[Sequence[float]]
"""Seconds that an instance is taken by a batch, by its size (index 0 is unused); for each shape where several."""


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their times; what is left out is 1 sample, one shape, no priority."""

    times: Sequence[float]
    sizes: Sequence[int] = ()
    shapes: Sequence[int] = ()
    priorities: Sequence[int] = ()

    @property
    def uniform(self) -> bool:
        return not (self.sizes or self.shapes or self.priorities)

    def requests(self) -> list[Request]:
        count = len(self.times)
        columns = (
            self.sizes or [1] * count,
            self.shapes or [0] * count,
            self.priorities or [0] * count,
        )
        return [Request(number, *row) for number, row in enumerate(zip(self.times, *columns, strict=True))]


@dataclass(frozen=True)
class Outcome:
    """What came of a simulation. A rejected request has a latency of NaN and the execution -1."""

    latencies: Array
    execution_of: Array
    sizes: Array  # samples of each execution
    seconds: float  # from the first arrival to the last answer

    @property
    def rejected(self) -> int:
        return int((self.execution_of < 0).sum())

    @property
    def histogram(self) -> dict[int, int]:
        return dict(sorted(Counter(self.sizes.tolist()).items()))

    @property
    def mean_batch(self) -> float:
        return float(self.sizes.mean()) if len(self.sizes) else 0.0

    def percentile(self, percent: float) -> float:
        """Return the nearest-rank percentile of the answered requests' latencies."""
        import numpy as np

        answered = np.sort(self.latencies[self.execution_of >= 0])
        rank = int(np.ceil(percent / 100 * len(answered) - 1e-9))
        return float(answered[max(rank, 1) - 1]) if len(answered) else float("nan")


def simulate(setting: Setting, workload: Workload, cycles: Cycles, jitter: Sequence[float] = (1.0,)) -> Outcome:
    """Return what `workload` meets under `setting`."""
    tables = _tables(cycles)
    if not workload.uniform or not setting.prefetches:
        scheduler = Scheduler(setting, tables, jitter)
        scheduler.run(workload.requests())
        return _collect(scheduler, workload.times, ordered=setting.preserve_ordering)
    times = list(workload.times)
    if setting.batching and setting.max_batch > 1:
        ends, finishes = run_prefetching(times, setting, tables[0], jitter)
    else:
        ends, finishes = list(range(1, len(times) + 1)), _one_by_one(times, setting.instances, tables[0][1], jitter)
    return _fold(times, ends, finishes, ordered=setting.preserve_ordering)


def closed_loop(
    setting: Setting,
    clients: int,
    count: int,
    cycles: Cycles,
    jitter: Sequence[float] = (1.0,),
    gaps: Sequence[float] = (0.0,),
) -> Outcome:
    """Return what `clients` meet that each send a request, wait for its answer, and send the next; `count` in all.

    `gaps` are what passes between a client and the server for a request, both ways together, taken in turn.
    """
    import itertools

    draw = itertools.cycle(gaps).__next__
    numbers = itertools.count(clients)
    sent: list[float] = [0.0] * clients

    def following(_request: Request, now: float) -> Request | None:
        number = next(numbers)
        if number >= count:
            return None
        sent.append(now + draw())
        return Request(number, sent[-1])

    scheduler = Scheduler(setting, _tables(cycles), jitter, following)
    scheduler.run([Request(number, 0.0) for number in range(clients)])
    return _collect(scheduler, sent, ordered=False)


def _tables(cycles: Cycles) -> Sequence[Sequence[float]]:
    first = cycles[0]
    return cycles if isinstance(first, Sequence) else (cycles,)  # type: ignore[return-value]


def _one_by_one(times: Sequence[float], instances: int, cycle: float, jitter: Sequence[float]) -> list[float]:
    """Return when each request is done where none is merged with another."""
    import itertools

    draw = itertools.cycle(jitter).__next__
    free = [0.0] * instances
    finishes = []
    for time in times:
        finish = max(time, free[0]) + cycle * draw()
        heapreplace(free, finish)
        finishes.append(finish)
    return finishes


def _fold(times: Sequence[float], ends: Sequence[int], finishes: Sequence[float], *, ordered: bool) -> Outcome:
    import numpy as np

    sizes = np.diff(np.array(ends, dtype=np.int64), prepend=0)
    done = np.repeat(np.array(finishes, dtype=float), sizes)
    came = np.array(times, dtype=float)
    if ordered:
        done = np.maximum.accumulate(done)
    seconds = float(done.max() - came[0]) if len(done) else 0.0
    return Outcome(done - came, np.repeat(np.arange(len(sizes)), sizes), sizes, seconds)


def _collect(scheduler: Scheduler, times: Sequence[float], *, ordered: bool) -> Outcome:
    import numpy as np

    came = np.array(times, dtype=float)
    done = np.full(len(came), np.nan)
    execution_of = np.full(len(came), -1, dtype=np.int64)
    for index, (_, finish, requests) in enumerate(scheduler.executions):
        for request in requests:
            done[request.number] = finish
            execution_of[request.number] = index
    if ordered:  # an answer is held back until those of all earlier requests are out
        done = np.where(np.isnan(done), np.nan, np.fmax.accumulate(done))
    sizes = np.array([sum(r.size for r in requests) for _, _, requests in scheduler.executions], dtype=np.int64)
    seconds = float(np.nanmax(done) - came[0]) if len(scheduler.executions) else 0.0
    return Outcome(done - came, execution_of, sizes, seconds)
