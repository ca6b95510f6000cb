"""fp16 and bf16: valid, strongly typed, right, the same bytes each time, and in fp32 where it must be."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from repogen.precision.emulation import emulated
from repogen.precision.graphs import Unfit
from tests.precision.kit import assert_strongly_typed, graph_of, lowered, operators, run, types_of

HALF = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
F, H = TensorProto.FLOAT, TensorProto.FLOAT16
RNG = np.random.default_rng(0)


def weights(*shape, scale=0.3):
    return RNG.normal(0, scale, shape).astype(np.float32)


def norm_written_out():
    nodes = [
        ("MatMul", "x w", "h"), ("ReduceMean", "h", "m", {"axes": [-1]}), ("Sub", "h m", "c"), ("Pow", "c two", "q"),
        ("ReduceMean", "q", "v", {"axes": [-1]}), ("Add", "v eps", "e"), ("Sqrt", "e", "s"), ("Div", "c s", "n"),
        ("Mul", "n g", "k"), ("MatMul", "k w", "y"),
    ]  # fmt: skip
    constants = {"w": weights(8, 8), "two": np.float32(2), "eps": np.float32(1e-12), "g": weights(8)}
    return graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], constants)


def attention():
    nodes = [
        ("MatMul", "x w", "q"), ("Transpose", "q", "t", {"perm": [0, 2, 1]}), ("MatMul", "q t", "s"),
        ("Cast", "mask", "f", {"to": F}), ("Sub", "one f", "o"), ("Mul", "o lowest", "b"), ("Add", "s b", "m"),
        ("Softmax", "m", "p", {"axis": -1}), ("MatMul", "p q", "y"),
    ]  # fmt: skip
    constants = {"w": weights(8, 8), "one": np.float32(1), "lowest": np.float32(np.finfo(np.float32).min)}
    inputs = [("x", "FLOAT", ["N", 4, 8]), ("mask", "INT64", ["N", 1, 4])]
    return graph_of(nodes, inputs, [("y", "FLOAT", ["N", 4, 8])], constants)


def convolution():
    nodes = [
        ("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}), ("BatchNormalization", "c g b m v", "n"), ("Relu", "n", "r"),
        ("Resize", "r  scales", "z", {"mode": "nearest"}), ("Conv", "z w2", "y"),
    ]  # fmt: skip
    nodes[3] = helper.make_node("Resize", ["r", "", "scales"], ["z"], "resize", mode="nearest")
    constants = {
        "w": weights(6, 3, 3, 3), "g": weights(6) + 1, "b": weights(6), "m": weights(6), "v": np.abs(weights(6)) + 1,
        "scales": np.array([1, 1, 2, 2], np.float32), "w2": weights(2, 6, 1, 1),
    }  # fmt: skip
    return graph_of(nodes, [("x", "FLOAT", ["N", 3, 8, 8])], [("y", "FLOAT", ["N", 2, 16, 16])], constants)


def resized_to_computed_size():
    nodes = [
        ("Conv", "x w", "c"), ("Shape", "c", "s"), ("Cast", "s", "f", {"to": F}), ("Mul", "f two", "d"),
        ("Cast", "d", "i", {"to": TensorProto.INT64}), helper.make_node("Resize", ["c", "", "", "i"], ["y"], "resize"),
    ]  # fmt: skip
    constants = {"w": weights(3, 3, 1, 1), "two": np.array([1, 1, 2, 2], np.float32)}
    return graph_of(nodes, [("x", "FLOAT", ["N", 3, "H", "W"])], [("y", "FLOAT", None)], constants)


def branches():
    """An If whose branches read an outer float tensor, between two products."""
    scalar = [("c", "BOOL", [])]
    body = [
        helper.make_graph([helper.make_node(op, ["h"], [f"{op}_out"])], op, [], [helper.make_tensor_value_info(f"{op}_out", F, None)])
        for op in ("Sigmoid", "Tanh")
    ]  # fmt: skip
    choice = helper.make_node("If", ["c"], ["i"], "choice", then_branch=body[0], else_branch=body[1])
    nodes = [("MatMul", "x w", "h"), choice, ("MatMul", "i w", "y")]
    return graph_of(nodes, [("x", "FLOAT", ["N", 8]), *scalar], [("y", "FLOAT", ["N", 8])], {"w": weights(8, 8)})


def embedding():
    nodes = [("Gather", "table ids", "e"), ("MatMul", "e w", "m"), ("Erf", "m", "f"), ("Mul", "f m", "y")]
    constants = {"table": weights(50, 8), "w": weights(8, 8)}
    return graph_of(nodes, [("ids", "INT64", ["N", 5])], [("y", "FLOAT", ["N", 5, 8])], constants)


def many_outputs():
    nodes = [
        ("MatMul", "x w", "h"), ("Split", "h sizes", "a b", {"axis": 1}), ("Softmax", "a", "p"), ("Relu", "b", "r"),
        ("Concat", "p r", "y", {"axis": 1}), ("ArgMax", "h", "k", {"axis": 1}), ("Identity", "h", "z"),
    ]  # fmt: skip
    outputs = [("y", "FLOAT", ["N", 8]), ("k", "INT64", None), ("z", "FLOAT", ["N", 8]), ("h", "FLOAT", ["N", 8])]
    constants = {"w": weights(8, 8), "sizes": np.array([4, 4])}
    return graph_of(nodes, [("x", "FLOAT", ["N", 8])], outputs, constants)


FEEDS = {
    norm_written_out: {"x": weights(3, 8, scale=1)},
    attention: {"x": weights(2, 4, 8, scale=1), "mask": np.array([[[1, 1, 1, 0]], [[1, 0, 0, 0]]])},
    convolution: {"x": weights(2, 3, 8, 8, scale=1)},
    resized_to_computed_size: {"x": weights(1, 3, 5, 7, scale=1)},
    branches: {"x": weights(3, 8, scale=1), "c": np.array(True)},
    embedding: {"ids": RNG.integers(0, 50, (2, 5))},
    many_outputs: {"x": weights(3, 8, scale=1)},
}
MODELS = pytest.mark.parametrize("make", FEEDS, ids=lambda make: make.__name__)
BOTH = pytest.mark.parametrize("precision", ["fp16", "bf16"])
IO = pytest.mark.parametrize("io", ["fp32", "graph"])


@MODELS
@BOTH
@IO
def test_strongly_typed_and_right(make, precision, io, tmp_path):
    model = make()
    made, done = lowered(model, precision, tmp_path, io=io)
    assert_strongly_typed(made)
    assert done.half > 0
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)}
    wanted = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    if io == "graph":
        wanted = {name: HALF[precision] if kind == F else kind for name, kind in wanted.items()}
    assert kinds == wanted
    answers = run(model, FEEDS[make])
    got = run(onnx.ModelProto.FromString(emulated(tmp_path / "model.onnx", precision)), FEEDS[make], optimised=False)
    if precision == "fp16":
        feed = {
            n: a.astype(np.float16) if io == "graph" and a.dtype == np.float32 else a for n, a in FEEDS[make].items()
        }
        for own, rounded in zip(run(made, feed), got, strict=True):
            assert np.allclose(own.astype(np.float32), rounded.astype(np.float32), rtol=0.02, atol=0.02)
    for want, have in zip(answers, got, strict=True):
        assert want.shape == have.shape
        if want.dtype == np.float32:
            off = np.linalg.norm(want - have.astype(np.float32)) / np.linalg.norm(want)
            assert off < (0.004 if precision == "fp16" else 0.03), off
            assert off > 0 or want.size < 4, "nothing was rounded: it was not computed in half"


@MODELS
@BOTH
def test_the_same_bytes_each_time(make, precision, tmp_path):
    model, content = make(), []
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        lowered(model, precision, tmp_path / part)
        content.append((tmp_path / part / "model.onnx").read_bytes())
    assert content[0] == content[1]


def test_a_normalisation_written_out_stays_whole(tmp_path):
    made, done = lowered(norm_written_out(), "fp16", tmp_path)
    types = types_of(made)
    for node in made.graph.node:
        if node.op_type in ("ReduceMean", "Sub", "Pow", "Sqrt", "Div", "Add"):
            assert {types[name] for name in node.output} == {F}, node.name
        if node.op_type == "MatMul":
            assert types[node.output[0]] == H
    assert done.casts == 4  # x in; h out of half and n or k back; y out


def test_softmax_and_a_mask_beyond_half_stay_in_fp32(tmp_path):
    """A mask of -3.4e38 would be minus infinity in half, and a row that is masked whole then NaN."""
    made, done = lowered(attention(), "fp16", tmp_path)
    types = types_of(made)
    kept = {node.op_type: types[node.output[0]] for node in made.graph.node}
    assert kept["Softmax"] == kept["Mul"] == kept["Add"] == F
    assert any("3.4" in reason for reason in done.kept.values())
    feed = dict(FEEDS[attention], mask=np.zeros((2, 1, 4), np.int64))
    assert np.isfinite(run(made, feed)[0]).all()


def test_a_constant_beyond_half_and_its_mean_stay_in_fp32(tmp_path):
    nodes = [
        ("MatMul", "x w", "h"),
        ("Mul", "h big", "b"),
        ("ReduceMean", "b", "m", {"axes": [1]}),
        ("Div", "b big", "y"),
    ]
    constants = {"big": np.float32(1e12), "w": weights(8, 8)}
    model = graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8]), ("m", "FLOAT", None)], constants)
    made, done = lowered(model, "fp16", tmp_path)
    assert done.half == 1
    feed = {"x": weights(3, 8, scale=1)}
    for want, have in zip(run(model, feed), run(made, feed), strict=True):
        assert np.isfinite(have).all()
        assert np.allclose(want, have, rtol=1e-2, atol=1e-2 * np.abs(want).max())


def test_a_range_that_was_seen_to_leave_half_keeps_its_nodes(tmp_path):
    """Nothing in the graph tells it: only the data do."""
    model = graph_of([("MatMul", "x w", "h"), ("Tanh", "h", "t"), ("MatMul", "t w", "y")], [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], {"w": weights(8, 8)})  # fmt: skip
    _, calm = lowered(model, "fp16", tmp_path, ranges={"h": 60.0, "x": 1.0, "t": 1.0, "y": 1.0})
    made, wild = lowered(model, "fp16", tmp_path, ranges={"h": 50000.0, "x": 1.0, "t": 1.0, "y": 1.0})
    assert (calm.half, wild.half) == (3, 1)
    assert types_of(made)["h"] == F


def test_a_tiny_epsilon_stays_in_fp32(tmp_path):
    nodes = [("MatMul", "x w", "h"), ("Abs", "h", "a"), ("Add", "a eps", "e"), ("Div", "h e", "y")]
    model = graph_of(
        nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], {"w": weights(8, 8), "eps": np.float32(1e-9)}
    )
    made, _ = lowered(model, "fp16", tmp_path)
    feed = {"x": np.zeros((1, 8), np.float32)}
    assert np.isfinite(run(made, feed)[0]).all()  # 0 / (0 + eps), not 0 / 0


def test_sizes_are_computed_in_fp32(tmp_path):
    """Half rounds whole numbers from 2048 on: a picture 2051 wide must not become 2052 or 4104 of 4102."""
    made, _ = lowered(resized_to_computed_size(), "fp16", tmp_path)
    image = np.zeros((1, 3, 1, 2051), np.float32)
    assert run(made, {"x": image})[0].shape == (1, 3, 2, 4102)


def test_what_is_asked_for_stays(tmp_path):
    by_name, one = lowered(embedding(), "fp16", tmp_path, keep=["n1_MatMul"])
    assert "MatMul" not in operators(by_name, H)
    assert one.kept["n1_MatMul"] == "asked for"
    by_operator, _ = lowered(embedding(), "fp16", tmp_path, keep=["MatMul", "Gather"])
    assert operators(by_operator, H) <= {"Erf", "Mul"}


def test_an_embedding_table_is_halved(tmp_path):
    made, _ = lowered(embedding(), "fp16", tmp_path)
    assert {tensor.data_type for tensor in made.graph.initializer} == {H}


def test_subgraphs_stay_whole_and_find_what_they_read(tmp_path):
    made, done = lowered(branches(), "fp16", tmp_path)
    (choice,) = (node for node in made.graph.node if node.op_type == "If")
    assert "whole" in done.kept["choice"]
    for attribute in choice.attribute:
        assert attribute.g.output[0].type.tensor_type.elem_type == F
    answers = [run(made, dict(FEEDS[branches], c=np.array(flag)))[0] for flag in (True, False)]
    assert not np.allclose(*answers)


def test_a_weight_that_both_types_read_is_there_in_both(tmp_path):
    nodes = [("MatMul", "x w", "h"), ("Pow", "w two", "q"), ("ReduceSum", "q axes", "s"), ("Mul", "h s", "y")]
    constants = {"w": weights(8, 8), "two": np.float32(2), "axes": np.array([0])}
    model = graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], constants)
    made, _ = lowered(model, "fp16", tmp_path)
    assert_strongly_typed(made)
    found = {tensor.name: tensor for tensor in made.graph.initializer}
    assert np.array_equal(numpy_helper.to_array(found["w"]), constants["w"])  # not rounded for those in fp32
    assert np.array_equal(numpy_helper.to_array(found["w_fp16"]), constants["w"].astype(np.float16))


def test_nothing_to_lower_is_refused(tmp_path):
    model = graph_of([("Softmax", "x", "y")], [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])])
    with pytest.raises(Unfit, match="nothing of it can run in fp16: Softmax is sensitive"):
        lowered(model, "fp16", tmp_path)


def test_functions_are_inlined_and_foreign_operators_left(tmp_path):
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    nodes = [
        ("MatMul", "x w", "h"), helper.make_node("Twice", ["h"], ["t"], "twice", domain="own"),
        helper.make_node("Gelu", ["t"], ["g"], "gelu", domain="com.microsoft"), ("MatMul", "g w", "y"),
    ]  # fmt: skip
    model = graph_of(
        nodes,
        [("x", "FLOAT", ["N", 8])],
        [("y", "FLOAT", ["N", 8])],
        {"w": weights(8, 8)},
        functions=[twice],
        domains=["own", "com.microsoft"],
    )
    model.graph.value_info.append(helper.make_tensor_value_info("g", F, ["N", 8]))
    made, done = lowered(model, "fp16", tmp_path)
    assert "com.microsoft:Gelu" in done.kept["gelu"]
    assert not made.functions
    feed = {"x": weights(3, 8, scale=1)}
    assert np.allclose(run(model, feed)[0], run(made, feed)[0], rtol=1e-2, atol=1e-2)


def test_bf16_follows_the_schema_of_its_opset(tmp_path):
    """Convolutions take bfloat16 from opset 22 on; a Resize takes it for its picture, but not for roi and scales."""
    model = convolution()
    (resize,) = (node for node in model.graph.node if node.op_type == "Resize")
    resize.input[1] = "roi"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "roi"))
    made, _ = lowered(model, "bf16", tmp_path)
    assert made.opset_import[0].version >= 22
    types = types_of(made)
    (resize,) = (node for node in made.graph.node if node.name == "resize")
    assert [types[name] for name in resize.input] == [HALF["bf16"], F, F]
    assert {"Conv", "Resize"} <= operators(made, HALF["bf16"])


def test_emulation_rounds_where_a_gpu_does(tmp_path):
    """ONNX Runtime leaves fp16 roundings out on a CPU, and with them what overflows: 300 * 300 is infinite in fp16."""
    model = graph_of(
        [("Mul", "x x", "a"), ("Add", "a a", "b"), ("Sub", "b a", "y")],
        [("x", "FLOAT", ["N"])],
        [("y", "FLOAT", ["N"])],
    )
    lowered(model, "fp16", tmp_path)
    feed = {"x": np.array([3.0, 300.0, 1.0009765625], np.float32)}
    found = run(onnx.ModelProto.FromString(emulated(tmp_path / "model.onnx", "fp16")), feed, optimised=False)[0]
    half = feed["x"].astype(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        want = ((half * half) + (half * half)) - (half * half)
    assert np.array_equal(found, want.astype(np.float32), equal_nan=True)
    assert not np.isfinite(found[1])


def test_weights_of_a_large_model_go_into_a_file_of_their_own(tmp_path, monkeypatch):
    from repogen.precision import graphs

    model = graph_of(
        [("MatMul", "x w", "y")], [("x", "FLOAT", ["N", 64])], [("y", "FLOAT", ["N", 64])], {"w": weights(64, 64)}
    )
    inside, _ = lowered(model, "fp16", tmp_path)
    monkeypatch.setattr(graphs, "_EXTERNAL_FROM", 0)
    folder = tmp_path / "large"
    folder.mkdir()
    outside, _ = lowered(model, "fp16", folder)
    assert sorted(entry.name for entry in folder.iterdir()) == ["model.onnx", "model.onnx.data", "source.onnx"]
    assert (folder / "model.onnx").stat().st_size < 1000
    feed = {"x": weights(2, 64)}
    assert np.array_equal(run(inside, feed)[0], run(outside, feed)[0])
