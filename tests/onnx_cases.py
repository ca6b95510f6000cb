"""The ONNX graphs on which the real onnxruntime backend (release 24.10, ONNX Runtime 1.19.2) was asked."""

from repogen.check.onnx_examples import constant, model_bytes, node, tensor


def unary(operator="Relu", x=("N", 4), y=("N", 4), dtype="FLOAT", **more):
    """One operator from x to y."""
    return model_bytes([node(operator)], [tensor("x", x, dtype)], [tensor("y", y, dtype)], **more)


def product(y=("N", 3), **more):
    """y = x @ w, so that the second axis of y is 3 whatever is declared."""
    weights = [constant("w", [0.5] * 12, "FLOAT", (4, 3))]
    return model_bytes([node("MatMul", "x w")], None, [tensor("y", y)], constants=weights, **more)


def contradicted():
    """y is declared [N, 5], but the graph makes it [N, 3]; fusing its two nodes makes ONNX Runtime see that."""
    weights = [constant("w", [0.5] * 12, "FLOAT", (4, 3)), constant("b", [0.0] * 3, "FLOAT")]
    nodes = [node("MatMul", "x w", "p"), node("Add", "p b")]
    return model_bytes(nodes, None, [tensor("y", ("N", 5))], constants=weights)


def total(y=(), **more):
    return model_bytes([node("ReduceSum", keepdims=0)], None, [tensor("y", y)], **more)


def doubled():
    """An output of 2N rows, declared as N."""
    return model_bytes([node("Concat", "x x", axis=0)])


def fixed_output():
    """An output of one row, whatever the batch of the input."""
    weights = [constant("w", [0.5] * 12, "FLOAT", (4, 3)), constant("axes", [0])]
    nodes = [node("ReduceSum", "x axes", "s", keepdims=1), node("MatMul", "s w")]
    return model_bytes(nodes, None, [tensor("y", (1, 3))], constants=weights)


def reduced_batch():
    """The batch axis is summed away."""
    nodes = [node("ReduceSum", "x axes", keepdims=0)]
    return model_bytes(nodes, None, [tensor("y", (4,))], constants=[constant("axes", [0])])


def centred():
    """Each row less the mean of all rows: an answer depends on the neighbours."""
    nodes = [node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m")]
    return model_bytes(nodes)


def nonzero():
    return model_bytes([node("NonZero")], None, [tensor("y", (2, "Z"), "INT64")])


def compressed():
    """An output declared [N, 4] whose real size depends on the values."""
    mask = [constant("c", [True, False, True, False], "BOOL")]
    return model_bytes([node("Compress", "x c", axis=1)], None, [tensor("y", ("N", 4))], constants=mask)


def with_default(ir):
    inputs = [tensor("x"), tensor("k", (4,))]
    return model_bytes([node("Add", "x k")], inputs, constants=[constant("k", [1.0] * 4, "FLOAT")], ir=ir)


def with_unused():
    return model_bytes(None, [tensor("x"), tensor("u")])


def two_inputs():
    return model_bytes([node("Add", "x b")], [tensor("x"), tensor("b")])


def two_outputs():
    return model_bytes([node("Relu"), node("Neg", "x", "z")], None, [tensor("y"), tensor("z")])


def without_inputs():
    return model_bytes([node("Identity", "c")], [], [tensor("y", (4,))], constants=[constant("c", [1.0] * 4, "FLOAT")])


def passed_through():
    """An output that is an input too."""
    return model_bytes([node("Relu")], None, [tensor("x"), tensor("y")])


def named(x, y):
    from onnx import helper

    return model_bytes([helper.make_node("Relu", [x], [y])], [tensor(x)], [tensor(y)])


def side_by_side(rows):
    """One Identity for each (input, output, type)."""
    from onnx import helper

    nodes = [helper.make_node("Identity", [x], [y]) for x, y, _ in rows]
    return model_bytes(
        nodes, [tensor(x, dtype=kind) for x, _, kind in rows], [tensor(y, dtype=kind) for _, y, kind in rows]
    )


def sequence_output():
    from onnx import TensorProto, helper

    made = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    return model_bytes([node("Relu"), node("SequenceConstruct", "x", "s")], None, [tensor("y"), made])


def sequence_input():
    from onnx import TensorProto, helper

    said = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["N", 4])
    at = [constant("i", [0], "INT64", ())]
    return model_bytes([node("SequenceAt", "s i", "y")], [said], [tensor("y")], constants=at)


def zipmap():
    from onnx import TensorProto, helper

    key = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    maps = helper.make_value_info("z", helper.make_sequence_type_proto(key))
    nodes = [node("Relu"), node("ZipMap", "y", "z", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3])]
    return model_bytes(nodes, None, [tensor("y"), maps], domains={"ai.onnx.ml": 3})


def optional_input():
    from onnx import TensorProto, helper

    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 4])
    said = helper.make_value_info("x", helper.make_optional_type_proto(inner))
    return model_bytes([node("OptionalGetElement")], [said], [tensor("y")])


def custom():
    return model_bytes([node("Foo", domain="my.custom")], domains={"my.custom": 1})


def contributed():
    return model_bytes([node("Gelu", domain="com.microsoft")], domains={"com.microsoft": 1})


def machine_learning(opset):
    return model_bytes([node("Normalizer", domain="ai.onnx.ml", norm="L2")], domains={"ai.onnx.ml": opset})


def old_add():
    return model_bytes([node("Add", "x x")], opset=6, ir=3)


def weights_in(location):
    """y = x + w with the four weights in a file."""
    from onnx import ModelProto, TensorProto

    zeros = [constant("w", [0.0] * 4, "FLOAT")]
    model = ModelProto.FromString(model_bytes([node("Add", "x w")], constants=zeros))
    weights = model.graph.initializer[0]
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    return model.SerializeToString()


WEIGHTS = bytes(16)
