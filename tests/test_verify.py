import numpy as np
import pytest

from repogen.model import ServedModel, ServedTensor
from repogen.verify import batches, compare

Y = ServedTensor("y", "TYPE_FP32", (3,))


def model(max_batch_size):
    return ServedModel("m", "onnxruntime", "m.onnx", max_batch_size, (), (), (), None, ())


@pytest.mark.parametrize(("maximum", "expected"), [(0, (0,)), (1, (1,)), (2, (1, 2)), (16, (1, 2, 16))])
def test_batches(maximum, expected):
    assert batches(model(maximum)) == expected


def problem(expected, got):
    return compare("m", 1, Y, np.asarray(expected), None if got is None else np.asarray(got)).problem


def test_equal_answers_are_right():
    assert problem([[1.0, 2.0, np.nan]], [[1.0, 2.0, np.nan]]) == ""
    assert problem([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.001]]) == ""
    assert problem([], []) == ""
    assert problem(np.array(["a"], dtype=object), np.array([b"a"], dtype=object)) == ""


@pytest.mark.parametrize(
    ("expected", "got", "message"),
    [
        ([1.0, 2.0], [1.0, 2.1], "differs by 0.1"),
        ([1, 2], [1, 3], "differs by 1"),
        ([1.0, 2.0], [1.0, np.nan], "NaN or infinity"),
        ([1.0, 2.0], [[1.0, 2.0]], r"is \[1, 2\], not \[2\]"),
        ([1.0, 2.0], [], r"is \[0\], not \[2\]"),
        ([1.0], None, "did not answer"),
        ([0.0], [0.1], "differs by 0.1"),
        (np.array(["a", "b"], dtype=object), np.array([b"a", b"x"], dtype=object), "1 of 2 strings differ"),
    ],
)
def test_unlike_answers_are_named(expected, got, message):
    import re

    assert re.search(message, problem(expected, got))
