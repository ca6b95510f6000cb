"""Trials on a live server: calibration runs and open-loop runs, each with its setting in an override of the config."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError
from repogen.load import payload
from repogen.load.intervals import enough, interval, percentile
from repogen.load.metrics import latencies, result
from repogen.load.process import Generator
from repogen.load.samples import Samples
from repogen.load.spec import Spec
from repogen.triton import Client, Statistics
from repogen.tune.override import put, setting_of, with_setting
from repogen.tune.service import ClosedRun, Latencies, OpenRun
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal, Measured

if TYPE_CHECKING:
    import numpy as np

    Requests = Sequence[Mapping[str, np.ndarray[Any, Any]]]

_S = 1e-9
_READY = 60.0
_WARM_UP = 1.0
_SETTLE = 0.5  # seconds after which a new load counts: the generator plans a quarter of a second ahead
_LEVEL = 1.5  # seconds that a number of clients is measured at the least
_LONGER = ((4.0, 40), (15.0, 5))  # and so many more for so many executions, of a slow model and of a very slow one
_OPEN = (0.3, 0.65)  # loads on a schedule, as parts of what closed loops reached
_OPEN_REQUESTS, _OPEN_SECONDS = 400, (4.0, 10.0)
_APART = 4  # each batch size of the calibration is so many times the one before
_UNSURE = 1.8  # the ends of the interval of a run in which the machine did something else
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

    def calibrate(self, setting: Setting) -> list[ClosedRun | OpenRun]:
        """Load one instance count with more and more clients that wait, then with two open loads."""
        self.apply(setting)
        with self._generating(setting, users=1) as generator:
            windows = [self._level(generator, f"users {clients}", _LEVEL, _LONGER) for clients in levels(setting)]
            samples = self._ended(generator)
        closed = [_closed_run(setting, *row, samples) for row in zip(levels(setting), windows, strict=True)]
        rates = [part * max(run.samples / run.seconds for run in closed) for part in _OPEN]
        with self._generating(setting, arrivals="poisson", rate=rates[0]) as generator:
            windows = [self._level(generator, f"rate {rate}", _open_seconds(rate)) for rate in rates]
            samples = self._ended(generator)
        return [*closed, *(_open_run(setting, window, samples) for window in windows)]

    @contextmanager
    def _generating(self, setting: Setting, **load: Any) -> Iterator[Generator]:
        spec = Spec(
            url=self.client.url,
            model=self.model,
            folder=str(self.folder),
            name=f"calibration-{setting.instances}-{secrets.token_hex(4)}",
            payloads=str(self.payloads),
            warm_up=_WARM_UP,
            deadline=_DEADLINE,
            seed=secrets.randbits(31),
            **load,
        )
        generator = Generator(spec)
        try:
            generator.wait_ready(_READY)
            _wait(lambda: bool(generator.began or generator.ended), _READY)
            yield generator
        finally:
            generator.close()

    def _ended(self, generator: Generator) -> Samples:
        generator.say("stop")
        return generator.finish(_DEADLINE + _READY)

    def _level(
        self, generator: Generator, load: str, seconds: float, longer: Sequence[tuple[float, int]] = ()
    ) -> _Window:
        generator.say(load)
        time.sleep(_SETTLE)
        before, begin = self.client.statistics(self.model), time.perf_counter_ns()
        while True:
            time.sleep(seconds)
            seen, end = self.client.statistics(self.model) - before, time.perf_counter_ns()
            done, spent = sum(row.count for row in seen.batches), (end - begin) * _S
            if not any(spent < most and done < executions for most, executions in longer):
                return _Window(begin, end, seen)


@dataclass(frozen=True)
class _Window:
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
    overloaded = bool(reasons) and all(missed in reason for reason in reasons)  # by the server: that is an answer
    if high > _UNSURE * low and not overloaded and not _decides(goal, low * _S, high * _S):
        reasons.append(f"{goal.name} lies anywhere from {low * 1e-6:.1f} to {high * 1e-6:.1f} ms")
    return Measured(
        latency=percentile(ordered, percent) * _S,
        low=low * _S,
        high=high * _S,
        valid=not reasons or overloaded,
        reason="; ".join(reasons),
        requests=len(taken),
        seconds=seen.summary.seconds,
        rate=seen.summary.rate,
        median=percentile(ordered, 50) * _S,
        mean_batch=seen.served.mean_batch,
        batches=tuple(seen.served.batches),
    )


def _decides(goal: Goal, low: float, high: float) -> bool:
    """Return whether an interval, however wide, is on one side of the objective."""
    return goal.slo is not None and (high <= goal.slo or low > goal.slo)


def save_payloads(path: Path, requests: Requests) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    payload.save(path, requests)
    return path


def _open_seconds(rate: float) -> float:
    return min(max(_OPEN_REQUESTS / rate, _OPEN_SECONDS[0]), _OPEN_SECONDS[1])


def _closed_run(setting: Setting, clients: int, window: _Window, samples: Samples) -> ClosedRun:
    """Return one level: the server's executions between its two questions, and its clients' latencies."""
    settling = window.begin - _SETTLE / _S  # answers of a slow model take longer than the settling
    answered = (samples.done >= window.begin) & (samples.done <= window.end) & (samples.status == 0)
    inside = answered & (samples.sent >= settling)
    if not inside.any():
        inside = answered
    seconds = (window.end - window.begin) * _S
    return ClosedRun(setting, clients, seconds, _batches(window), _seen((samples.done - samples.sent)[inside]))


def _open_run(setting: Setting, window: _Window, samples: Samples) -> OpenRun:
    """Return one level: what was due between the server's two answers."""
    inside = (samples.intended >= window.begin) & (samples.intended <= window.end) & (samples.status == 0)
    due = (samples.intended[inside] - window.begin) * _S
    seen = _seen((samples.done - samples.intended)[inside])
    return OpenRun(setting, tuple(round(float(second), 6) for second in due), _batches(window), seen)


def _batches(window: _Window) -> tuple[tuple[int, int, float], ...]:
    rows = window.statistics.batches
    return tuple((row.size, row.count, row.compute_infer_ns / row.count * _S) for row in rows)


def _seen(nanoseconds: Any) -> Latencies:
    import numpy as np

    if not len(nanoseconds):
        raise RepogenError("no request of a calibration was answered", hint="is the server alive? see its log")
    taken = np.sort(nanoseconds) * _S
    p50, p90, p99 = (float(taken[min(int(part * len(taken)), len(taken) - 1)]) for part in (0.5, 0.9, 0.99))
    return Latencies(float(taken.mean()), p50, p90, p99, float(taken[-1]))


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def calibration_setting(base: Setting, instances: int) -> Setting:
    """Return what a calibration runs: no delay, so that an instance is never idle while requests wait."""
    return replace(base, instances=instances, delay=0, preferred=(), batching=True)
