import tracemalloc

import numpy as np
import pytest

from repogen.precision.calibration import BINS, Histogram, entropy_bins, gather
from repogen.precision.data import Sample
from repogen.precision.graphs import prepared
from tests.precision.kit import graph_of

RNG = np.random.default_rng(5)


def filled(*parts):
    histogram = Histogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


def test_a_histogram_grows_without_forgetting():
    """The counts are those of one histogram of all values over the final range, however they came."""
    parts = [RNG.normal(0, scale, 5000) for scale in (0.1, 3.0, 0.5, 40.0)]
    histogram = filled(*parts)
    everything = np.abs(np.concatenate(parts)).astype(np.float32)
    expected, _ = np.histogram(everything, BINS, (0, histogram.limit))
    assert histogram.counts.sum() == expected.sum() == 20000
    assert np.abs(np.cumsum(histogram.counts) - np.cumsum(expected)).max() <= 3  # rounding at a bin's edge
    assert histogram.largest == everything.max()


def test_minmax_is_the_largest():
    assert filled([1, -7, 3]).threshold("minmax") == 7


def test_percentile_cuts_what_is_rare():
    values = np.concatenate([RNG.uniform(-1, 1, 99_990), np.full(10, 50.0)])
    histogram = filled(values)
    assert histogram.threshold("percentile", 99.9) == pytest.approx(1.0, abs=0.05)
    assert histogram.threshold("percentile", 100.0) == pytest.approx(50, rel=0.01)


def test_entropy_cuts_a_long_tail_and_keeps_a_short_one():
    tail = np.concatenate([RNG.normal(0, 1, 200_000), RNG.uniform(30, 60, 20)])
    cut = filled(tail).threshold("entropy")
    assert 2.5 < cut < 12
    flat = RNG.uniform(-1, 1, 100_000)
    assert filled(flat).threshold("entropy") > 0.95
    few = np.concatenate([RNG.normal(0, 0.01, 90_000), RNG.normal(0, 10, 10_000)])  # not to be taken for outliers
    assert filled(few).threshold("entropy") > 15


def test_entropy_counts_no_zeros():
    """A ReLU's zeros are exact in every scale: they must not drown the rest."""
    counts = np.zeros(BINS, np.int64)
    counts[1:1024] = 1000
    lonely = counts.copy()
    lonely[0] = 10**9
    assert entropy_bins(lonely) == entropy_bins(counts)


def test_nothing_seen_is_no_range():
    for method in ("minmax", "percentile", "entropy"):
        assert filled(np.zeros(100)).threshold(method) == 0


@pytest.fixture
def model(tmp_path):
    import onnx

    nodes = [("MatMul", "x w", "h"), ("Relu", "h", "r"), ("Mul", "r zero", "z"), ("Add", "r z", "y")]
    constants = {"w": RNG.normal(size=(64, 64)).astype(np.float32), "zero": np.float32(0)}
    made = graph_of(nodes, [("x", "FLOAT", ["N", 64])], [("y", "FLOAT", ["N", 64])], constants)
    onnx.save(made, tmp_path / "m.onnx")
    return prepared(tmp_path / "m.onnx", 13)


def rows(count, size=64):
    rng = np.random.default_rng(1)
    for index in range(count):
        yield Sample("f", index, {"x": rng.normal(size=(1, size)).astype(np.float32)})


def test_the_table_is_what_the_tensors_reached(model):
    table = gather(model, ["x", "h", "z"], rows(20), method="minmax", percentile=None, seconds=60)
    inputs = np.concatenate([sample.arrays["x"] for sample in rows(20)])
    from onnx import numpy_helper

    weight = numpy_helper.to_array(model.graph.initializer[0])
    assert table.largest["x"] == np.abs(inputs).max()
    assert table.largest["h"] == pytest.approx(np.abs(inputs @ weight).max(), rel=1e-5)
    assert table.samples == 20
    assert "z is 0 on all samples" in table.notes


def test_memory_does_not_grow_with_the_set(model):
    peaks = []
    for count in (20, 400):
        tracemalloc.start()
        gather(model, ["x", "h", "r"], rows(count), method="entropy", percentile=None, seconds=60)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 100_000


def test_time_ends_it_and_is_told(model):
    table = gather(model, ["x"], rows(10**6), method="minmax", percentile=None, seconds=0.2)
    assert 0 < table.samples < 10**6
    assert "the time was over" in table.notes[0]


def test_a_model_too_large_for_a_message_gives_the_same_table(model, monkeypatch):
    from repogen.precision import calibration

    small = gather(model, ["x", "h"], rows(5), method="percentile", percentile=None, seconds=60)
    monkeypatch.setattr(calibration, "_MESSAGE", 0)
    assert gather(model, ["x", "h"], rows(5), method="percentile", percentile=None, seconds=60) == small
