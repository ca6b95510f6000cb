from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repogen.errors import RepogenError
from repogen.load.intervals import enough, interval, is_reached, parse_goal, percentile


@pytest.mark.parametrize("percent", ["1", "50", "90", "95", "99", "99.9", "99.99", "100"])
def test_percentile_is_numpys_inverted_cdf(percent):
    latencies = np.random.default_rng(7).lognormal(1, 1, 10_000)
    ordered = np.sort((latencies * 1e6).astype(np.int64))
    wanted = int(np.percentile(ordered, float(percent), method="inverted_cdf"))
    # In floating point, 99.9 % of 10,000 is a hair above 9,990, and NumPy then takes the next sample.
    assert percentile(ordered, percent) in {wanted, int(ordered[np.searchsorted(ordered, wanted) - 1])}
    if percent.isdigit():
        assert percentile(ordered, percent) == wanted


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 100))
def test_percentile_by_its_definition(values, percent):
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert sum(v <= found for v in ordered) * 100 >= percent * len(ordered)
    assert sum(v < found for v in ordered) * 100 < percent * len(ordered)


def test_enough():
    assert [enough(p) for p in (50, 90, 95, 99, "99.9", "99.99")] == [20, 100, 200, 1000, 10_000, 100_000]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    truth = -np.log(0.01)
    covered = 0
    for _ in range(40):
        low, high = interval(rng.exponential(1, 2000), 99)
        covered += low <= truth <= high
    assert covered >= 33


def test_samples_that_follow_each_other_are_no_independent_ones():
    """A stall makes neighbours slow together: the interval must be wider than that of the same values shuffled."""
    rng = np.random.default_rng(2)
    values = rng.exponential(1, 8000)
    values[3000:3100] += 20
    low, high = interval(values, 99)
    rng.shuffle(values)
    low_shuffled, high_shuffled = interval(values, 99)
    assert high - low > 2 * (high_shuffled - low_shuffled)


def test_the_goal():
    rng = np.random.default_rng(3)
    goal = parse_goal("p99±5%")
    assert (goal.percent, goal.tolerance) == (Fraction(99), 0.05)
    assert not is_reached(goal, np.full(999, 7))
    assert is_reached(goal, np.full(1000, 7))
    assert not is_reached(goal, rng.lognormal(1, 1, 1000))
    assert is_reached(goal, rng.lognormal(1, 0.2, 40_000))
    assert parse_goal("P99.9 +- 2.5 %") == parse_goal("p99.9+/-2.5%")


@pytest.mark.parametrize("text", ["", "p99", "99±5%", "p100±5%", "p0±5%", "p99±0%", "p99±5"])
def test_no_goal(text):
    with pytest.raises(RepogenError, match="--until"):
        parse_goal(text)
