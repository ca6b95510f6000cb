"""What confirmed trials say of the calibration: at their rate, cycles take a little more or less than it found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, geometric_mean

from repogen.tune.forecast import Predictor
from repogen.tune.service import Corrections
from repogen.tune.trial import Trial

_REQUESTS = 6000
_DOUBT = 0.1  # how far the factor of all loads is expected to be off, as a logarithm
_APART = 0.05  # how far that of one load is expected to be from the factor of all
_NOISE = 0.07  # how far a measured percentile is expected to be off
_CLAMP = 0.5  # near the limit of capacity a per cent of service time is half of the latency: no evidence
_STEP, _MOST = 1.02, 16  # of the factors that are tried, to either side
_ALIKE = 1.03  # rates that differ by less tell of the same load


def refitted(predictor: Predictor, trials: Sequence[Trial]) -> Predictor:
    """Return the predictor with the service times corrected, for each instance count and load, as its trials say.

    A count without trials takes the mean of the others'.
    """
    counts = sorted(predictor.calibration.services)
    trials_of: dict[int, list[Trial]] = {}
    for trial in (trial for trial in trials if trial.measured.valid):
        trials_of.setdefault(_nearest(counts, trial.setting.instances), []).append(trial)
    if not trials_of:
        return predictor
    factors = {count: _factor(predictor, count, mine, 1.0, _DOUBT) for count, mine in trials_of.items()}
    others = ((1.0, math.exp(sum(map(math.log, factors.values())) / len(factors))),)
    loads = {
        count: [(trial.rate, _factor(predictor, count, [trial], factors[count], _APART)) for trial in mine]
        for count, mine in trials_of.items()
    }
    return predictor.corrected({count: _joined(loads[count]) if count in loads else others for count in counts})


def _nearest(counts: Sequence[int], count: int) -> int:
    return min(counts, key=lambda known: (abs(known - count), known))


def _joined(rows: Sequence[tuple[float, float]]) -> Corrections:
    """Return the factors by rising rate, those of almost the same rate as their mean."""
    groups: list[list[tuple[float, float]]] = []
    for row in sorted(rows):
        if groups and row[0] <= groups[-1][0][0] * _ALIKE:
            groups[-1].append(row)
        else:
            groups.append([row])
    return tuple((fmean(rate for rate, _ in group), geometric_mean(f for _, f in group)) for group in groups)


def _factor(predictor: Predictor, count: int, trials: Sequence[Trial], expected: float, doubt: float) -> float:
    """Descend from what is expected in steps of 2 %: the loss has one valley as far as the clamp lets it."""

    def loss(step: int) -> float:
        factor = _STEP**step
        tried = predictor.corrected({count: ((1.0, factor),)})
        misses = sum((_miss(tried, trial) / _NOISE) ** 2 for trial in trials)
        return (math.log(factor / expected) / doubt) ** 2 + misses

    place = round(math.log(expected, _STEP))
    best = loss(place)
    for step in (-1, 1):
        while abs(place + step) <= _MOST and (next_loss := loss(place + step)) < best:
            place, best = place + step, next_loss
    return _STEP**place


def _miss(predictor: Predictor, trial: Trial) -> float:
    predicted = predictor.at(trial.setting, trial.rate, _REQUESTS).latency
    miss = math.log(predicted / trial.measured.latency)
    return max(-_CLAMP, min(_CLAMP, miss))
