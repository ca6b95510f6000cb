from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from repogen.errors import RepogenError
from repogen.load import payload, samples
from repogen.load.distribution import parse
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


def test_sizes_and_batches_follow_their_distributions():
    batch, sizes = parse("choice(1*3, 4)", ""), {"W": parse("uniform(2, 20)", "")}
    requests = payload.pool(MODEL, count=32, seed=0, batch=batch, sizes=sizes)
    assert sorted(payload.batch_of(MODEL, r) for r in requests) == [1] * 24 + [4] * 8
    widths = {r["image"].shape[-1] for r in requests}
    assert widths == {2, 3, 4, 5, 6, 7, 8, 9}  # clipped to the range of W
    assert all(r["image"].shape[0] == r["text"].shape[0] for r in requests)


def test_a_distribution_of_batches_beyond_the_limit():
    with pytest.raises(RepogenError, match="m takes no requests of batch 5"):
        payload.pool(MODEL, count=8, seed=0, batch=parse("uniform(1, 5)", ""))


def test_an_axis_that_the_model_has_not():
    with pytest.raises(RepogenError, match=r"m has no free axis 'H' \(its free axes: W\)"):
        payload.pool(MODEL, count=1, seed=0, sizes={"H": parse("3", "")})


def test_a_pool_of_large_requests_is_small(monkeypatch):
    monkeypatch.setattr(payload, "_LARGEST", 5000)
    wide = replace(MODEL, inputs=(ServedTensor("x", "TYPE_UINT8", (2000,)),))
    assert len(payload.pool(wide, count=32, seed=0)) == 4


def test_the_texts_of_shapes():
    texts = ["x:2,3; input:0:4", "s:", "W: lognormal(320, 80) step 32", "W:9"]
    shapes, spread = payload.parse_sizes(texts)
    assert shapes == {"x": (2, 3), "input:0": (4,), "s": (), "W": (9,)}
    assert spread == {"W": parse("lognormal(320, 80) step 32", "")}
    assert payload.split_sizes(MODEL, ["W: 9"]) == ({}, {"W": parse("9", "")})
    assert payload.split_sizes(MODEL, ["text: 9"]) == ({"text": (9,)}, {})


@pytest.mark.parametrize("text", ["x", ":3", "x:a", "x:2,", "x:-1", "x:2;y"])
def test_a_text_that_is_no_shape(text):
    with pytest.raises(RepogenError, match="is no shape"):
        payload.parse_sizes([text])


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
    free = payload.from_config(config, {})
    assert payload.pool(free, count=1, seed=0, sizes={"x.2": parse("7", "")})[0]["x"].shape == (1, 3, 7)


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
