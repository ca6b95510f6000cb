import numpy as np
import onnx
import pytest

from repogen.precision.folding import fold_batch_norms
from tests.precision.kit import graph_of, run

RNG = np.random.default_rng(3)


def normed(operator, weight, channels, *, bias=False, **attributes):
    constants = {"w": weight.astype(np.float32), "b": RNG.normal(0, 1, channels).astype(np.float32)}
    constants |= {name: RNG.uniform(0.5, 2, channels).astype(np.float32) for name in ("g", "t", "m", "v")}
    if not bias:
        del constants["b"]
    nodes = [
        (operator, "x w b" if bias else "x w", "c", attributes), ("BatchNormalization", "c g t m v", "y", {"epsilon": 1e-3}),
    ]  # fmt: skip
    return graph_of(nodes, [("x", "FLOAT", ["N", 4, 6, 6])], [("y", "FLOAT", ["N", channels, "H", "W"])], constants)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("operator", "shape", "channels", "attributes"),
    [
        ("Conv", (5, 4, 3, 3), 5, {}),
        ("Conv", (8, 1, 3, 3), 8, {"group": 4}),
        ("ConvTranspose", (4, 5, 2, 2), 5, {}),
        ("ConvTranspose", (4, 3, 2, 2), 6, {"group": 2}),
    ],
)
def test_folded_answers_the_same(operator, shape, channels, attributes, bias):
    model = normed(operator, RNG.normal(0, 1, shape), channels, bias=bias, **attributes)
    before = onnx.ModelProto.FromString(model.SerializeToString())
    fold_batch_norms(model.graph)
    assert [node.op_type for node in model.graph.node] == [operator]
    assert len(model.graph.initializer) == 2
    onnx.checker.check_model(model, full_check=True)
    feed = {"x": RNG.normal(0, 1, (2, 4, 6, 6)).astype(np.float32)}
    assert np.allclose(run(before, feed)[0], run(model, feed)[0], rtol=1e-4, atol=1e-4)


def test_what_others_read_is_not_folded():
    model = normed("Conv", RNG.normal(0, 1, (4, 4, 1, 1)), 4)
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, None))
    fold_batch_norms(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Conv", "BatchNormalization"]


def test_a_shared_weight_is_not_folded():
    model = normed("Conv", RNG.normal(0, 1, (4, 4, 1, 1)), 4)
    model.graph.node.append(onnx.helper.make_node("Conv", ["y", "w"], ["z"], "again"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    fold_batch_norms(model.graph)
    assert "BatchNormalization" in [node.op_type for node in model.graph.node]
