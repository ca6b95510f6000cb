import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from repogen.builders.explicit_weights import spelled_out


@pytest.fixture
def quantised(tmp_path):
    """y = x @ W with W int8, one scale a column."""
    weight = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    scale = np.array([0.5, 0.25, 2.0], dtype=np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    constants = {"w": weight, "s": scale, "z": np.zeros(3, np.int8)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(path, x):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_each_int8_weight_gets_its_pair_and_the_answers_stay(quantised, tmp_path):
    (folder := tmp_path / "out").mkdir()
    made = spelled_out(quantised, folder)
    graph = onnx.load(made).graph
    assert [node.op_type for node in graph.node] == ["QuantizeLinear", "DequantizeLinear", "MatMul"]
    assert all(tensor.data_type != TensorProto.INT8 or tensor.name == "z" for tensor in graph.initializer)
    onnx.checker.check_model(str(made))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert np.array_equal(run(made, x), run(quantised, x))


def test_a_graph_without_them_is_left_alone(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    path = tmp_path / "n.onnx"
    onnx.save(helper.make_model(graph), path)
    assert spelled_out(path, tmp_path) == path
