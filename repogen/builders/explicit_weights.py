"""Int8 weights as TensorRT 8 wants them: floats with a Q/DQ pair of their own, not int8 with a DQ alone.

Its optimiser asserts on the latter in a transformer's fused region (convertMyelinWeightsToFp32, seen with 8.6.0). The
floats are those that the int8 values stand for, so nothing is lost.
"""

from pathlib import Path
from typing import Any


def spelled_out(path: Path, folder: Path) -> Path:
    """Return a graph in `folder` that is the one at `path` with each int8 weight as float, Q and DQ.

    Returns `path` itself where there is no such weight.
    """
    import onnx

    model = onnx.load(str(path))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [
        node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and _is_int8(constants.get(node.input[0]))
    ]
    if not nodes:
        return path
    made: dict[str, str] = {}
    for node in nodes:
        weight = node.input[0]
        if weight not in made:
            made[weight] = _quantised(model.graph, node, constants)
        node.input[0] = made[weight]
    _sort(model.graph, set(made.values()))
    target = folder / "model.onnx"
    onnx.save(model, str(target), save_as_external_data=True, location="model.onnx.data")
    return target


def _is_int8(tensor: Any) -> bool:
    import onnx

    return tensor is not None and tensor.data_type == onnx.TensorProto.INT8


def _quantised(graph: Any, node: Any, constants: Any) -> str:
    """Add the float weight and its QuantizeLinear; return the name of what that gives."""
    import numpy as np
    from onnx import helper, numpy_helper

    weight, scale = (numpy_helper.to_array(constants[name]) for name in node.input[:2])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    if scale.ndim:
        scale = scale.reshape([-1 if index == axis % weight.ndim else 1 for index in range(weight.ndim)])
    name = node.input[0]
    graph.initializer.append(numpy_helper.from_array((weight * scale).astype(np.float32), f"{name}.float"))
    graph.initializer.remove(constants[name])
    output = f"{name}.quantised"
    pair = helper.make_node("QuantizeLinear", [f"{name}.float", *node.input[1:]], [output], f"{name}.quantise")
    pair.attribute.extend(attribute for attribute in node.attribute if attribute.name == "axis")
    graph.node.append(pair)
    return output


def _sort(graph: Any, outputs: set[str]) -> None:
    """Put the new nodes, which need nothing but constants, in front."""
    first = [node for node in graph.node if node.output[0] in outputs]
    rest = [node for node in graph.node if node.output[0] not in outputs]
    del graph.node[:]
    graph.node.extend([*first, *rest])
