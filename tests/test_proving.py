"""Batchability is found by running; each kind of fault that makes merged answers differ must be caught."""

import json

import numpy as np
import pytest
from onnx import TensorProto

from repogen.cache import cache_folder
from repogen.desired import desired_models, read_and_prove
from repogen.errors import ManifestError
from repogen.manifest import ModelEntry
from repogen.proof import prove
from tests.onnx_models import BOOL, FLOAT, INT64, STRING, elementwise, external, graph, linear, node, save

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(16, 16)).astype(np.float32)


def proof_of(path, **entry):
    return read_and_prove(path, ModelEntry(source=str(path), **entry) if entry else None)[1]


def batch_size():
    """Nodes that give the batch size of x as fp32 in `n`."""
    return [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["i"]), node("Cast", ["i"], ["n"], to=FLOAT)]


ZERO = {"zero": np.array(0), "one": np.array(1), "axes": np.array([1])}


def xy(path, nodes, constants=None, width=16, **options):
    spec = ["N", width]
    return save(path, nodes, [("x", FLOAT, spec)], [("y", FLOAT, spec)], ZERO | (constants or {}), **options)


def test_a_model_that_can_be_batched(tmp_path):
    proof = proof_of(linear(tmp_path / "m.onnx"), max_batch_size=16)
    assert (proof.batchable, proof.batches) == (True, (1, 2, 3, 16))
    assert proof.reason == "proved at batch 1, 2, 3 and 16"
    assert 0 < proof.peak_memory < 2**30


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        ([*batch_size(), node("Mul", ["x", "n"])], {}, "the batch size itself enters"),
        (
            [*batch_size(), node("MatMul", ["x", "w"], ["h"]), node("Mul", ["n", "e"], ["a"]), node("Add", ["h", "a"])],
            {"w": WEIGHTS, "e": np.float32(0.003)},
            "answers change at batch 2",
        ),
        (
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "zero"], ["n"]),
                node("Range", ["zero", "n", "one"], ["r"]),
                node("Cast", ["r"], ["f"], to=FLOAT),
                node("Unsqueeze", ["f", "axes"], ["u"]),
                node("Add", ["x", "u"]),
            ],
            {},
            "answers change at batch 2",
        ),
        ([node("ReduceMean", ["x"], ["m"], axes=[0], name="mean"), node("Sub", ["x", "m"])], {}, "ReduceMean 'mean'"),
        ([node("ReduceMax", ["x"], ["m"], axes=[0], name="top"), node("Div", ["x", "m"])], {}, "ReduceMax 'top'"),
        ([node("Softmax", ["x"], axis=0, name="soft")], {}, "Softmax 'soft'"),
        ([node("CumSum", ["x", "zero"], name="sum")], {}, "CumSum 'sum'"),
        ([node("Concat", ["x", "x"], axis=0, name="twice")], {}, r"output 'y' is \[4, 16\] at batch 2"),
        ([node("MatMul", ["x", "w"], ["h"]), node("BatchNormalization", ["h", "k", "b", "b", "k"], ["y", "m", "v"], training_mode=1)],
         {"w": WEIGHTS, "k": np.ones(16, np.float32), "b": np.zeros(16, np.float32)}, "two runs on the same input differ|answers change at batch 2"),
    ],
)  # fmt: skip
def test_answers_that_depend_on_the_batch(tmp_path, nodes, constants, reason):
    import re

    proof = proof_of(xy(tmp_path / "m.onnx", nodes, constants))
    assert proof.batchable is False
    assert re.search(reason, proof.reason), proof.reason


def test_sums_in_another_order_are_no_fault(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], ["p"]), node("MatMul", ["p", "w"])]
    big = RNG.normal(size=(512, 512)).astype(np.float32)
    assert proof_of(xy(tmp_path / "m.onnx", nodes, {"w": big}, width=512)).batchable is True


def test_ill_conditioned_layers_are_no_fault(tmp_path):
    # A variance of nearly nothing under a root: differences in the last digits come out at the front.
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("LayerNormalization", ["h", "k", "b"], ["y"], axis=-1, epsilon=1e-12),
    ]
    constants = {
        "w": np.ones((64, 16), np.float32) + 1e-6 * RNG.normal(size=(64, 16)).astype(np.float32),
        "k": np.ones(16, np.float32),
        "b": np.zeros(16, np.float32),
    }
    path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 64])], [("y", FLOAT, ["N", 16])], constants)
    assert proof_of(path).batchable is True


def test_the_batch_symbol_on_another_axis(tmp_path):
    proof = proof_of(elementwise(tmp_path / "m.onnx", ["N", "N"], ["N", "N"]))
    assert (proof.batchable, proof.reason[:27]) == (False, "axis 1 of input 'x' is 'N' ")


def test_random_operators_are_recognised(tmp_path):
    noise = [node("RandomNormalLike", ["x"], ["r"], name="noise"), node("Add", ["x", "r"])]
    proof = proof_of(xy(tmp_path / "m.onnx", noise))
    assert proof.batchable is None
    assert "RandomNormalLike 'noise' makes every answer another" in proof.reason
    twice = [*noise[:1], node("Concat", ["x", "r"], axis=0)]
    assert proof_of(xy(tmp_path / "t.onnx", twice)).batchable is False


def test_a_model_that_cannot_be_run_says_why(tmp_path):
    nodes = [node("Sub", ["x", "x"], ["z"]), node("Div", ["x", "z"], name="ratio")]
    spec = ["N", 3]
    path = save(tmp_path / "m.onnx", nodes, [("x", INT64, spec)], [("y", INT64, spec)])
    proof = proof_of(path)
    assert proof.batchable is None
    assert "could not be run on made-up inputs: Div 'ratio'" in proof.reason


def test_a_loop_without_end_is_stopped(tmp_path):
    body = graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["v", "x"], ["w"])],
        [("i", INT64, []), ("c", BOOL, []), ("v", FLOAT, ["N", 4])],
        [("d", BOOL, []), ("w", FLOAT, ["N", 4])],
    )
    spec = ["N", 4]
    path = save(
        tmp_path / "m.onnx",
        [node("Loop", ["", "on", "x"], body=body)],
        [("x", FLOAT, spec)],
        [("y", FLOAT, spec)],
        {"on": np.array(True)},
    )
    facts = read_and_prove(linear(tmp_path / "other.onnx"))[0]
    from dataclasses import replace

    proof = prove(replace(facts, path=path), digest="endless", hints={}, shapes={}, timeout=3)
    assert (proof.batchable, "did not finish within 3 s" in proof.reason) == (None, True)


def test_the_memory_is_bounded_and_a_larger_bound_asks_again(tmp_path):
    path = elementwise(tmp_path / "m.onnx", [2**25], [2**25])  # 128 MiB of input, and as much of output
    refused = read_and_prove(path, memory=300 * 2**20)[1]
    assert (refused.batchable, refused.reason[:44]) == (None, "the proof could not be run: it needs more th")
    proof = read_and_prove(path, memory=2**31)[1]
    assert (proof.batchable, proof.reason) == (False, "axis 0 of input 'x' is fixed at 33554432")
    assert 2**28 < proof.peak_memory < 2**31


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "constants"),
    [
        (
            [node("OneHot", ["i", "depth", "pair"])],
            [("i", INT64, ["N"])],
            [("y", FLOAT, ["N", 5])],
            {"depth": np.array(5), "pair": np.array([0, 1], np.float32)},
        ),
        (
            [node("Cast", ["s"], to=FLOAT)],
            [("s", STRING, ["N", 2])],
            [("y", FLOAT, ["N", 2])],
            {},
        ),
        ([node("Mod", ["x", "d"])], [("x", INT64, ["N"]), ("d", INT64, ["N"])], [("y", INT64, ["N"])], {}),
        (
            [node("Gather", ["t", "ids"], ["e"]), node("Where", ["mask", "e", "zero"])],
            [("ids", INT64, ["N", "S"]), ("mask", BOOL, ["N", "S", 1])],
            [("y", FLOAT, ["N", "S", 4])],
            {"t": RNG.normal(size=(50, 4)).astype(np.float32), "zero": np.float32(0)},
        ),
    ],
)
def test_inputs_that_random_data_cannot_give(tmp_path, nodes, inputs, outputs, constants):
    assert proof_of(save(tmp_path / "m.onnx", nodes, inputs, outputs, constants)).batchable is True


def test_values_of_the_manifest_go_before_the_graphs(tmp_path):
    table = {"t": RNG.normal(size=(50, 4)).astype(np.float32)}
    path = save(
        tmp_path / "m.onnx", [node("Gather", ["t", "ids"])], [("ids", INT64, ["N"])], [("y", FLOAT, ["N", 4])], table
    )
    assert proof_of(path, inputs={"ids": {"range": [0, 3]}}).hints["ids"].range == (0, 3)
    refused = proof_of(path, inputs={"ids": {"range": [60, 70]}})
    assert (refused.batchable, "Gather" in refused.reason) == (None, True)


def test_without_onnxruntime_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr("repogen.proof._onnxruntime_version", lambda: "")
    proof = proof_of(linear(tmp_path / "m.onnx"))
    assert (proof.batchable, "onnxruntime is not installed" in proof.reason) == (None, True)


def test_weights_in_files_of_their_own(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    assert proof_of(external(tmp_path / "m.onnx", {"location": "w.bin", "length": "16"})).batchable is True


def test_an_answer_is_remembered_by_content(tmp_path):
    linear(tmp_path / "a.onnx")
    first = proof_of(tmp_path / "a.onnx")
    before = len(list((cache_folder() / "proofs").iterdir()))
    (tmp_path / "b.onnx").write_bytes((tmp_path / "a.onnx").read_bytes())
    assert proof_of(tmp_path / "b.onnx") == first
    assert len(list((cache_folder() / "proofs").iterdir())) == before


# Samples of the user's own.


def manifest(tmp_path, path, samples):
    (tmp_path / "repogen.yaml").write_text(
        f'triton: "26.08"\nmodels:\n  m:\n    source: {path.name}\n    samples: {samples}\n    instances: [{{kind: cpu}}]\n'
    )
    return tmp_path / "repogen.yaml"


@pytest.fixture
def table_model(tmp_path):
    """y = table[ids * mask] over a free S, which fails beyond the table's 5 rows."""
    nodes = [node("Mul", ["ids", "scale"], ["j"]), node("Gather", ["t", "j"], ["e"]), node("Mul", ["e", "x"])]
    inputs = [("ids", INT64, ["N", "S"]), ("x", FLOAT, ["N", "S", 1])]
    constants = {"t": RNG.normal(size=(5, 4)).astype(np.float32), "scale": np.array(2)}
    return save(tmp_path / "m.onnx", nodes, inputs, [("y", FLOAT, ["N", "S", 4])], constants)


def test_samples_are_used_by_the_proof_and_by_requests(tmp_path, table_model):
    from repogen.samples import request

    ids = np.array([[0, 1, 2], [2, 1, 0]])
    np.savez(tmp_path / "s.npz", ids=ids, x=np.ones((2, 3, 1), np.float32))
    (model,) = desired_models(manifest(tmp_path, table_model, "s.npz"))
    assert model.max_batch_size == 8
    made = request(model.inputs, 3, max_batch_size=8, shapes=model.shapes, hints=model.hints, seed=1)
    assert made["ids"].tolist() == [[2, 1, 0], [0, 1, 2], [2, 1, 0]]
    assert made["x"].shape == (3, 3, 1)


def test_samples_that_the_model_fails_on_are_told(tmp_path, table_model):
    np.savez(tmp_path / "s.npz", ids=np.full((2, 3), 4), x=np.ones((2, 3, 1), np.float32))
    (model,) = desired_models(manifest(tmp_path, table_model, "s.npz"))
    assert "Gather" in model.notes[0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"nope": np.zeros(3)}, "has an array 'nope', which is no input.*ids, x"),
        ({"ids": np.zeros((2, 3), np.int32)}, "the samples of 'ids' are int32, not int64"),
        ({"ids": np.zeros((2, 3, 1), np.int64)}, r"'ids' have the shape \[2, 3, 1\], not \[N, S\]"),
        ({"x": np.zeros((2, 3, 2), np.float32)}, r"'x' have the shape \[2, 3, 2\], not \[N, S, 1\]: axis 2"),
        ({"ids": np.zeros((2, 3), np.int64), "x": np.zeros((2, 4, 1), np.float32)}, "'x' have 4 along 'S' where"),
        ({"ids": np.zeros((2, 3), np.int64), "x": np.zeros((3, 3, 1), np.float32)}, "'x' have 3 along 'N' where"),
        ({"ids": np.zeros((0, 3), np.int64)}, "'ids' are none"),
        ({"x": np.full((2, 3, 1), np.nan, np.float32)}, "'x' have NaN"),
        ({"ids": np.array([[{}]], dtype=object)}, "not an .npz of plain arrays"),
    ],
)
def test_samples_that_do_not_fit_are_refused(tmp_path, table_model, arrays, message):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ManifestError, match=rf"models\.m\.samples: .*s\.npz.*{message}"):
        desired_models(manifest(tmp_path, table_model, "s.npz"))


def test_a_file_that_is_no_npz(tmp_path, table_model):
    (tmp_path / "s.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ManifestError, match="not an .npz"):
        desired_models(manifest(tmp_path, table_model, "s.npz"))
    with pytest.raises(ManifestError, match="there is no file"):
        desired_models(manifest(tmp_path, table_model, "gone.npz"))


def test_samples_of_strings(tmp_path):
    path = elementwise(tmp_path / "m.onnx", ["N", 1], ["N", 1], STRING)
    np.savez(tmp_path / "s.npz", x=np.array([["a"], ["é"]]))
    (model,) = desired_models(manifest(tmp_path, path, "s.npz"))
    assert model.max_batch_size == 8


# What people see.


def test_inspect_says_it_all(tmp_path, invoke):
    table = {"t": RNG.normal(size=(50, 4)).astype(np.float32)}
    inputs = [("ids", INT64, ["N", "S"]), ("u", FLOAT, ["N"])]
    path = save(tmp_path / "m.onnx", [node("Gather", ["t", "ids"])], inputs, [("y", FLOAT, ["N", "S", 4])], table)
    text = invoke("inspect", path).stdout
    for part in (
        "batching: yes",
        "the proof took",
        "rows of 't'",
        "'u' is read by no node",
        "never merged",
        "from 23.09 on",
    ):
        assert part in text
    found = json.loads(invoke("inspect", path, "--json").stdout)
    assert found["unused"] == ["u"]
    assert found["batching"]["values"]["ids"]["range"] == [0, 50]
    assert found["batching"]["peak_memory"] > 0
    limited = json.loads(invoke("inspect", path, "--json", "--memory", "3GiB").stdout)
    assert limited["batching"]["proved"] is True
    invoke("inspect", path, "--memory", "lots", code=2)


def test_inspect_of_infinity_is_json(tmp_path, invoke):
    path = xy(tmp_path / "m.onnx", [node("Min", ["x", "top"])], {"top": np.float32(np.inf)})
    found = json.loads(invoke("inspect", path, "--json").stdout, parse_constant=pytest.fail)
    assert found["beyond_fp16"] == [["top", "inf"]]


def test_bf16_is_said_not_to_have_been_run(tmp_path):
    proof = proof_of(elementwise(tmp_path / "m.onnx", ["N", 4], ["N", 4], TensorProto.BFLOAT16))
    assert (proof.batchable, "BF16" in proof.reason) == (None, True)
