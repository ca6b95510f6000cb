from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from repogen.errors import RepogenError
from repogen.load import payload, samples
from repogen.model import InputHint, ServedModel, ServedTensor, ShapeRange
from repogen.triton import encode
from tests.fake_triton import identity_config

MODEL = ServedModel(
    name="m",
    backend="python",
    source="",
    max_batch_size=4,
    inputs=(
        ServedTensor("image", "TYPE_FP32", (3, -1), labels=("", "W")),
        ServedTensor("text", "TYPE_STRING", (2,)),
    ),
    outputs=(),
    instances=(),
    dynamic_batching=None,
    files=(),
    shapes={"W": ShapeRange(1, 6, 9)},
    hints={"image": InputHint(range=(0.0, 1.0))},
)


def test_a_pool_is_varied_and_repeatable():
    first, again, other = (payload.pool(MODEL, batch=2, count=3, seed=seed) for seed in (1, 1, 100))
    assert [encode("m", r) for r in first] == [encode("m", r) for r in again]
    assert len({encode("m", r) for r in first + other}) == 6
    assert first[0]["image"].shape == (2, 3, 6)
    assert first[0]["text"].shape == (2, 2)
    assert first[0]["image"].min() >= 0


@pytest.mark.parametrize(("limit", "batch"), [(4, 5), (4, 0), (0, 2)])
def test_a_batch_that_the_model_does_not_take(limit, batch):
    with pytest.raises(RepogenError, match=f"m takes no requests of batch {batch}: max_batch_size is {limit}"):
        payload.pool(replace(MODEL, max_batch_size=limit), batch=batch, count=1, seed=0)


def test_requests_survive_their_file(tmp_path):
    strings = np.array([[b"\x00\xff", b""]], dtype=object)
    requests = [
        {"a/b:0": strings, "file": np.zeros((0, 2), dtype=np.float16)},
        {"a/b:0": np.array(["ж"]), "file": np.array(3, dtype=ml_dtypes.bfloat16)},
    ]
    payload.save(tmp_path / "p.npz", requests)
    read = payload.load(tmp_path / "p.npz")
    assert [encode("m", r) for r in read] == [encode("m", r) for r in requests]
    assert read[0]["a/b:0"].tolist() == strings.tolist()
    assert read[1]["file"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("loader", [payload.load, samples.load], ids=["payload", "samples"])
@pytest.mark.parametrize("content", [b"", b"PK", b"text", None], ids=["empty", "cut", "text", "missing"])
def test_a_file_of_something_else(tmp_path, content, loader):
    path = tmp_path / "p.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RepogenError, match=r"p\.npz: not a file of"):
        loader(path)
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(RepogenError, match=r"p\.npz: not a file of"):
        loader(path)


def test_from_a_live_config():
    config = identity_config("m", max_batch_size=8, dims=(3, -1))
    config.dynamic_batching.max_queue_delay_microseconds = 500
    model = payload.from_config(config, {"x": (3, 5)})
    assert model.dynamic_batching.max_queue_delay == 500
    assert payload.pool(model, batch=2, count=1, seed=0)[0]["x"].shape == (2, 3, 5)
    assert payload.from_config(identity_config("m"), {}).dynamic_batching is None


def test_a_free_axis_without_a_size_gets_one():
    model = payload.from_config(identity_config("m", max_batch_size=0, dims=(-1,)), {})
    assert payload.pool(model, batch=1, count=1, seed=0)[0]["x"].ndim == 1


@pytest.mark.parametrize("shape", [(4, 5), (3,), (3, 5, 1)])
def test_a_shape_that_does_not_fit(shape):
    with pytest.raises(RepogenError, match=r"input x of m has dims \[3, -1\]"):
        payload.from_config(identity_config("m", dims=(3, -1)), {"x": shape})


def test_a_shape_for_no_input():
    with pytest.raises(RepogenError, match=r"no input 'z' \(its inputs are x\)"):
        payload.from_config(identity_config("m"), {"z": (1,)})
