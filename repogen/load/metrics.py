"""Raw samples folded into the figures that people read; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from repogen.load import observe
from repogen.load.arrivals import CLOSED
from repogen.load.intervals import enough, interval, percentile
from repogen.load.samples import Conditions, Samples
from repogen.load.served import Served, serve
from repogen.load.verdict import Verdict, judge

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_MS = 1e-6  # of a nanosecond
_S = 1e-9
PERCENTILES = {"p50": "50", "p90": "90", "p95": "95", "p99": "99", "p999": "99.9", "p9999": "99.99"}


@dataclass(frozen=True)
class Summary:
    """What the clients saw. Latencies are in milliseconds, from the instant a request was due to its last answer.

    Those of answered requests only. A percentile that the number of samples cannot carry is None (see `enough`).
    """

    requests: int
    errors: int
    seconds: float
    rate: float
    inferences: float  # samples a second
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    p9999: float | None
    max: float | None
    p99_low: float | None = None  # where P99 lies at 95 %
    p99_high: float | None = None
    first_p50: float | None = None  # to the first answer, of models that answer more than once
    first_p99: float | None = None
    lateness_p50: float = 0.0
    lateness_p99: float = 0.0
    failures: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One model under one load: what the clients saw, what the server did, whether it can be believed."""

    model: str
    users: int
    batch: str
    arrivals: str
    target_rate: float
    summary: Summary
    served: Served
    verdict: Verdict
    conditions: tuple[Conditions, ...] = ()

    @property
    def load(self) -> str:
        """The load in words: `8 users`, `200/s poisson`."""
        if self.arrivals == CLOSED:
            return f"{self.users} user{'s' * (self.users != 1)}"
        return f"{self.target_rate:g}/s {self.arrivals}" if self.target_rate else self.arrivals.rpartition("/")[2]


def result(samples: Sequence[Samples]) -> Result:
    """Fold the samples that the processes of one run took."""
    told = [part.conditions for part in samples]
    seen = summarise(samples)
    observed = [observe.from_json(part.server) for part in samples]
    # Each process asked the same server; the first whose question was answered speaks for all.
    observation = next((one for one in observed if one.statistics), observed[0])
    users = sum(one.users for one in told)
    target = sum(one.rate for one in told)
    shapes = max(one.shapes for one in told)
    served = serve(observation, arrivals=told[0].arrivals, users=users, rate=seen.rate, shapes=shapes)
    return Result(
        model=told[0].model,
        users=users,
        batch=told[0].batch,
        arrivals=told[0].arrivals,
        target_rate=target,
        summary=seen,
        served=served,
        verdict=judge(
            samples, observation, p99=_rough_p99(samples), lateness=seen.lateness_p99, failures=seen.failures
        ),
        conditions=tuple(told),
    )


def latencies(samples: Sequence[Samples]) -> Array:
    """Return the nanoseconds of every measured request that was answered, in the order in which they were due."""
    import numpy as np

    chosen = [(part, part.measured & (part.status == 0)) for part in samples]
    none = np.array([], dtype=np.int64)
    due = np.concatenate([none, *(part.intended[keep] + part.conditions.epoch for part, keep in chosen)])
    taken = np.concatenate([none, *((part.done - part.intended)[keep] for part, keep in chosen)])
    ordered: Array = taken[np.argsort(due, kind="stable")]
    return ordered


def summarise(samples: Sequence[Samples]) -> Summary:
    """Fold the samples of one run; failed requests are counted, and lend their latency to no figure."""
    import numpy as np

    taken = latencies(samples)
    ordered = np.sort(taken)
    ok = len(ordered)
    requests = sum(int(part.measured.sum()) for part in samples)
    windows = [_window(part) for part in samples]
    rate = sum(_answered(part) / window for part, window in zip(samples, windows, strict=True) if window)
    inferences = sum(
        int(part.batch[part.measured & (part.status == 0)].sum()) / window
        for part, window in zip(samples, windows, strict=True)
        if window
    )
    figures: dict[str, Any] = {
        **{name: _percentile(ordered, percent) for name, percent in PERCENTILES.items()},
        **_interval(taken),
        **_first(samples),
        **_lateness(samples),
    }
    return Summary(
        requests=requests,
        errors=requests - ok,
        seconds=max(windows, default=0.0),
        rate=rate,
        inferences=inferences,
        mean=float(ordered.mean()) * _MS if ok else None,
        max=int(ordered[-1]) * _MS if ok else None,
        **figures,
        failures=tuple(_failures(samples).most_common()),
        notes=_notes(ok),
    )


def _percentile(ordered: Array, percent: Fraction | str) -> float | None:
    return percentile(ordered, percent) * _MS if len(ordered) >= enough(percent) else None


def _rough_p99(samples: Sequence[Samples]) -> float | None:
    """Return the P99 of however few samples there are: good enough to hold lateness against."""
    import numpy as np

    taken = np.sort(latencies(samples))
    return percentile(taken, "99") * _MS if len(taken) else None


def _answered(part: Samples) -> int:
    return int((part.measured & (part.status == 0)).sum())


def _window(part: Samples) -> float:
    """Return how many seconds a process measured; of one that was killed, as far as its samples go."""
    told = part.conditions
    begin = told.begin or (int(part.intended.min()) if len(part.intended) else 0)
    end = told.end or (int(part.done.max()) if len(part.done) else begin)
    return max(end - begin, 0) * _S


def _interval(taken: Array) -> dict[str, float]:
    if len(taken) < enough("99"):
        return {}
    low, high = interval(taken, "99")
    return {"p99_low": low * _MS, "p99_high": high * _MS}


def _first(samples: Sequence[Samples]) -> dict[str, float | None]:
    import numpy as np

    streamed = [part for part in samples if part.conditions.stream]
    if not streamed:
        return {}
    firsts = [(part.first - part.intended)[part.measured & (part.status == 0)] for part in streamed]
    ordered = np.sort(np.concatenate(firsts))
    return {"first_p50": _percentile(ordered, "50"), "first_p99": _percentile(ordered, "99")}


def _lateness(samples: Sequence[Samples]) -> dict[str, float]:
    import numpy as np

    none = np.array([], dtype=np.int64)
    late = np.sort(np.concatenate([none, *((part.sent - part.intended)[part.measured] for part in samples)]))
    if not len(late):
        return {}
    return {f"lateness_p{p}": percentile(late, p) * _MS for p in (50, 99)}


def _failures(samples: Sequence[Samples]) -> Counter[str]:
    failures: Counter[str] = Counter()
    for part in samples:
        failures.update(part.failures)
    return failures


def _notes(ok: int) -> tuple[str, ...]:
    missing = [p for p in ("50", "90", "95", "99") if ok < enough(p)]
    return tuple(f"no P{p}: it needs {enough(p):,} answered requests, there were {ok:,}" for p in missing)
