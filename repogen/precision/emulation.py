"""Run a half graph as a GPU does: in fp32, with every half tensor rounded.

On a CPU ONNX Runtime has no bfloat16 kernels and few for fp16; where it has none it computes in fp32 and leaves the
roundings between out, so that what overflows or cancels on a GPU would not show.
"""

from pathlib import Path
from typing import Any

from repogen.precision.graphs import bodies, element_types


def emulated(path: Path, precision: str) -> bytes:
    """Return the half model at `path` as one that ONNX Runtime runs on a CPU and that rounds in the same places.

    Inputs and outputs become fp32; sums inside an operator are kept in fp32, as GPUs do.
    """
    import onnx

    model = onnx.load(path)
    graph = model.graph
    half = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.BFLOAT16
    full = onnx.TensorProto.FLOAT
    types = element_types(model)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = full
    for tensor in graph.initializer:
        if tensor.data_type == half:
            array = onnx.numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    nodes: list[Any] = []
    for node in graph.node:
        _widen(node, half)
        rounded = [name for name in node.output if types.get(name) == half and not any(bodies(node))]
        for place, name in enumerate(node.output):
            if name in rounded:
                node.output[place] = f"{name}.exact"
        nodes.append(node)
        for name in rounded:
            nodes.append(onnx.helper.make_node("Cast", [f"{name}.exact"], [f"{name}.rounded"], to=half))
            nodes.append(onnx.helper.make_node("Cast", [f"{name}.rounded"], [name], to=full))
    del graph.node[:]
    graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def _widen(node: Any, half: int) -> None:
    import onnx

    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == half:
            attribute.i = onnx.TensorProto.FLOAT
        if node.op_type == "ConstantOfShape" and attribute.name == "value" and attribute.t.data_type == half:
            array = onnx.numpy_helper.to_array(attribute.t).astype("float32")
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
