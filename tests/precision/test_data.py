"""Case 36 and 37: whatever is wrong with the user's data is refused naming the file, and the sample where one is."""

import numpy as np
import pytest

from repogen.model import InputHint, Tensor
from repogen.precision.data import BadData, Channels, made_up, samples

INPUTS = (Tensor("x", "TYPE_FP32", ("N", 3, "W")), Tensor("n", "TYPE_INT64", ("N", 2)))


def good(rows=4, width=5):
    return {"x": np.ones((rows, 3, width), np.float32), "n": np.zeros((rows, 2), np.int64)}


def read(tmp_path, arrays, inputs=INPUTS, **options):
    file = tmp_path / "data.npz"
    np.savez(file, **arrays)
    return list(samples([str(file)], inputs, batched=options.pop("batched", True), **options))


def spoiled(name, value, place=(2, 1, 1)):
    arrays = good()
    arrays[name][place] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        pytest.param(spoiled("x", np.nan), "data.npz: 'x' has NaN at sample 2", id="nan"),
        pytest.param(spoiled("x", -np.inf), "data.npz: 'x' has infinity at sample 2", id="infinity"),
        pytest.param(good() | {"x": good()["x"].astype(np.float64)}, "'x' is float64, not float32", id="dtype"),
        pytest.param(good() | {"x": np.ones((4, 4, 5), np.float32)}, r"'x' has the shape \[4, 4, 5\], not \[N, 3, W\]", id="shape"),
        pytest.param(good() | {"x": np.ones((4, 3), np.float32)}, r"'x' has the shape \[4, 3\]", id="rank"),
        pytest.param(good() | {"y": np.ones(4)}, "'y' is no input of the model; they are x, n", id="name"),
        pytest.param({"x": good()["x"]}, "no array for the input 'n'", id="missing"),
        pytest.param(good(0), "'x' is empty", id="empty"),
        pytest.param({}, "no array for the input 'x'; it has none", id="nothing"),
        pytest.param(good() | {"n": np.zeros((3, 2), np.int64)}, "'n' has 3 along 'N' where 'x' has 4", id="counts"),
        pytest.param(good() | {"n": np.array([{"a": 1}] * 4, object)}, "Python objects, which are never unpickled", id="objects"),
    ],
)  # fmt: skip
def test_refused(arrays, said, tmp_path):
    with pytest.raises(BadData, match=said) as caught:
        read(tmp_path, arrays)
    assert str(tmp_path / "data.npz") in str(caught.value)


class Evil:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_under_another_name_is_never_opened(tmp_path):
    import pickle

    file = tmp_path / "calib.npz"
    file.write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    with pytest.raises(BadData, match="calib.npz is not an .npz of plain arrays"):
        list(samples([str(file)], INPUTS, batched=True))
    np.savez(file, x=np.array([Evil(tmp_path / "owned")], object))
    with pytest.raises(BadData, match="never unpickled"):
        list(samples([str(file)], INPUTS, batched=True))
    assert not (tmp_path / "owned").exists()


def test_samples_come_one_by_one_or_as_the_model_takes_them(tmp_path):
    assert [(one.index, one.arrays["x"].shape) for one in read(tmp_path, good(), rows=3)] == [
        (0, (3, 3, 5)),
        (3, (1, 3, 5)),
    ]
    pairs = (Tensor("x", "TYPE_FP32", (2, 3)),)
    assert [one.index for one in read(tmp_path, {"x": np.ones((4, 3), np.float32)}, pairs, batched=False)] == [0, 2]
    with pytest.raises(BadData, match="3 samples, but the model takes 2 at a time"):
        read(tmp_path, {"x": np.ones((3, 3), np.float32)}, pairs, batched=False)
    whole = (Tensor("x", "TYPE_FP32", ("T", 3)),)
    (one,) = read(tmp_path, {"x": np.ones((7, 3), np.float32)}, whole, batched=False)
    assert one.arrays["x"].shape == (7, 3)


def test_labels_pass_only_where_they_are_wanted(tmp_path):
    arrays = good() | {"label": np.arange(4)}
    assert read(tmp_path, arrays, extra=True, rows=2)[1].arrays["label"].tolist() == [2, 3]


def test_text_comes_as_onnxruntime_takes_it(tmp_path):
    text = (Tensor("t", "TYPE_STRING", ("N", 1)),)
    (one,) = read(tmp_path, {"t": np.array([["grün"]])}, text)
    assert one.arrays["t"].tolist() == [["grün"]]


def test_a_channel_that_never_changes_is_told():
    channels = Channels()
    rng = np.random.default_rng(0)
    for _ in range(3):
        image = rng.normal(size=(1, 3, 4, 4)).astype(np.float32)
        image[:, 1] = 0.5
        channels.add({"image": image})
    assert channels.constant() == ["channel 1 of 'image' is the same in all samples: is the data right?"]


def test_made_up_samples_keep_to_what_is_known():
    hints = {"n": InputHint(range=(5, 9))}
    made = list(made_up(INPUTS, sizes={"W": 7}, hints=hints, count=3, batched=True))
    assert [one.arrays["x"].shape for one in made] == [(1, 3, 7)] * 3
    assert all(5 <= value < 9 for one in made for value in one.arrays["n"].ravel())
    again = list(made_up(INPUTS, sizes={"W": 7}, hints=hints, count=3, batched=True))
    assert all(np.array_equal(a.arrays["x"], b.arrays["x"]) for a, b in zip(made, again, strict=True))
