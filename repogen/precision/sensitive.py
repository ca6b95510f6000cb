"""Which nodes stay in fp32: those asked for, those that lose too much in half, and those whose values do not fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OPERATORS = {
    *("LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("LpNormalization", "MeanVarianceNormalization", "LRN", "Softmax", "LogSoftmax", "Hardmax"),
    *("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
    *("ReduceProd", "CumSum", "CumProd", "Exp", "Log", "Pow", "Sqrt", "Reciprocal", "Softplus", "Sinh", "Cosh", "Tan"),
    *("NonMaxSuppression", "RoiAlign", "MaxRoiAlign", "GridSample", "AffineGrid", "Range", "TopK", "Det", "Bernoulli"),
    *("Multinomial", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "DFT", "STFT"),
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "NegativeLogLikelihoodLoss"),
    *("SoftmaxCrossEntropyLoss", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow"),
}
"""Kept wherever they stand: they add up many terms, or answer with large or tiny values."""
_ROOTS = {"Sqrt", "ReduceL2", "LpNormalization", "Reciprocal"}
_INTO_ROOT = {"Add", "Max", "Clip", "ReduceMean", "ReduceSum", "Mul", "Pow", "Sub", "Identity", "Abs"}
_FROM_ROOT = {"Div", "Mul", "Reciprocal", "Clip", "Max", "Expand", "Add"}
_STEPS_IN, _STEPS_OUT = 4, 3
_BOUNDED = {
    *("Softmax", "LogSoftmax", "Hardmax", "Sigmoid", "HardSigmoid", "Tanh", "Softsign", "Erf", "Sin", "Cos", "Cast"),
    *("Sign", "Shape", "Size", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not"),
    *("IsNaN", "IsInf", "ArgMax", "ArgMin", "LayerNormalization", "InstanceNormalization", "GroupNormalization"),
    *("NonZero", "OneHot", "BatchNormalization", "RMSNormalization", "LpNormalization", "Atan"),
}
"""Whatever goes in, what comes out fits, or is no float."""
_HEADROOM = 2.0  # what was seen may be exceeded by what has not been


@dataclass(frozen=True)
class Limits:
    """What a half type holds: the largest finite value and the smallest normal one."""

    largest: float
    smallest: float


FP16 = Limits(65504.0, 2.0**-14)
BF16 = Limits(3.3895313892515355e38, 2.0**-126)


@dataclass
class Kept:
    """Names of nodes that stay in fp32, each with the reason."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, node: Any, reason: str) -> bool:
        if node.name in self.reasons:
            return False
        self.reasons[node.name] = reason
        return True


def kept_nodes(
    graph: Any, constants: Mapping[str, Any], keep: Sequence[str], ranges: Mapping[str, float], limits: Limits
) -> Kept:
    """Return the nodes of the main graph that stay in fp32.

    `keep` has names of nodes and operators; `ranges` has the largest magnitude that was seen of a tensor.
    """
    kept = Kept()
    for node in graph.node:
        if node.name in keep or node.op_type in keep:
            kept.add(node, "asked for")
        elif node.op_type in OPERATORS:
            kept.add(node, f"{node.op_type} is sensitive")
    _keep_normalisations(graph, kept)
    _keep_beyond(graph, kept, _constant_sizes(constants), ranges, limits)
    _keep_sizes(graph, kept)
    return kept


def unknown(graph: Any, keep: Iterable[str]) -> list[str]:
    """Return what `keep` names that is neither a node nor an operator of the graph."""
    known = {node.name for node in graph.node} | {node.op_type for node in graph.node}
    return [name for name in keep if name not in known]


def _keep_normalisations(graph: Any, kept: Kept) -> None:
    """Keep what leads into a square root or a norm, and what divides by it: a normalisation written out."""
    producers = {name: node for node in graph.node for name in node.output}
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)

    def makers(node: Any) -> list[Any]:
        return [producers[name] for name in node.input if name in producers]

    def readers(node: Any) -> list[Any]:
        return [reader for name in node.output for reader in consumers.get(name, ())]

    for root in (node for node in graph.node if node.op_type in _ROOTS):
        into = _walk([root], makers, _INTO_ROOT, _STEPS_IN)
        if any(node.op_type.startswith("Reduce") for node in (*into, root)):
            for node in (*into, *_walk([root], readers, _FROM_ROOT, _STEPS_OUT)):
                kept.add(node, f"part of the normalisation at {root.name}")


def _walk(start: list[Any], step: Any, through: set[str], steps: int) -> list[Any]:
    found: list[Any] = []
    edge = start
    for _ in range(steps):
        edge = [node for one in edge for node in step(one) if node.op_type in through and node not in found]
        found += edge
    return found


def _constant_sizes(constants: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the largest magnitude of each float constant, and the smallest that is not 0 of those with one element."""
    from onnx import TensorProto, numpy_helper

    found = {}
    for name, tensor in constants.items():
        if tensor.data_type == TensorProto.FLOAT:
            array = np.abs(numpy_helper.to_array(tensor))
            largest = float(np.nan_to_num(array, nan=np.inf).max(initial=0.0))
            found[name] = (largest, largest if array.size == 1 else 0.0)
    return found


def _keep_beyond(
    graph: Any, kept: Kept, sizes: Mapping[str, tuple[float, float]], ranges: Mapping[str, float], limits: Limits
) -> None:
    """Keep the nodes that read or give values which the half type cannot hold."""
    beyond = {name for name, largest in ranges.items() if largest * _HEADROOM > limits.largest}
    for node in graph.node:
        for name in node.input:
            largest, only = sizes.get(name, (0.0, 0.0))
            if largest > limits.largest:
                kept.add(node, f"constant {name} is {largest:.3g}")
                if node.op_type not in _BOUNDED and not _seen_to_fit(node, ranges, limits):
                    beyond.update(node.output)
            elif 0 < only < limits.smallest:
                kept.add(node, f"constant {name} is {only:.3g}")
        if beyond & {*node.input, *node.output}:
            kept.add(node, "its values leave the half type's range")
            if beyond & {*node.input} and node.op_type not in _BOUNDED and not _seen_to_fit(node, ranges, limits):
                beyond.update(node.output)


def _seen_to_fit(node: Any, ranges: Mapping[str, float], limits: Limits) -> bool:
    """Say whether all outputs were seen, and fitted: what was measured goes before what could be."""
    return all(name in ranges and ranges[name] * _HEADROOM <= limits.largest for name in node.output if name)


def _keep_sizes(graph: Any, kept: Kept) -> None:
    """Keep arithmetic on whole numbers: sizes and positions, which half rounds from 2048 on.

    From a Cast of a whole number to float, through arithmetic, to a Cast back or to the scales of a Resize.
    """
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    arithmetic = {"Add", "Sub", "Mul", "Div", "Floor", "Ceil", "Round", "Min", "Max", "Neg", "Abs", "Mod", "Concat"}
    arithmetic |= {"Cast", "Slice", "Gather", "Squeeze", "Unsqueeze", "Reshape", "Identity"}
    back: set[str] = set()  # tensors that only become whole numbers, or scales
    for node in reversed(graph.node):
        for name in node.output if node.op_type in arithmetic else ():
            readers = consumers.get(name, [])
            if readers and all(_takes_sizes(reader, name) or reader.output[0] in back for reader in readers):
                back.add(name)
                kept.add(node, "computes sizes")


def _takes_sizes(node: Any, name: str) -> bool:
    from onnx import TensorProto

    if node.op_type == "Cast":
        whole = {TensorProto.INT64, TensorProto.INT32}
        return any(attribute.name == "to" and attribute.i in whole for attribute in node.attribute)
    return node.op_type in ("Resize", "Upsample") and name in list(node.input)[1:]
