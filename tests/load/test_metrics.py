from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repogen.load.metrics import enough, percentile, serve, summarise
from repogen.load.samples import Samples
from repogen.model import DynamicBatching, Instances, ServedModel, ServedTensor
from repogen.triton import BatchStatistics, Statistics

MODEL = ServedModel(
    name="ocr",
    backend="onnxruntime",
    source="ocr.onnx",
    max_batch_size=8,
    inputs=(ServedTensor("x", "TYPE_FP32", (4,)),),
    outputs=(),
    instances=(Instances("cpu", 1),),
    dynamic_batching=DynamicBatching(),
    files=(),
)


def samples_of(latencies, status=None, start=0, failures=None):
    sent = start + np.arange(len(latencies), dtype=np.int64) * 1000
    code = np.zeros(len(latencies), dtype=np.int64) if status is None else np.array(status)
    return Samples(sent, sent + np.array(latencies, dtype=np.int64), code, failures or {})


def counters(**changes):
    empty = Statistics("ocr", 0, 0, 0, 0, 0, 0, 0, 0)
    return replace(empty, **changes)


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
    assert [enough(p) for p in (50, 90, 95, 99, "99.9")] == [2, 10, 20, 100, 1000]


def test_latency_keeps_its_microseconds():
    seen = summarise([samples_of([1_041_000_000 + i * 80_000 for i in range(101)])])
    assert seen.p99 == pytest.approx(1048.92)
    assert seen.p50 == pytest.approx(1045.0)
    assert seen.max == pytest.approx(1049.0)
    assert (seen.requests, seen.errors, seen.notes) == (101, 0, ())


def test_a_percentile_that_too_few_samples_carry_is_not_given():
    seen = summarise([samples_of([5_000_000] * 99)])
    assert (seen.p95, seen.p99) == (5.0, None)
    assert seen.notes == ("no P99: it needs 100 answered requests, there were 99",)


def test_failures_are_no_fast_successes():
    slow, fast = [50_000_000] * 100, [10_000] * 900
    seen = summarise([samples_of(slow + fast, [0] * 100 + [14] * 900, failures={"down": 900})])
    assert (seen.requests, seen.errors) == (1000, 900)
    assert (seen.p50, seen.p99, seen.mean) == (50.0, 50.0, pytest.approx(50.0))
    assert seen.rate == pytest.approx(100 / seen.seconds)
    assert seen.failures == (("down", 900),)


def test_processes_have_clocks_of_their_own():
    one, other = samples_of([10_000_000] * 60), samples_of([20_000_000] * 60, start=10**15)
    seen = summarise([one, other])
    assert seen.seconds < 0.03
    assert (seen.requests, seen.p50, seen.p99) == (120, 10.0, 20.0)


@pytest.mark.parametrize("parts", [[], [samples_of([])], [samples_of([7, 8], [14, 4])]], ids=["no", "none", "bad"])
def test_nothing_measured(parts):
    seen = summarise(parts)
    assert (seen.rate, seen.mean, seen.p50, seen.max) == (0.0, None, None, None)


def test_served():
    spent = counters(
        requests=10,
        inferences=10,
        executions=4,
        queue_ns=20_000_000,
        compute_infer_ns=5_000_000,
        batches=(BatchStatistics(2, 3, 0, 0, 0), BatchStatistics(4, 1, 0, 0, 0)),
    )
    did = serve(spent, model=MODEL, users=4, batch=1)
    assert (did.queue, did.compute_infer, did.mean_batch) == (2.0, 0.5, 2.5)
    assert (did.batches, did.note) == (((2, 3), (4, 1)), "")


@pytest.mark.parametrize(
    ("changes", "users", "batch", "words"),
    [
        pytest.param({"max_batch_size": 0}, 8, 1, "max_batch_size is 0", id="unbatched"),
        pytest.param({}, 8, 5, "two requests of batch 5 exceed max_batch_size 8", id="too large"),
        pytest.param({"dynamic_batching": None}, 8, 1, "dynamic_batching is off", id="off"),
        pytest.param({}, 1, 1, "one user", id="alone"),
        pytest.param({"instances": (Instances("gpu", 2, (0, 1)),)}, 4, 1, "4 users find one of 4", id="idle"),
        pytest.param({}, 2, 1, "rarely met in the queue (0.25 ms", id="fast"),
    ],
)
def test_why_no_batches_formed(changes, users, batch, words):
    spent = counters(requests=100, inferences=100 * batch, executions=100, queue_ns=25_000_000)
    did = serve(spent, model=replace(MODEL, **changes), users=users, batch=batch)
    assert did.note.startswith("no batches formed: ")
    assert words in did.note


def test_nothing_ran_and_nothing_is_explained():
    did = serve(counters(), model=MODEL, users=1, batch=1)
    assert (did.mean_batch, did.queue, did.note) == (0.0, 0.0, "")
