import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repogen.errors import RepogenError
from repogen.load.arrivals import parse, read_trace, schedule


def due(text, rate, seconds, seed=0):
    """Return when requests are due in the first `seconds`, in seconds."""
    found = []
    for block in schedule(parse(text), rate if callable(rate) else lambda: rate, seed):
        found.append(block.due)
        if block.end >= seconds * 1e9:
            break
    whole = np.concatenate(found) / 1e9
    return whole[whole < seconds]


def test_constant_is_even_from_the_first_instant():
    times = due("constant", 200, 5)
    assert len(times) == 1000
    assert times == pytest.approx(np.arange(1000) / 200, abs=2e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 3000), st.sampled_from(["constant", "burst(0.3, 0.7)", "ramp(1, 5)"]))
def test_every_schedule_keeps_its_rate_and_its_order(rate, text):
    times = due(text, rate, 10)
    wanted = rate * 10 if not text.startswith("ramp") else rate * 5 + (1 + rate) / 2 * 5
    assert abs(len(times) - wanted) <= 1 + 0.01 * wanted
    assert (np.diff(times) > 0).all()


def test_poisson_is_exponential_seeded_and_independent():
    times = due("poisson", 500, 60)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 500, rel=0.03)
    assert np.mean(gaps > 1 / 500) == pytest.approx(np.exp(-1), abs=0.01)
    assert (due("poisson", 500, 2) == due("poisson", 500, 2)).all()
    assert len(np.intersect1d(due("poisson", 500, 2), due("poisson", 500, 2, seed=1))) == 0


def test_bursts_are_silent_in_between():
    times = due("burst(0.5, 1.5)", 100, 8)
    assert len(times) == 800
    assert (times % 2 < 0.5).all()


def test_a_ramp_ends_at_the_rate():
    times = due("ramp(10, 4)", 100, 8)
    counts, _ = np.histogram(times, bins=8, range=(0, 8))
    assert counts[:4] == pytest.approx([21, 44, 66, 89], abs=2)
    assert counts[4:] == pytest.approx([100] * 4, abs=1)


def test_a_change_of_rate_takes_effect_soon():
    rates = iter([100] * 4 + [400] * 100)
    counts, _ = np.histogram(due("constant", lambda: next(rates), 3), bins=3, range=(0, 3))
    assert counts.tolist() == [100, 400, 400]


def test_a_trace_with_and_without_payloads(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,payload\n10.5,2\n10.0,1\n11,0\n")
    block = read_trace(path)
    assert (block.due.tolist(), block.payload.tolist()) == ([0, 500_000_000, 1_000_000_000], [1, 2, 0])
    path.write_text("0\n\n0.25\n")
    assert [b.payload for b in schedule(parse(f"trace:{path}"), lambda: 0, 0)] == [None]


@pytest.mark.parametrize(
    ("content", "words"), [("", "has no timestamps"), ("0\nx\n", "line 2: could not convert"), (None, "cannot be read")]
)
def test_a_trace_that_is_none(tmp_path, content, words):
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    with pytest.raises(RepogenError, match=words):
        read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["", "uniform", "burst(1)", "burst(0, 1)", "ramp(5, 0)", "trace:", "poisson(3)"])
def test_no_way_to_arrive(text):
    with pytest.raises(RepogenError, match="--arrivals"):
        parse(text)
