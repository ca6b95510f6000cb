from dataclasses import replace

import numpy as np
import pytest

from repogen.load.metrics import result, summarise
from repogen.load.observe import Observation
from repogen.load.samples import Conditions, Samples
from tests.load.made import samples_of


def test_latency_keeps_its_microseconds():
    seen = summarise([samples_of([1_041_000_000 + i * 8_000 for i in range(1001)])])
    assert seen.p99 == pytest.approx(1048.92)
    assert seen.p50 == pytest.approx(1045.0)
    assert seen.max == pytest.approx(1049.0)
    assert (seen.requests, seen.errors, seen.notes) == (1001, 0, ())
    assert seen.p99_low <= seen.p99 <= seen.p99_high


def test_latency_counts_from_when_a_request_was_due():
    on_time = samples_of([2_000_000] * 1000)
    earlier = replace(on_time.conditions, begin=on_time.conditions.begin - 500_000)
    late = replace(on_time, intended=on_time.intended - 500_000, conditions=earlier)
    seen = summarise([late])
    assert (seen.p50, seen.p99, seen.lateness_p50, seen.lateness_p99) == (2.5, 2.5, 0.5, 0.5)


def test_a_percentile_that_too_few_samples_carry_is_not_given():
    seen = summarise([samples_of([5_000_000] * 999)])
    assert (seen.p95, seen.p99) == (5.0, None)
    assert seen.notes == ("no P99: it needs 1,000 answered requests, there were 999",)


def test_failures_are_no_fast_successes():
    slow, fast = [50_000_000] * 1000, [10_000] * 9000
    seen = summarise([samples_of(slow + fast, [0] * 1000 + [14] * 9000, failures={"down": 9000})])
    assert (seen.requests, seen.errors) == (10_000, 9000)
    assert (seen.p50, seen.p99, seen.mean) == (50.0, 50.0, pytest.approx(50.0))
    assert seen.rate == pytest.approx(1000 / seen.seconds)
    assert seen.failures == (("down", 9000),)


def test_the_warm_up_does_not_count():
    part = samples_of([90_000_000] * 500 + [1_000_000] * 1000)
    begin = int(part.intended[500])
    told = replace(part.conditions, begin=begin, end=int(part.intended[-1]) + 1)
    seen = summarise([replace(part, conditions=told)])
    assert (seen.requests, seen.max) == (1000, 1.0)


def test_processes_have_clocks_of_their_own():
    one, other = samples_of([10_000_000] * 600), samples_of([20_000_000] * 600, start=10**15)
    seen = summarise([one, other])
    assert seen.seconds == pytest.approx(0.01, rel=1)
    assert (seen.requests, seen.p50, seen.p99) == (1200, 10.0, 20.0)
    assert seen.rate == pytest.approx(600 / summarise([one]).seconds + 600 / summarise([other]).seconds)


def test_merged_percentiles_are_those_of_the_pooled_samples():
    rng = np.random.default_rng(4)
    pools = [rng.lognormal(15, 1, size).astype(np.int64) for size in (3000, 700, 12_345)]
    seen = summarise([samples_of(pool) for pool in pools])
    pooled = np.sort(np.concatenate(pools))
    assert seen.p99 == int(np.percentile(pooled, 99, method="inverted_cdf")) * 1e-6


def test_the_first_answer_of_a_stream():
    part = samples_of([8_000_000] * 100)
    part = replace(part, first=part.intended + 3_000_000, conditions=replace(part.conditions, stream=True))
    seen = summarise([part])
    assert (seen.first_p50, seen.p50) == (3.0, 8.0)


@pytest.mark.parametrize("parts", [[], [samples_of([])], [samples_of([7, 8], [14, 4])]], ids=["no", "none", "bad"])
def test_nothing_measured(parts):
    seen = summarise(parts)
    assert (seen.rate, seen.mean, seen.p50, seen.max) == (0.0, None, None, None)


def test_a_result_in_words():
    told = Conditions(model="ocr", arrivals="poisson", rate=100.0, users=4, end=2**40)
    part = replace(samples_of([1_000_000] * 20), conditions=told, server=Observation().to_json())
    both = result([part, part])
    assert (both.model, both.load, both.target_rate, both.users) == ("ocr", "200/s poisson", 200.0, 8)
    assert replace(both, arrivals="closed").load == "8 users"
    assert isinstance(part, Samples)
