"""Quantise to int8 with Q/DQ pairs that TensorRT takes: symmetric, zero points 0, weights by channel, bias in fp32.

Only Conv, Gemm and MatMul with constant weights; their inputs are quantised and their outputs are not, so that what
follows (bias, activation, residual sum) is fused into them before the next pair. ONNX Runtime's quantizer writes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repogen.precision.graphs import Unfit, constants_of, sort_nodes

OPSET = 13
"""The least opset: scales by channel came with it."""
OPERATORS = ("Conv", "Gemm", "MatMul")


def quantisable(graph: Any, types: Mapping[str, int], keep: Sequence[str]) -> list[Any]:
    """Return the nodes that become int8: those with constant float weights that nobody asked to keep."""
    constants = constants_of(graph)
    return [
        node
        for node in graph.node
        if node.op_type in OPERATORS
        and node.domain in ("", "ai.onnx")
        and node.name not in keep
        and node.op_type not in keep
        and types.get(node.input[0]) == 1
        and node.input[0] not in constants
        and _is_weight(node, constants)
        and not is_depthwise(node, constants)
    ]


def is_depthwise(node: Any, constants: Mapping[str, Any]) -> bool:
    """Say whether a convolution has one filter a channel.

    They hold a few percent of the weights and cause most of the error: nine products do not average it out.
    """
    groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    return node.op_type == "Conv" and groups > 1 and constants[node.input[1]].dims[1] == 1


def _is_weight(node: Any, constants: Mapping[str, Any]) -> bool:
    weight = constants.get(node.input[1])
    if weight is None or weight.data_type != 1:
        return False
    return node.op_type == "Conv" or len(weight.dims) == 2  # noqa: PLR2004 - channels of a batched weight differ


def quantise(model: Any, nodes: Sequence[Any], thresholds: Mapping[str, float]) -> Any:
    """Return the model with Q/DQ pairs around `nodes`, whose inputs reach up to `thresholds`."""
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    if not nodes:
        raise Unfit("it has no Conv, Gemm or MatMul with constant weights to quantise", "write precision: fp16")
    _own_weights(model.graph, nodes)
    names = {node.name for node in nodes}
    spans = {
        name: TensorData(lowest=np.float32(-size), highest=np.float32(size))
        for name, size in sorted(thresholds.items())
    }
    quantizer = QDQQuantizer(
        model,
        True,  # per_channel
        False,  # reduce_range
        QuantType.QInt8,
        QuantType.QInt8,
        TensorsData(CalibrationMethod.MinMax, spans),
        [node.name for node in nodes],
        [],
        list(OPERATORS),
        {
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": list(OPERATORS),
        },
    )
    made = quantizer.quantize_model()
    _only_for(made.graph, names)
    sort_nodes(made.graph)
    return made


def _own_weights(graph: Any, nodes: Sequence[Any]) -> None:
    """Give a weight that others read too, such as a tied embedding table, a copy for the nodes to quantise."""
    names = {node.name for node in nodes}
    others = {name for node in graph.node if node.name not in names for name in node.input}
    others |= {value.name for value in graph.output}
    constants = constants_of(graph)
    for node in nodes:
        shared = node.input[1]
        if shared in others:
            copied = f"{shared}.int8"
            if copied not in constants:
                graph.initializer.add().CopyFrom(constants[shared])
                graph.initializer[-1].name = copied
                constants[copied] = graph.initializer[-1]
            node.input[1] = copied


def _only_for(graph: Any, quantised: set[str]) -> None:
    """Let nobody but the quantised nodes read the rounded tensors, which the quantizer gives to all who read them.

    A residual sum after a convolution reads them too: TensorRT then fuses it, and the sum is rounded before the next
    one anyway. Those of an encoder carry what all later layers see.
    """
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    exact = {
        node.output[0]: sources[node.input[0]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in sources
    }
    convolved = {
        name for node in graph.node if node.op_type == "Conv" and node.name in quantised for name in node.output
    }
    for node in graph.node:
        residual = node.op_type == "Add" and len(convolved & {*node.input}) == 1
        if node.name in quantised or residual:
            continue
        for place, name in enumerate(node.input):
            node.input[place] = exact.get(name, name)
