"""Which settings of a pipeline's steps are worth a run: step after step is improved, all by prediction. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from repogen.tune.arrivals import Arrivals
from repogen.tune.pipeline import Pipeline
from repogen.tune.search import Simplicity, simplicity
from repogen.tune.setting import Setting
from repogen.tune.space import triton_default
from repogen.tune.trial import Goal, Measured

Settings = tuple[Setting, ...]

_DELAYS = (0, 200, 1000, 3000, 8000)
_REQUESTS = 3000
_ROUNDS = 2
_MARGIN = 0.95  # a prediction below this part of the objective counts as holding it
_TIE = 0.03  # what differs by less is alike, and then the simpler settings are the better ones


@dataclass(frozen=True)
class PipelineTrial:
    """A run of the whole that was made: a setting for each step."""

    settings: Settings
    rate: float
    role: str  # candidate | current | default
    predicted: float
    measured: Measured = field(hash=False)

    @property
    def error(self) -> float:
        return self.predicted / self.measured.latency - 1


@dataclass(frozen=True)
class PipelineQuestion:
    """What is asked of a pipeline. `tuned`: the numbers of the steps that may change, the costliest first."""

    goal: Goal
    pipeline: Pipeline
    current: Settings
    tuned: tuple[int, ...]
    instances: tuple[int, int]
    arrivals: Arrivals = field(default_factory=Arrivals)

    @cached_property
    def _known(self) -> dict[Settings, float]:
        return {}

    def predicted(self, settings: Settings) -> float:
        """Return the goal's percentile in seconds: the same arrivals and the same luck for all."""
        import numpy as np

        if settings not in self._known:
            rate = self.goal.rate or 0.0
            times = self.arrivals.draw(rate, _REQUESTS, 0)
            seen = np.sort(self.pipeline.latencies(settings, times, rate))
            rank = max(math.ceil(self.goal.percentile / 100 * len(seen) - 1e-9), 1)
            self._known[settings] = float(seen[rank - 1])
        return self._known[settings]

    @property
    def default(self) -> Settings:
        """What Triton does where a config says nothing of the steps that may change."""
        return tuple(
            (triton_default(one) if one.max_batch > 1 else replace(one, instances=1)) if number in self.tuned else one
            for number, one in enumerate(self.current)
        )

    def order(self, settings: Settings) -> tuple[bool, int, int, tuple[Simplicity, ...], Settings]:
        """Return by what settings are compared: what holds the objective comes first, with the fewest instances."""
        latency = self.predicted(settings)
        holds = self.goal.slo is not None and latency <= self.goal.slo * _MARGIN
        served = self.predicted(self.current)
        rough = round(math.log(max(latency, 1e-9) / served) / _TIE)  # what is alike what is served is no better
        plain = tuple(simplicity(one) for one in settings)
        return not holds, sum(one.instances for one in settings) if holds else 0, rough, plain, settings


def ranked(question: PipelineQuestion) -> list[Settings]:
    """Return what was looked at, the best first: each step in turn gets what is best beside the others."""
    best = question.current
    looked = {best, question.default}
    for _ in range(_ROUNDS):
        before = best
        for number in question.tuned:
            tried = [_with(best, number, one) for one in candidates(question, best[number])]
            looked.update(tried)
            best = min((best, *tried), key=question.order)
        if best == before:
            break
    return sorted(looked, key=question.order)


def candidates(question: PipelineQuestion, current: Setting) -> Sequence[Setting]:
    """Return the settings of one step: its delay, its instances, and whether it merges requests at all."""
    low, high = question.instances
    counts = range(low, high + 1)
    if current.max_batch < 2:  # noqa: PLR2004 - nothing to merge
        return [replace(current, instances=count) for count in counts]
    longest = question.goal.slo * 0.5e6 if question.goal.slo else _DELAYS[-1]
    delays = [delay for delay in _DELAYS if delay <= longest]
    merged = [
        replace(current, instances=count, delay=delay, preferred=(), batching=True)
        for count in counts
        for delay in delays
    ]
    return [*merged, *(replace(current, instances=n, delay=0, preferred=(), batching=False) for n in counts)]


def _with(settings: Settings, number: int, setting: Setting) -> Settings:
    return (*settings[:number], setting, *settings[number + 1 :])


def to_measure(question: PipelineQuestion, runs: int) -> list[tuple[str, Settings]]:
    """Return the runs that confirm: the two best by prediction, what is served, and Triton's default."""
    best = [settings for settings in ranked(question) if settings not in (question.current, question.default)][:2]
    rows = [("candidate", best[0])] if best else []
    rows += [("current", question.current), *(("candidate", one) for one in best[1:]), ("default", question.default)]
    unique: dict[Settings, str] = {}
    for role, settings in rows:
        unique.setdefault(settings, role)
    return [(role, settings) for settings, role in unique.items()][: max(runs, 1)]


def chosen(goal: Goal, trials: Sequence[PipelineTrial]) -> tuple[PipelineTrial | None, bool]:
    """Return the best of what was measured, and whether the objective is met by it."""
    valid = [trial for trial in trials if trial.measured.valid]
    if not valid:
        return None, False
    holding = [trial for trial in valid if goal.slo is not None and trial.measured.latency <= goal.slo]
    if holding:
        return min(holding, key=lambda t: (sum(one.instances for one in t.settings), t.measured.latency)), True
    lowest = min(trial.measured.latency for trial in valid)
    alike = [trial for trial in valid if trial.measured.latency <= lowest * (1 + _TIE)]
    best = min(alike, key=lambda trial: (tuple(simplicity(one) for one in trial.settings), trial.measured.latency))
    return best, goal.slo is None
