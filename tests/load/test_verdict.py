from dataclasses import replace

import numpy as np
import pytest

from repogen.load.observe import Observation
from repogen.load.verdict import judge
from repogen.triton import Statistics
from tests.load.made import samples_of

FINE = Observation(Statistics("m", 1000, 0, 1000, 1000, 0, 0, 0, 0))


def verdict(*parts, observation=FINE, p99=10.0, lateness=0.0, failures=()):
    return judge(parts, observation, p99=p99, lateness=lateness, failures=failures)


def open_loop(latencies, **changes):
    return samples_of(latencies, spacing=1_000_000, arrivals="constant", rate=1000.0, **changes)


def test_a_run_that_holds():
    assert verdict(open_loop([2_000_000] * 1000), lateness=0.5).valid


def test_a_constant_latency_misses_no_rate():
    warm = open_loop([400_000_000] * 2000)
    told = replace(warm.conditions, begin=int(warm.intended[500]))
    assert verdict(replace(warm, conditions=told)).valid


@pytest.mark.parametrize(
    ("part", "options", "words"),
    [
        pytest.param(
            {}, {"lateness": 0.51}, "left up to 510 us late (P99), more than 5 % of the P99 of 10 ms", id="late"
        ),
        pytest.param({"cpu": 0.91}, {}, "a generator used 91% of a core", id="busy"),
        pytest.param({"ended": "killed"}, {}, "the generator was killed", id="killed"),
        pytest.param({"workers": 3}, {}, "2 of 3 workers were lost, and their samples", id="worker lost"),
        pytest.param({"ended": "interrupted"}, {}, "the run was interrupted", id="interrupted"),
        pytest.param(
            {},
            {"observation": Observation(problem="its statistics started over", restarted=True)},
            "started over",
            id="restart",
        ),
        pytest.param(
            {}, {"observation": Observation(problem="the server was lost: x")}, "the server was lost: x", id="lost"
        ),
    ],
)
def test_void(part, options, words):
    found = verdict(open_loop([2_000_000] * 1000, **part), **options)
    assert not found.valid
    assert words in str(found)
    assert len(found.reasons) == 1


def test_errors_make_it_void():
    part = open_loop([2_000_000] * 1000, status=[0] * 999 + [8])
    assert "1 of 1,000 requests failed, most with: no room" in str(verdict(part, failures=[("no room", 1)]))


def test_a_server_that_falls_behind_misses_the_rate():
    backlog = np.linspace(2e6, 200e6, 1000).astype(np.int64)
    assert "the rate was missed" in str(verdict(open_loop(backlog)))


def test_a_stall_that_is_made_up_for_does_not():
    latencies = np.full(10_000, 2_000_000)
    latencies[4000:6000] += np.arange(2_000_000_000, 0, -1_000_000)
    assert verdict(open_loop(latencies)).valid


def test_nothing_measured():
    assert "no request was measured" in str(verdict(samples_of([])))
