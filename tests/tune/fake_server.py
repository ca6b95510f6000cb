"""A server made of the simulator: other constants than the calibration found, and noise."""

import numpy as np

from repogen.tune.arrivals import Arrivals
from repogen.tune.batcher import closed_loop
from repogen.tune.forecast import Predictor
from repogen.tune.service import Calibration, ClosedRun, Latencies, Service
from repogen.tune.setting import Setting
from repogen.tune.trial import Measured

GAP = ((0.0, 0.0002), (0.5, 0.0004), (0.9, 0.0007), (0.99, 0.0012), (1.0, 0.002))


def service(instances=1, *, fixed=0.002, each=0.00025, contention=0.0, spread=0.05):
    """A model that takes `fixed` and `each` a sample; `contention` is what another instance adds to both."""
    slower = 1 + contention * (instances - 1)
    infer = tuple((size, (fixed + each * size) * slower) for size in (1, 2, 4, 8, 16, 32))
    return Service(instances, infer, 0.00003, 0.0003, spread, GAP)


def calibration(counts=(1, 2), **constants):
    return Calibration({count: service(count, **constants) for count in counts})


class FakeServer:
    """Measures as `search` asks: `void` runs, by their number, are spoiled."""

    def __init__(self, truth, *, percentile=99.0, noise=0.02, void=(), requests=6000):
        self.truth, self.percentile, self.noise, self.void, self.requests = truth, percentile, noise, void, requests
        self.asked = []

    def __call__(self, setting, rate):
        number = len(self.asked)
        self.asked.append((setting, rate))
        if number in self.void:
            return Measured(99.0, 0.0, 99.0, valid=False, reason="the sender was late")
        predictor = Predictor(self.truth, Arrivals(), self.percentile, seed=1000 + number)
        outcome, _ = predictor.outcome(setting, rate, self.requests)
        latency = predictor.at(setting, rate, self.requests).latency
        latency *= float(np.exp(np.random.default_rng([7, number]).normal(0, self.noise)))
        return Measured(
            latency,
            latency * 0.96,
            latency * 1.04,
            True,
            requests=self.requests,
            rate=rate,
            mean_batch=outcome.mean_batch,
        )

    def true_capacity(self, setting, slo):
        return Predictor(self.truth, Arrivals(), self.percentile, seed=5).capacity(setting, slo)


def closed_run(truth, setting, clients, count=3000):
    """What a closed-loop run against `truth` shows: the backend's part of each cycle, and the clients' latencies."""
    gaps = truth.gaps(9, count)
    cycles, jitter = truth.cycles(setting.max_batch), truth.jitter(9)
    outcome = closed_loop(setting, clients, count, cycles, jitter, gaps.tolist())
    seen = np.sort(outcome.latencies + gaps)
    infer = dict(truth.infer)
    sizes, times = zip(*sorted(infer.items()), strict=True)
    rows = tuple((size, number, float(np.interp(size, sizes, times))) for size, number in outcome.histogram.items())
    p50, p90, p99 = (float(seen[int(p * count)]) for p in (0.5, 0.9, 0.99))
    return ClosedRun(
        setting, clients, outcome.seconds, rows, Latencies(float(seen.mean()), p50, p90, p99, float(seen[-1]))
    )


def closed_runs(truth, max_batch=16):
    setting = Setting(max_batch, truth.instances)
    levels = (1, *(2 * truth.instances * size for size in (1, 2, 4, 8, 16, 32) if size <= 2 * max_batch))
    return [closed_run(truth, setting, clients) for clients in dict.fromkeys(levels)]
