"""What confirmed trials say of the calibration: cycles take a little more or less than it found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repogen.tune.forecast import Predictor
from repogen.tune.trial import Trial

_REQUESTS = 6000
_DOUBT = 0.1  # how far the scale is expected to be off, as a logarithm
_NOISE = 0.07  # how far a measured percentile is expected to be off
_CLAMP = 0.5  # near the limit of capacity a per cent of service time is half of the latency: no evidence
_SCALES = tuple(1.02**n for n in range(-13, 14))


def refitted(predictor: Predictor, trials: Sequence[Trial]) -> Predictor:
    """Return the predictor with the service times scaled, for each instance count, as its trials say.

    A count without trials takes the mean of the others'.
    """
    valid = [trial for trial in trials if trial.measured.valid]
    if not valid:
        return predictor
    counts = sorted(predictor.calibration.services)
    logs = {}
    for count in counts:
        mine = [t for t in valid if _nearest(counts, t.setting.instances) == count]
        if mine:
            logs[count] = math.log(_best_scale(predictor, count, mine))
    mean = sum(logs.values()) / len(logs)
    return predictor.scaled({count: math.exp(logs.get(count, mean)) for count in counts})


def _nearest(counts: Sequence[int], count: int) -> int:
    return min(counts, key=lambda known: (abs(known - count), known))


def _best_scale(predictor: Predictor, count: int, trials: Sequence[Trial]) -> float:
    """Descend from 1 in steps of 2 %: the loss has one valley as far as the clamp lets it."""

    def loss(index: int) -> float:
        tried = predictor.scaled({count: _SCALES[index]})
        return (math.log(_SCALES[index]) / _DOUBT) ** 2 + sum((_miss(tried, trial) / _NOISE) ** 2 for trial in trials)

    place = len(_SCALES) // 2
    best = loss(place)
    for step in (-1, 1):
        while 0 <= place + step < len(_SCALES) and (next_loss := loss(place + step)) < best:
            place, best = place + step, next_loss
    return _SCALES[place]


def _miss(predictor: Predictor, trial: Trial) -> float:
    predicted = predictor.at(trial.setting, trial.rate, _REQUESTS).latency
    miss = math.log(predicted / trial.measured.latency)
    return max(-_CLAMP, min(_CLAMP, miss))
