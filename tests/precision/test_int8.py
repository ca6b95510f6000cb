"""Q/DQ as TensorRT takes it: symmetric, by channel, bias in fp32, small, and close to fp32."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from benchmarks.precision_models import encoder, images, resnet, sentences
from repogen.model import Tensor
from repogen.precision.calibration import gather
from repogen.precision.data import samples
from repogen.precision.graphs import Unfit, element_types, prepared, save
from repogen.precision.int8 import quantisable, quantise
from tests.precision.kit import assert_strongly_typed, graph_of, run

SMALL_CNN = {"blocks": (1, 1, 1, 1), "width": 16, "size": 32, "classes": 50}
SMALL_ENCODER = {"layers": 2, "hidden": 64, "heads": 4, "words": 200, "sequence": 16}


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    return resnet(tmp_path_factory.mktemp("cnn") / "cnn.onnx", **SMALL_CNN)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return encoder(tmp_path_factory.mktemp("enc") / "enc.onnx", **SMALL_ENCODER)


def quantised(path, folder, data, inputs, *, keep=(), method="percentile"):
    model = prepared(path, 13)
    nodes = quantisable(model.graph, element_types(model), list(keep))
    np.savez(folder / "c.npz", **data)
    read = samples([str(folder / "c.npz")], inputs, batched=True)
    table = gather(model, sorted({n.input[0] for n in nodes}), read, method=method, percentile=None, seconds=60)
    made = quantise(model, nodes, table.thresholds)
    save(made, folder)
    return onnx.load(folder / "model.onnx")


def of_cnn(path, folder, **options):
    return quantised(path, folder, images(8, 32, 1), (Tensor("image", "TYPE_FP32", ("N", 3, 32, 32)),), **options)


def of_encoder(path, folder, **options):
    inputs = tuple(Tensor(name, "TYPE_INT64", ("N", 16)) for name in ("input_ids", "attention_mask"))
    return quantised(path, folder, sentences(8, 16, 200, 1), inputs, **options)


@pytest.mark.parametrize("make", [of_cnn, of_encoder])
def test_symmetric_by_channel_and_strongly_typed(make, cnn, bert, tmp_path):
    model = make(cnn if make is of_cnn else bert, tmp_path)
    assert_strongly_typed(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    for node in pairs:
        assert not numpy_helper.to_array(constants[node.input[2]]).any()
        assert constants[node.input[2]].data_type == TensorProto.INT8
        assert (numpy_helper.to_array(constants[node.input[1]]) > 0).all()
    assert not [t.name for t in model.graph.initializer if t.data_type == TensorProto.INT32], "a bias in int32"
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm") or (node.op_type == "MatMul" and "_DequantizeLinear" in node.input[1]):
            weight, activation = makers[node.input[1]], makers[node.input[0]]
            assert weight.op_type == activation.op_type == "DequantizeLinear"
            stored = numpy_helper.to_array(constants[weight.input[0]])
            assert stored.dtype == np.int8
            scales = numpy_helper.to_array(constants[weight.input[1]])
            assert scales.size == stored.shape[0 if node.op_type == "Conv" else 1]
            assert node.output[0] not in {q.input[0] for q in pairs} or node.op_type != "Conv"


def test_softmax_and_normalisation_are_not_quantised(bert, tmp_path):
    model = of_encoder(bert, tmp_path)
    back = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for node in model.graph.node:
        if node.op_type in ("Softmax", "ReduceMean", "Pow", "Sqrt", "Div", "Erf", "Add", "Gather"):
            assert not back & {*node.input}, node.name


def test_a_residual_is_read_as_int8(cnn, tmp_path):
    model = of_cnn(cnn, tmp_path)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    sums = [sorted(makers[name] for name in node.input) for node in model.graph.node if node.op_type == "Add"]
    assert sums == [["Conv", "Conv"]] * 4  # only blocks with a convolution beside: nothing to rewire
    deeper = resnet(tmp_path / "two.onnx", **{**SMALL_CNN, "blocks": (2, 1, 1, 1)})
    model = of_cnn(deeper, tmp_path)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    sums = [sorted(makers[name] for name in node.input) for node in model.graph.node if node.op_type == "Add"]
    assert ["Conv", "DequantizeLinear"] in sums


@pytest.mark.parametrize("method", ["percentile", "entropy", "minmax"])
def test_close_to_fp32(cnn, tmp_path, method):
    model = of_cnn(cnn, tmp_path, method=method)
    feed = images(6, 32, 2)
    want, have = run(onnx.load(cnn), feed)[0], run(model, feed)[0]
    assert 1e-4 < np.linalg.norm(want - have) / np.linalg.norm(want) < 0.12


def test_size(cnn, bert, tmp_path):
    of_cnn(cnn, tmp_path)
    assert (tmp_path / "model.onnx").stat().st_size <= 0.30 * cnn.stat().st_size
    wide = {**SMALL_ENCODER, "hidden": 256}
    path = encoder(tmp_path / "wide.onnx", **wide)
    of_encoder(path, tmp_path)
    table = 4 * 200 * 256
    assert (tmp_path / "model.onnx").stat().st_size - table <= 0.30 * (path.stat().st_size - table)


def test_depthwise_convolutions_and_what_is_kept_stay(tmp_path):
    nodes = [("Conv", "x w", "a", {"group": 4}), ("Conv", "a v", "b"), ("Conv", "b v", "y")]
    constants = {"w": np.ones((4, 1, 1, 1), np.float32), "v": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)}
    model = graph_of(nodes, [("x", "FLOAT", ["N", 4, 5, 5])], [("y", "FLOAT", ["N", 4, 5, 5])], constants)
    types = dict.fromkeys("xabywv", TensorProto.FLOAT)
    assert [node.name for node in quantisable(model.graph, types, [])] == ["n1_Conv", "n2_Conv"]
    assert [node.name for node in quantisable(model.graph, types, ["n2_Conv"])] == ["n1_Conv"]
    assert quantisable(model.graph, types, ["Conv"]) == []


def test_a_tied_embedding_table_stays_in_fp32(tmp_path):
    rng = np.random.default_rng(0)
    nodes = [("Gather", "table ids", "e"), ("MatMul", "e table_t", "p"), ("Gather", "table_t ids", "q", {"axis": 1})]
    constants = {
        "table": rng.normal(size=(20, 8)).astype(np.float32),
        "table_t": rng.normal(size=(8, 20)).astype(np.float32),
    }
    model = graph_of(
        nodes, [("ids", "INT64", ["N", 4])], [("p", "FLOAT", ["N", 4, 20]), ("q", "FLOAT", [8, "N", 4])], constants
    )
    onnx.save(model, tmp_path / "tied.onnx")
    made = quantised(
        tmp_path / "tied.onnx", tmp_path, {"ids": rng.integers(0, 20, (5, 4))}, (Tensor("ids", "TYPE_INT64", ("N", 4)),)
    )
    feed = {"ids": rng.integers(0, 20, (2, 4))}
    (p, q), (a, b) = run(model, feed), run(made, feed)
    assert np.array_equal(q, b)
    assert 0 < np.abs(p - a).max() < 0.2


def test_an_old_opset_is_raised(tmp_path):
    nodes = [("MatMul", "x w", "h"), ("Squeeze", "h", "y", {"axes": [1]})]
    model = graph_of(
        nodes,
        [("x", "FLOAT", ["N", 1, 8])],
        [("y", "FLOAT", ["N", 8])],
        {"w": np.eye(8, dtype=np.float32)},
        opset=11,
        ir=6,
    )
    onnx.save(model, tmp_path / "old.onnx")
    x = np.random.default_rng(0).normal(size=(4, 1, 8)).astype(np.float32)
    made = quantised(tmp_path / "old.onnx", tmp_path, {"x": x}, (Tensor("x", "TYPE_FP32", ("N", 1, 8)),))
    assert made.opset_import[0].version == 13
    assert np.abs(run(made, {"x": x})[0] - x[:, 0]).max() < 0.05


def test_nothing_to_quantise_is_refused():
    with pytest.raises(Unfit, match="no Conv, Gemm or MatMul"):
        quantise(graph_of([("Relu", "x", "y")], [("x", "FLOAT", [1])], [("y", "FLOAT", [1])]), [], {})
