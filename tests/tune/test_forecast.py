import numpy as np
import pytest

from repogen.errors import RepogenError
from repogen.tune.arrivals import Arrivals
from repogen.tune.forecast import Mix, Predictor
from repogen.tune.setting import Setting
from tests.tune.fake_server import calibration


@pytest.mark.parametrize("text", ["poisson", "constant", "burst(0.5, 0.5)"])
def test_arrivals_have_their_rate_and_are_the_same_again(text):
    times = Arrivals(text).draw(200.0, 8000, 1)
    assert len(times) == 8000
    assert (np.diff(times) >= 0).all()
    assert 8000 / times[-1] == pytest.approx(200, rel=0.05)
    assert Arrivals(text).draw(200.0, 8000, 1).tolist() == times.tolist()


def test_poisson_arrivals_have_one_pattern_at_every_rate():
    one, other = (Arrivals().draw(rate, 100, 3) for rate in (10.0, 20.0))
    np.testing.assert_allclose(one, 2 * other)


def test_a_trace_is_stretched_and_repeated(tmp_path):
    (tmp_path / "t.csv").write_text("0\n1\n4\n")
    times = Arrivals(f"trace:{tmp_path}/t.csv").draw(10.0, 6, 0)
    np.testing.assert_allclose(np.diff(times, prepend=0), [0.05, 0.15] * 3)


@pytest.mark.parametrize("text", ["closed", "sometimes"])
def test_what_has_no_rate_is_refused(text):
    with pytest.raises(RepogenError):
        Arrivals(text).draw(10.0, 10, 0)


def test_the_capacity_is_where_the_objective_is_just_held():
    predictor, setting = Predictor(calibration()), Setting(16)
    capacity = predictor.capacity(setting, 0.020)
    assert predictor.at(setting, capacity).latency <= 0.020 < predictor.at(setting, capacity * 1.03).latency
    assert capacity < predictor.ceiling(setting)
    assert predictor.capacity(setting, 0.001) == 0


def test_instances_that_contend_are_worth_less_than_their_number():
    predictor = Predictor(calibration(contention=0.5))
    one, two = (predictor.capacity(Setting(16, count), 0.020) for count in (1, 2))
    assert one < two < 1.6 * one


def test_larger_requests_lower_the_rate():
    plain, mixed = Predictor(calibration()), Predictor(calibration(), mix=Mix(((1, 0.5), (3, 0.5))))
    setting = Setting(16)
    assert plain.ceiling(setting) / 2 < mixed.ceiling(setting) < 0.55 * plain.ceiling(setting)
    assert mixed.at(setting, 500.0, 2000).latency > plain.at(setting, 500.0, 2000).latency


def test_predictions_are_repeatable():
    one, other = (Predictor(calibration()).at(Setting(16), 900.0, 2000) for _ in range(2))
    assert one == other
    assert one.steady
