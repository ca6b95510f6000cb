import numpy as np
import pytest

from repogen.errors import RepogenError
from repogen.load.distribution import parse


def draw(text, count=2000, **limits):
    return np.array(parse(text, "--shape W").draw(count, np.random.default_rng(3), **limits))


@pytest.mark.parametrize(
    ("text", "mean", "sd"),
    [
        ("320", 320, 0),
        ("lognormal(320, 80)", 320, 80),
        ("normal(320, 80)", 320, 80),
        ("uniform(1, 8)", 4.5, 2.29),
        ("choice(1*7, 8*3)", 3.1, 3.21),
    ],
)
def test_mean_and_spread(text, mean, sd):
    drawn = draw(text)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.std() == pytest.approx(sd, rel=0.02)
    few = draw(text, 32)  # a small pool represents it as well, whatever the seed
    assert few.mean() == pytest.approx(mean, rel=0.05)


def test_the_log_of_a_lognormal_is_normal():
    logs = np.log(draw("lognormal(320, 80)", 20_000))
    z = (logs - logs.mean()) / logs.std()
    assert np.percentile(z, [2.275, 50, 97.725]) == pytest.approx([-2, 0, 2], abs=0.05)


def test_uniform_reaches_its_edges_as_often_as_the_middle():
    values, counts = np.unique(draw("uniform(1, 8)", 8000), return_counts=True)
    assert values.tolist() == list(range(1, 9))
    assert counts == pytest.approx([1000] * 8, abs=2)


def test_sizes_stay_in_the_range_and_on_their_steps():
    drawn = draw("normal(300, 300) step 32", low=40, high=1000)
    assert (drawn % 32 == 0).all()
    assert (drawn.min(), drawn.max()) == (64, 992)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-3",
        "gamma(1, 2)",
        "normal(1)",
        "normal(0, 1)",
        "uniform(3, 2)",
        "choice(0)",
        "choice(1*0)",
        "uniform(1,2) step 0",
        "normal(nan, 1)",
    ],
)
def test_no_distribution(text):
    with pytest.raises(RepogenError, match="--shape W"):
        parse(text, "--shape W")
