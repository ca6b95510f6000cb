"""Trials on a live server: calibration runs and open-loop runs, each with its setting in an override of the config."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from repogen.tune.openfit import Level
from repogen.tune.override import put, setting_of, with_setting
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal, Measured

if TYPE_CHECKING:
    import numpy as np

    Requests = Sequence[Mapping[str, np.ndarray[Any, Any]]]

_S = 1e-9
_READY = 60.0
_WARM_UP = 1.0
_SLOW = 5.0  # requests a second, while nothing is known of the model
_FIRST = 5  # requests that tell where the calibration begins
_LIGHT = 0.3  # of the time the instances are taken at its first level
_STEP = 1.6  # each level's rate is so many times the one before
_MOST_LEVELS = 14
_SETTLE = 0.4  # seconds after which a new rate counts
_ENOUGH, _SHORT, _LONG = 600, 1.5, 4.0  # requests of a level, within these seconds
_FULL = 0.9  # of the largest batch
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

    def calibrate(self, setting: Setting) -> list[Level]:
        """Load one instance count at a rate that rises until the server no longer follows: one open-loop run."""
        self.apply(setting)
        spec = Spec(
            url=self.client.url,
            model=self.model,
            folder=str(self.folder),
            name=f"calibration-{secrets.token_hex(4)}",
            payloads=str(self.payloads),
            arrivals="poisson",
            rate=_SLOW,
            deadline=_DEADLINE,
            seed=1,
        )
        generator = Generator(spec)
        try:
            generator.wait_ready(_READY)
            windows = list(self._rising(generator, setting))
            generator.say("stop")
            samples = generator.finish(_DEADLINE + _READY)
        finally:
            generator.close()
        return [_level(setting, window, samples) for window in windows]

    def _rising(self, generator: Generator, setting: Setting) -> Iterator[_Window]:
        rate = _LIGHT * setting.instances / _first_latency(generator)
        for _ in range(_MOST_LEVELS):
            generator.say(f"rate {rate:.6g}")
            time.sleep(_SETTLE)
            before, begin = self.client.statistics(self.model), time.perf_counter_ns()
            time.sleep(min(max(_ENOUGH / rate, _SHORT), _LONG))
            after, end = self.client.statistics(self.model), time.perf_counter_ns()
            window = _Window(rate, begin, end, after - before)
            yield window
            if window.full(setting):
                return
            rate *= _STEP


@dataclass(frozen=True)
class _Window:
    rate: float
    begin: int  # of the clock that all processes share
    end: int
    statistics: Statistics

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * _S

    def full(self, setting: Setting) -> bool:
        """Return whether batches were as large as they can be, or far fewer requests were answered than sent."""
        served = self.statistics
        if setting.max_batch > 1 and served.inferences >= _FULL * setting.max_batch * max(served.executions, 1):
            return True
        expected = self.rate * self.seconds
        return served.requests < expected * 0.95 - 3 * expected**0.5


def _first_latency(generator: Generator) -> float:
    """Return the seconds that the quickest of a few first requests took."""
    seen: list[float] = []

    def answered() -> bool:
        columns = generator.rows()
        seen.extend(((columns[3] - columns[1]) * _S).tolist())
        return len(seen) >= _FIRST or bool(generator.ended)

    _wait(answered, _READY)
    return max(min(seen, default=1.0), 1e-4)


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


def _level(setting: Setting, window: _Window, samples: Samples) -> Level:
    """Return one level: the server's executions between its two questions, and what the requests met."""
    inside = (samples.intended >= window.begin) & (samples.intended < window.end) & (samples.status == 0)
    due = samples.intended[inside]
    rows = tuple(
        (row.size, row.count, (row.compute_input_ns + row.compute_infer_ns + row.compute_output_ns) / row.count * _S)
        for row in window.statistics.batches
        if row.count
    )
    return Level(
        setting=setting,
        rate=window.rate,
        seconds=window.seconds,
        batches=rows,
        due=tuple(round(second, 6) for second in ((due - window.begin) * _S).tolist()),
        latencies=tuple(round(second, 6) for second in ((samples.done[inside] - due) * _S).tolist()),
        full=window.full(setting),
    )


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def calibration_setting(base: Setting, instances: int) -> Setting:
    """Return what a calibration runs: no delay, so that an instance is never idle while requests wait."""
    return replace(base, instances=instances, delay=0, preferred=(), batching=True)
