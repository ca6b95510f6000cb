import numpy as np
import pytest

from repogen.load.samples import Conditions, Samples
from repogen.tune.live import Bench, calibration_setting, folded, levels
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal

MS = 1_000_000


def run(count, latency, *, status=0, late=0, until=None):
    """A run of one request a millisecond."""
    due = np.arange(count, dtype=np.int64) * MS + 1
    sent = due + late
    zero = np.zeros(count, dtype=np.int64)
    told = Conditions(arrivals="poisson", rate=1000.0, begin=1, end=until or count * MS + 1, ended="time")
    return Samples(due, sent, sent, due + latency, zero + status, zero, zero + 1, conditions=told)


def test_a_run_gives_its_percentile_with_an_interval():
    rng = np.random.default_rng(0)
    latency = (rng.uniform(5, 10, 4000) * MS).astype(np.int64)
    seen = folded(run(4000, latency), Goal(0.02, 1000.0))
    assert seen.valid, seen.reason
    assert seen.low <= seen.latency <= seen.high
    assert seen.latency == pytest.approx(0.00995, rel=0.01)
    assert seen.requests == 4000
    assert folded(run(4000, latency), Goal(0.02, 1000.0, 50.0)).latency == pytest.approx(0.0075, rel=0.03)


@pytest.mark.parametrize(
    ("samples", "percent", "words"),
    [
        pytest.param(run(4000, 5 * MS, late=2 * MS), 99.0, "late", id="late sender"),
        pytest.param(run(4000, 5 * MS, status=14), 99.0, "failed", id="failures"),
        pytest.param(run(500, 5 * MS), 99.0, "P99 needs 1000 answers, there were 500", id="too few"),
        pytest.param(run(4000, 5 * MS), 99.9, "P99.9 needs 10000 answers", id="too few for so far a tail"),
    ],
)
def test_a_run_that_cannot_be_believed_is_void(samples, percent, words):
    seen = folded(samples, Goal(0.02, 1000.0, percent))
    assert not seen.valid
    assert words in seen.reason


def test_a_run_in_which_the_machine_stood_still_is_void():
    latency = np.full(4000, 5 * MS)
    latency[2000:2045] = 80 * MS
    seen = folded(run(4000, latency), Goal(0.02, 1000.0))
    assert not seen.valid
    assert "P99 lies anywhere from 5.0 to 80.0 ms" in seen.reason
    assert folded(run(4000, latency), Goal(0.1, 1000.0)).valid  # below 100 ms it is in any case


def test_an_overloaded_server_is_an_answer_and_no_void_run():
    backlog = np.arange(4000, dtype=np.int64) * MS // 2  # each waits half a millisecond longer than the one before
    seen = folded(run(4000, backlog + MS), Goal(0.02, 1000.0))
    assert "the rate was missed" in seen.reason
    assert seen.valid
    assert seen.latency > 1.9


def test_the_clients_of_a_calibration_reach_every_batch_size():
    assert levels(Setting(16)) == [1, 2, 8, 32]
    assert levels(Setting(32, 2)) == [1, 4, 16, 64, 128]
    assert levels(Setting(2)) == [1, 2, 4]


def test_a_calibration_has_no_delay():
    assert calibration_setting(Setting(16, 1, 5000, (4,)), 2) == Setting(16, 2)


def test_a_run_lasts_until_its_tail_has_enough_requests(tmp_path):
    bench = Bench(None, None, tmp_path, tmp_path, "poisson", Goal(0.02, 100.0))
    assert bench.seconds(10_000.0) == 6
    assert bench.seconds(200.0) == 20
    assert bench.seconds(1.0) == 60
