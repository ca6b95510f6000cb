"""Trials on a live server: calibration runs and open-loop runs, each with its setting in an override of the config."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.load import payload
from repogen.load.intervals import enough, interval, percentile
from repogen.load.metrics import latencies, result
from repogen.load.process import Generator
from repogen.load.samples import Samples
from repogen.load.spec import Spec
from repogen.triton import Client, Statistics
from repogen.tune.override import put, setting_of, with_setting
from repogen.tune.service import ClosedRun, Latencies
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal, Measured

if TYPE_CHECKING:
    import numpy as np

    Requests = Sequence[Mapping[str, np.ndarray[Any, Any]]]

_S = 1e-9
_READY = 60.0
_WARM_UP = 1.0
_SETTLE = 0.3  # seconds after which a new number of clients counts
_LEVEL = 2.0  # seconds that a number of clients is measured
_APART = 4  # each batch size of the calibration is so many times the one before
_TAIL = 40  # requests that are expected beyond the percentile in a run
_SHORTEST, _LONGEST = 6.0, 60.0
_DEADLINE = 30.0


@dataclass(frozen=True)
class Bench:
    """A borrowed model on a server, and what is sent to it."""

    client: Client
    original: Any  # its ModelConfig
    payloads: Path
    folder: Path
    arrivals: str
    goal: Goal

    @property
    def model(self) -> str:
        return str(self.original.name)

    def apply(self, setting: Setting) -> None:
        """Let the server run the setting, if it does not yet."""
        if setting_of(self.client.config(self.model)) != setting:
            put(self.client, with_setting(self.original, setting))

    def seconds(self, rate: float) -> float:
        """Return how long a run must be for its percentile to mean something."""
        wanted = max(_TAIL * 100 / (100 - self.goal.percentile), enough(Fraction(str(self.goal.percentile))))
        return min(max(wanted / rate, _SHORTEST), _LONGEST)

    def measure(self, setting: Setting, rate: float) -> Measured:
        """Make one open-loop run."""
        self.apply(setting)
        spec = Spec(
            url=self.client.url,
            model=self.model,
            folder=str(self.folder),
            name=f"run-{secrets.token_hex(4)}",
            payloads=str(self.payloads),
            arrivals=self.arrivals,
            rate=rate,
            warm_up=_WARM_UP,
            duration=self.seconds(rate),
            deadline=_DEADLINE,
            seed=secrets.randbits(31),
        )
        generator = Generator(spec)
        try:
            generator.wait_ready(_READY)
            samples = generator.finish(spec.warm_up + spec.duration + spec.deadline + _READY)
        finally:
            generator.close()
        return folded(samples, self.goal)

    def calibrate(self, setting: Setting) -> list[ClosedRun]:
        """Load one instance count with more and more clients that wait; one run, a level for each number of them."""
        self.apply(setting)
        spec = Spec(
            url=self.client.url,
            model=self.model,
            folder=str(self.folder),
            name=f"calibration-{secrets.token_hex(4)}",
            payloads=str(self.payloads),
            users=1,
            warm_up=_WARM_UP,
            deadline=_DEADLINE,
        )
        generator = Generator(spec)
        try:
            generator.wait_ready(_READY)
            _wait(lambda: bool(generator.began or generator.ended), _READY)
            windows = [self._level(generator, clients) for clients in levels(setting)]
            generator.say("stop")
            samples = generator.finish(_DEADLINE + _READY)
        finally:
            generator.close()
        return [_closed_run(setting, window, samples) for window in windows]

    def _level(self, generator: Generator, clients: int) -> _Window:
        generator.say(f"users {clients}")
        time.sleep(_SETTLE)
        before, begin = self.client.statistics(self.model), time.perf_counter_ns()
        time.sleep(_LEVEL)
        after, end = self.client.statistics(self.model), time.perf_counter_ns()
        return _Window(clients, begin, end, after - before)


@dataclass(frozen=True)
class _Window:
    clients: int
    begin: int  # of the clock that all processes share
    end: int
    statistics: Statistics


def levels(setting: Setting) -> list[int]:
    """Return the numbers of clients of a calibration: one, then so many that each size always finds another ready."""
    sizes = []
    size = 1
    while size < setting.max_batch:
        sizes.append(size)
        size *= _APART
    return [1, *(2 * setting.instances * size for size in (*sizes, setting.max_batch))]


def folded(samples: Samples, goal: Goal) -> Measured:
    """Return what a run says of the goal's percentile."""
    import numpy as np

    seen = result([samples])
    taken = latencies([samples])
    percent = Fraction(str(goal.percentile))
    reasons = list(seen.verdict.reasons)
    if len(taken) < enough(percent):
        reasons.append(f"{goal.name} needs {enough(percent)} answers, there were {len(taken)}")
    if not len(taken):
        return Measured(float("inf"), 0.0, float("inf"), valid=False, reason="; ".join(reasons))
    low, high = interval(taken, percent)
    ordered = np.sort(taken)
    missed = "the rate was missed by more than 2 %"
    overloaded = reasons and all(missed in reason for reason in reasons)  # by the server: that is an answer
    return Measured(
        latency=percentile(ordered, percent) * _S,
        low=low * _S,
        high=high * _S,
        valid=not reasons or bool(overloaded),
        reason="; ".join(reasons),
        requests=len(taken),
        seconds=seen.summary.seconds,
        rate=seen.summary.rate,
        median=percentile(ordered, 50) * _S,
        mean_batch=seen.served.mean_batch,
        batches=tuple(seen.served.batches),
    )


def save_payloads(path: Path, requests: Requests) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    payload.save(path, requests)
    return path


def _closed_run(setting: Setting, window: _Window, samples: Samples) -> ClosedRun:
    """Return one level: the server's executions between its two questions, and its clients' latencies."""
    import numpy as np

    inside = (samples.sent >= window.begin) & (samples.done <= window.end) & (samples.status == 0)
    taken = np.sort((samples.done - samples.sent)[inside]) * _S
    rows = tuple((row.size, row.count, row.compute_infer_ns / row.count * _S) for row in window.statistics.batches)
    p50, p90, p99 = (float(taken[min(int(part * len(taken)), len(taken) - 1)]) for part in (0.5, 0.9, 0.99))
    seen = Latencies(float(taken.mean()), p50, p90, p99, float(taken[-1]))
    return ClosedRun(setting, window.clients, (window.end - window.begin) * _S, rows, seen)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def calibration_setting(base: Setting, instances: int) -> Setting:
    """Return what a calibration runs: no delay, so that an instance is never idle while requests wait."""
    return replace(base, instances=instances, delay=0, preferred=(), batching=True)
