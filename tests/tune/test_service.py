from dataclasses import replace

import numpy as np
import pytest

from repogen.errors import RepogenError
from repogen.tune.batcher import Workload, simulate
from repogen.tune.service import Calibration, ClosedRun, Latencies, Load, OpenRun, calibrate
from repogen.tune.setting import Setting
from tests.tune.fake_server import closed_runs, service


@pytest.mark.parametrize("instances", [1, 2])
def test_finds_the_constants_that_made_the_runs(instances):
    truth = service(instances, contention=0.2)
    found = calibrate(closed_runs(truth))
    np.testing.assert_allclose(found.cycles(16)[1:], truth.cycles(16)[1:], rtol=0.05)
    assert found.per_request == pytest.approx(truth.per_request, rel=0.4)
    assert found.per_batch == pytest.approx(truth.per_batch, rel=0.4)
    assert found.spread == pytest.approx(truth.spread, abs=0.06)
    assert np.quantile(found.gaps(1, 4000), 0.5) == pytest.approx(0.0004, abs=0.0002)


def test_a_batch_size_seen_rarely_or_shorter_than_a_smaller_one_is_smoothed():
    run = ClosedRun(
        Setting(8), 1, 1.0, ((1, 500, 0.002), (2, 3, 0.9), (4, 100, 0.0018), (8, 200, 0.003)), Latencies(*[0.003] * 5)
    )
    busy = replace(run, clients=16)
    found = calibrate([run, busy])
    assert [size for size, _ in found.infer] == [1, 4, 8]
    assert found.infer[0][1] == found.infer[1][1] == pytest.approx((500 * 0.002 + 100 * 0.0018) / 600)
    assert found.infer[2][1] == pytest.approx(0.003)


def test_sizes_beyond_those_seen_continue_their_slope():
    truth = replace(service(), infer=((1, 0.001), (8, 0.008)), per_request=0.0, per_batch=0.0)
    assert truth.cycles(16)[16] == pytest.approx(0.016, rel=0.01)


def test_an_instance_count_between_two_is_between_and_none_is_beyond():
    calibration = Calibration({1: service(1), 3: service(3, contention=0.5)})
    low, middle, high = (calibration.service(n).cycles(8)[8] for n in (1, 2, 3))
    assert middle == pytest.approx((low + high) / 2)
    assert (calibration.covers(2), calibration.covers(4)) == (True, False)
    with pytest.raises(RepogenError, match="4 instances are outside what was calibrated: 1, 3"):
        calibration.service(4)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((1.0, 1.2), {0: 0.9, 200: 1.0, 400: 1.1, 600: 1.2, 5000: 1.2}), ((1.2, 1.0), {0: 1.1, 400: 1.1, 5000: 1.1})],
    ids=["more load, longer cycles", "never shorter ones"],
)
def test_cycles_follow_the_load(scales, expected):
    loads = tuple(Load(rate, scale, 0.1) for rate, scale in zip((200.0, 600.0), scales, strict=True))
    tried = replace(service(), loads=loads)
    for rate, scale in expected.items():
        assert tried.at(rate).scale == pytest.approx(scale)
        assert tried.at(rate).cycles(4)[4] == pytest.approx(scale * service().cycles(4)[4])
    corrected = replace(tried, corrections=((200.0, 1.0), (600.0, 1.5))).at(600)
    assert corrected.scale == pytest.approx(1.5 * tried.at(600).scale)


@pytest.mark.parametrize("slower", [0.9, 1.0, 1.25])
def test_open_loads_tell_by_how_much_cycles_differ(slower):
    truth = service(fixed=0.002, each=0.00025)
    runs = closed_runs(truth)
    due = tuple(np.cumsum(np.random.default_rng(3).exponential(1 / 900, 3000)).tolist())
    seen = simulate(Setting(16), Workload(due), [slower * c for c in truth.cycles(16)], truth.jitter(5))
    latencies = np.sort(seen.latencies + truth.gaps(5, len(due)))
    p50, p90, p99 = (float(latencies[int(p * 3000)]) for p in (0.5, 0.9, 0.99))
    rows = tuple((size, count, 0.001) for size, count in seen.histogram.items())
    run = OpenRun(Setting(16), due, rows, Latencies(float(latencies.mean()), p50, p90, p99, float(latencies[-1])))
    (load,) = calibrate([*runs, run]).loads
    assert load.rate == pytest.approx(900, rel=0.05)
    assert load.scale == pytest.approx(slower, rel=0.05)


def test_luck_is_the_same_for_the_same_seed():
    assert service().jitter(3) == service().jitter(3)
    assert service().jitter(3) != service().jitter(4)
    assert np.mean(service(spread=0.3).jitter(1)) == pytest.approx(1, abs=0.02)
    assert np.std(service(spread=0.3).jitter(1)) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("keep", [slice(1, None), slice(0, 1)], ids=["no single client", "no busy run"])
def test_too_few_runs_are_refused(keep):
    with pytest.raises(RepogenError, match="one with a single client, and busy ones"):
        calibrate(closed_runs(service())[keep])
