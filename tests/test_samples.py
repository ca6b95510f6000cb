import numpy as np
import pytest

from repogen.dtypes import BY_TRITON
from repogen.model import InputHint, ServedTensor, ShapeRange
from repogen.samples import request, rows_of, shape_of, values

X = ServedTensor("x", "TYPE_FP32", (3, -1), labels=("", "W"))


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", sorted(BY_TRITON))
def test_every_type_can_be_made(dtype):
    made = values(dtype, (2, 3), rng=rng())
    assert made.shape == (2, 3)
    assert str(made.dtype) == (BY_TRITON[dtype].numpy or "bfloat16")


def test_values_and_ranges_are_kept():
    assert set(values("TYPE_INT64", (50,), InputHint(values=(5, 9)), rng=rng())) == {5, 9}
    assert set(values("TYPE_INT64", (200,), InputHint(range=(3, 6)), rng=rng())) == {3, 4, 5}
    assert values("TYPE_INT64", (4,), InputHint(range=(0, 0.5)), rng=rng()).tolist() == [0, 0, 0, 0]
    made = values("TYPE_FP32", (200,), InputHint(range=(10, 11)), rng=rng())
    assert 10 <= made.min() <= made.max() < 11
    assert set(values("TYPE_STRING", (50,), InputHint(values=("a", 2)), rng=rng())) == {b"a", b"2"}
    assert set(values("TYPE_BOOL", (50,), InputHint(values=(True,)), rng=rng())) == {True}


def test_free_axes_have_their_size_and_literal_zeros_stay():
    shapes = {"W": ShapeRange(8, 40, 64), "z.1": ShapeRange(0, 0, 0)}
    assert shape_of(X, 5, max_batch_size=8, shapes=shapes) == (5, 3, 40)
    assert shape_of(X, 5, max_batch_size=0, shapes=shapes) == (3, 40)
    empty = ServedTensor("z", "TYPE_FP32", (-1, 4), labels=("z.1", ""))
    assert shape_of(empty, 2, max_batch_size=8, shapes=shapes) == (2, 0, 4)


def made(tensors, batch, seed=0, max_batch_size=8, hints=None):
    return request(tensors, batch, max_batch_size=max_batch_size, shapes={}, hints=hints or {}, seed=seed)


def test_the_same_seed_makes_the_same_request():
    one, two, other = made([X], 2, 7), made([X], 2, 7), made([X], 2, 8)
    assert np.array_equal(one["x"], two["x"])
    assert not np.array_equal(one["x"], other["x"])


def test_rows_of_a_file_follow_the_seed(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3, 1)
    np.savez(tmp_path / "s.npz", x=rows, n=np.arange(4), s=np.array(5))
    hints = {name: InputHint(file=tmp_path / "s.npz") for name in ("x", "n", "s")}
    flat = ServedTensor("n", "TYPE_INT64", (1,), labels=("",), reshape=())
    scalar = ServedTensor("s", "TYPE_INT64", (1,), scalar=True)
    got = made([X, flat], 3, seed=2, hints=hints)
    assert np.array_equal(got["x"], rows[[2, 3, 0]])
    assert got["n"].tolist() == [[2], [3], [0]]
    whole = made([X, scalar], 1, max_batch_size=0, hints=hints)
    assert np.array_equal(whole["x"], rows)
    assert whole["s"].tolist() == [5]


def test_strings_of_a_file_are_bytes(tmp_path):
    np.savez(tmp_path / "s.npz", a=np.array([["é"]]), b=np.array([[b"x"]]))
    assert rows_of(tmp_path / "s.npz", "a").tolist() == [["é".encode()]]
    assert rows_of(tmp_path / "s.npz", "b").tolist() == [[b"x"]]
