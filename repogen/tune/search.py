"""The search: predict every setting, measure a handful, correct the prediction by what was seen, decide.

`next_step` is a pure function of the trials so far, so that a search goes on where it was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from repogen.tune.forecast import COARSE, FINE, Forecast, Predictor
from repogen.tune.refit import refitted
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal, Measured, Step, Trial

Measure = Callable[[Setting, float], Measured]
_FINALISTS = 12
_COARSE_STEPS = 6
_FINE_STEPS = 8
_MIDDLE = 8000  # simulated requests of the finalists' capacities
_WORTH = 0.03  # a smaller advantage is not worth a run
_MARGIN = 0.95  # a prediction below this part of the objective counts as holding it
_TIE = 0.02  # what differs by less is alike, and then the simpler setting is the better one
_JUST_BELOW = 0.98  # of what is predicted: a run at the very limit is as likely to miss as to hold
_AT_LEAST = 0.9  # where something holds already, what missed is asked again at no less than this part of its rate
_TRIES = 3  # runs of one step, void ones included
_MEASURABLE = 0.85  # of a rate whose run was void once more: the client cannot keep it


@dataclass(frozen=True)
class Budget:
    """What may be spent: runs, and seconds of the clock; calibration runs are counted by the caller."""

    runs: int = 6
    seconds: float = math.inf


@dataclass(frozen=True)
class Question:
    """What is asked, and of what: everything that a search decides by, beside its trials."""

    goal: Goal
    candidates: tuple[Setting, ...]
    predictor: Predictor
    current: Setting
    default: Setting

    @cached_property
    def references(self) -> tuple[Setting, ...]:
        return tuple(dict.fromkeys((self.default, self.current)))

    @cached_property
    def shortlist(self) -> tuple[Setting, ...]:
        """The settings that hold the objective at the highest rates, by a coarse prediction of all."""
        slo = self.goal.slo or math.inf
        coarse = {s: self.predictor.capacity(s, slo, COARSE, _COARSE_STEPS) for s in _within(self)}
        return tuple(sorted(coarse, key=lambda s: (-_rough(coarse[s]), simplicity(s), s))[:_FINALISTS])


@dataclass(frozen=True)
class Answer:
    """What came of a search: `choice` was measured, and `held` says whether the objective was met by it."""

    trials: tuple[Trial, ...]
    choice: Trial | None
    held: bool
    predictor: Predictor  # corrected by the trials
    limit: float | None = None  # the highest rate that is predicted to hold the objective, where none did


def search(
    question: Question,
    measure: Measure,
    budget: Budget,
    *,
    done: Sequence[Trial] = (),
    clock: Callable[[], float] = lambda: 0.0,
    note: Callable[[Trial], None] = lambda _trial: None,
) -> Answer:
    """Measure until the answer stands or the budget is spent. `done`: trials of an earlier run; `note` keeps each."""
    trials = list(done)
    begun = clock()
    while len(trials) < budget.runs and clock() - begun < budget.seconds:
        step = next_step(question, trials)
        if step is None:
            break
        trials.append(Trial(step.setting, step.rate, step.role, step.predicted, measure(step.setting, step.rate)))
        note(trials[-1])
    return conclude(question, trials)


def next_step(question: Question, trials: Sequence[Trial]) -> Step | None:
    """Return the run that tells most now, or None when the answer stands."""
    last = trials[-1] if trials else None
    if last and not last.measured.valid and _tries(trials, last) < (_TRIES if question.goal.rate else _chances(trials)):
        return Step(last.setting, last.rate, last.role, last.predicted)
    valid = [trial for trial in trials if trial.measured.valid]
    predictor = refitted(question.predictor, valid)
    tried = {(trial.setting, trial.rate) for trial in trials}
    if question.goal.rate:
        step = _step_at_rate(question, predictor, valid)
    else:
        step = _step_for_rate(question, predictor, valid, _measurable(trials))
    if step is None or ((step.setting, step.rate) in tried and _tries(trials, step) >= _TRIES):
        return None
    return step


def conclude(question: Question, trials: Sequence[Trial]) -> Answer:
    """Return the best of what was measured; never a setting that was not."""
    goal = question.goal
    valid = [trial for trial in trials if trial.measured.valid]
    predictor = refitted(question.predictor, valid)
    holding = [trial for trial in joined(valid) if goal.slo is not None and trial.measured.latency <= goal.slo]
    if not valid:
        return Answer(tuple(trials), None, held=False, predictor=predictor)
    if goal.slo is None:
        return Answer(tuple(trials), _fastest(joined(valid)), held=True, predictor=predictor)
    if holding:
        best = min(holding, key=_cost if goal.rate else _shortfall)
        return Answer(tuple(trials), best, held=True, predictor=predictor)
    best = _fastest(joined(valid))
    ranked = _ranked_by_capacity(question, predictor)
    limit = ranked[0][1] if ranked else 0.0
    if goal.rate:
        limit = min(limit, goal.rate)
    return Answer(tuple(trials), best, held=False, predictor=predictor, limit=limit)


def outlook(question: Question, predictor: Predictor, count: int = 5) -> list[Forecast]:
    """Return what is predicted of the best settings and of the references: at the goal's rate, or at their highest."""
    goal = question.goal
    if goal.rate:
        best = _ranked_at_rate(question, predictor)[:count]
        return [predictor.at(setting, goal.rate) for setting in dict.fromkeys((*best, *question.references))]
    slo = goal.slo or math.inf
    rows = dict(_ranked_by_capacity(question, predictor)[:count])
    rows |= {setting: predictor.capacity(setting, slo, _MIDDLE, _FINE_STEPS) for setting in question.references}
    return [predictor.at(setting, rate) for setting, rate in rows.items() if rate > 0]


def joined(trials: Sequence[Trial]) -> list[Trial]:
    """Return one trial for each setting and rate: the one in the middle, where it was repeated."""
    groups: dict[tuple[Setting, float], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.setting, trial.rate), []).append(trial)
    ordered = (sorted(group, key=lambda trial: trial.measured.latency) for group in groups.values())
    return [group[len(group) // 2] for group in ordered]


def _cost(trial: Trial) -> tuple[int, int, Simplicity]:
    return trial.setting.instances, _rough(trial.measured.latency), simplicity(trial.setting)


def _shortfall(trial: Trial) -> tuple[float, Simplicity]:
    return -trial.rate, simplicity(trial.setting)


def _tries(trials: Sequence[Trial], like: Trial | Step) -> int:
    return sum((trial.setting, trial.rate) == (like.setting, like.rate) for trial in trials)


def _step_at_rate(question: Question, predictor: Predictor, valid: Sequence[Trial]) -> Step | None:
    """Decide at a given rate: the best by prediction, the references, then whoever may still be better."""
    goal = question.goal
    rate = goal.rate or 0.0
    measured = {trial.setting: trial for trial in joined(valid)}
    ranked = _ranked_at_rate(question, predictor)
    if ranked and ranked[0] not in measured and len(measured) < len(question.references) + _TRIES:
        return Step(ranked[0], rate, "candidate", predictor.at(ranked[0], rate).latency)
    for setting in question.references:
        if setting not in measured:
            role = "current" if setting == question.current else "default"
            return Step(setting, rate, role, predictor.at(setting, rate).latency)
    best = conclude_at_rate(goal, list(measured.values()))
    for setting in ranked[1:_TRIES]:
        if setting not in measured and _promises(question, predictor, setting, best):
            return Step(setting, rate, "candidate", predictor.at(setting, rate).latency)
    return _repeat(goal, best, list(measured.values()), valid)


def conclude_at_rate(goal: Goal, measured: Sequence[Trial]) -> Trial:
    """Return the cheapest trial that holds the objective, else the fastest."""
    holding = [trial for trial in measured if goal.slo is not None and trial.measured.latency <= goal.slo]
    return min(holding, key=_cost) if holding else _fastest(measured)


def _fastest(measured: Sequence[Trial]) -> Trial:
    """Return the trial with the lowest latency; among those that are alike, the simplest setting's."""
    lowest = min(trial.measured.latency for trial in measured)
    alike = [trial for trial in measured if trial.measured.latency <= lowest * (1 + _TIE)]
    return min(alike, key=lambda trial: (simplicity(trial.setting), trial.setting))


def _promises(question: Question, predictor: Predictor, setting: Setting, best: Trial) -> bool:
    latency = predictor.at(setting, best.rate).latency
    slo = question.goal.slo
    if slo is not None and best.measured.latency <= slo and setting.instances != best.setting.instances:
        return setting.instances < best.setting.instances and latency <= slo * _MARGIN
    return latency < best.measured.latency * (1 - _WORTH)


def _repeat(goal: Goal, best: Trial, measured: Sequence[Trial], valid: Sequence[Trial]) -> Step | None:
    """Run the best once more where its interval leaves the answer open."""
    if _tries(valid, best) > 1:
        return None
    seen = best.measured
    others = [trial for trial in measured if trial.setting != best.setting]
    close = any(
        trial.measured.low < seen.high and trial.measured.latency > seen.latency * (1 + _WORTH) for trial in others
    )
    crosses = goal.slo is not None and seen.low <= goal.slo < seen.high
    return Step(best.setting, best.rate, "repeat", best.predicted) if close or crosses else None


def _ranked_at_rate(question: Question, predictor: Predictor) -> list[Setting]:
    goal = question.goal
    rate, slo = goal.rate or 0.0, goal.slo

    def rank(by: Predictor, requests: int, settings: Sequence[Setting]) -> list[Setting]:
        def key(setting: Setting) -> tuple[bool, int, int, Simplicity, Setting]:
            latency = by.at(setting, rate, requests).latency
            holds = slo is not None and latency <= slo * _MARGIN
            return not holds, setting.instances if holds else 0, _rough(latency), simplicity(setting), setting

        return sorted(settings, key=key)

    # What trials correct moves all settings alike: the shortlist is that of the first prediction.
    shortlist = rank(question.predictor, COARSE, _within(question))[:_FINALISTS]
    return rank(predictor, FINE, shortlist)


def _chances(trials: Sequence[Trial]) -> int:
    """Return how often a step may be run that comes out void: twice the first time, then a lower rate is asked for."""
    return 2 if len({(trial.setting, trial.rate) for trial in trials if not trial.measured.valid}) == 1 else 1


def _measurable(trials: Sequence[Trial]) -> float:
    """Return the rate up to which runs can be believed."""
    believed = {(trial.setting, trial.rate) for trial in trials if trial.measured.valid}
    void = [trial.rate for trial in trials if (trial.setting, trial.rate) not in believed]
    return min(void, default=math.inf) * _MEASURABLE


def _step_for_rate(question: Question, predictor: Predictor, valid: Sequence[Trial], most: float) -> Step | None:
    """Look for the highest rate: the favourite at what it is predicted to hold, corrected after each run."""
    slo = question.goal.slo or math.inf
    seen = joined(valid)
    held = max((t for t in seen if t.measured.latency <= slo), key=lambda t: t.rate, default=None)
    floor = held.rate if held else 0.0
    asked = [
        (setting, rate)
        for setting, capacity in _ranked_by_capacity(question, predictor)[:_TRIES]
        if (rate := _worth_asking(setting, min(capacity, most / _JUST_BELOW), floor, seen, slo))
    ]
    if not seen and asked:
        return Step(*asked[0], "candidate", predictor.at(*asked[0]).latency)
    if held:
        for setting in question.references:
            if not any(t.setting == setting for t in seen):
                role = "current" if setting == question.current else "default"
                capacity = predictor.capacity(setting, slo, _MIDDLE, _FINE_STEPS)
                rate = min(held.rate, _rounded(capacity * _JUST_BELOW)) or held.rate
                return Step(setting, rate, role, predictor.at(setting, rate).latency)
    if asked:
        return Step(*asked[0], "candidate", predictor.at(*asked[0]).latency)
    return _repeat(question.goal, held, seen, valid) if held else None


def _worth_asking(setting: Setting, capacity: float, floor: float, seen: Sequence[Trial], slo: float) -> float | None:
    """Return the rate at which a run of `setting` may raise the floor, or None."""
    missed = [t for t in seen if t.setting == setting and t.measured.latency > slo]
    backing_off = (t.rate * max(_backing_off(slo, t.measured.latency), _AT_LEAST * bool(floor)) for t in missed)
    rate = min([capacity * _JUST_BELOW, *backing_off])
    known = any(t.setting == setting and abs(t.rate / rate - 1) < _WORTH / 3 for t in seen) if rate else True
    return _rounded(rate) if rate > floor * (1 + _WORTH / 2) and not known else None


def _backing_off(slo: float, latency: float) -> float:
    """Return by which part of its rate a setting is asked again that missed the objective: the further, the less."""
    return float(min(max((slo / latency) ** 0.25, 0.6), 0.97))


def _rounded(rate: float) -> float:
    """Return the rate with three digits, as people write it."""
    return float(f"{rate:.3g}")


def _ranked_by_capacity(question: Question, predictor: Predictor) -> list[tuple[Setting, float]]:
    slo = question.goal.slo or math.inf
    fine = {s: predictor.capacity(s, slo, _MIDDLE, _FINE_STEPS) for s in question.shortlist}
    return sorted(fine.items(), key=lambda item: (-_rough(item[1]), simplicity(item[0]), item[0]))


def _within(question: Question) -> list[Setting]:
    return [setting for setting in question.candidates if question.predictor.calibration.covers(setting.instances)]


Simplicity = tuple[int, bool, int, int, int]


def simplicity(setting: Setting) -> Simplicity:
    """Return what makes a setting simple: few instances, batching on, no preferred sizes, no delay, large batches."""
    return setting.instances, not setting.batching, len(setting.preferred), setting.delay, -setting.max_batch


def _rough(value: float) -> int:
    """Return a number that is the same for values that are alike."""
    return round(math.log(max(value, 1e-9)) / _TIE)
