"""Fold BatchNormalization into the convolution before it: what is left of it would be kept in fp32, between casts."""

from collections import Counter
from typing import Any

import numpy as np

_EPSILON = 1e-5  # ONNX's default


def fold_batch_norms(graph: Any) -> None:
    """Fold each BatchNormalization whose input is a Conv's or ConvTranspose's only use, all weights constant."""
    from onnx import numpy_helper

    from repogen.precision.graphs import bodies, captured, constants_of

    weights = constants_of(graph)
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    uses.update(name for node in graph.node if any(bodies(node)) for name in captured(node))
    producers = {name: node for node in graph.node for name in node.output}
    folded = []
    for norm in graph.node:
        conv = producers.get(norm.input[0]) if _is_inference_norm(norm) else None
        if conv is None or conv.op_type not in ("Conv", "ConvTranspose") or uses[norm.input[0]] != 1:
            continue
        names = [*conv.input[1:], *norm.input[1:]]
        if any(name not in weights for name in names) or any(uses[name] != 1 for name in conv.input[1:]):
            continue
        arrays = [numpy_helper.to_array(weights[name]).astype(np.float64) for name in names]
        made = _folded(conv, norm, arrays)
        if made is None:
            continue
        weight, bias = made
        weights[conv.input[1]].CopyFrom(numpy_helper.from_array(weight, conv.input[1]))
        _set_bias(graph, conv, bias, weights, norm.input[2])
        conv.output[0] = norm.output[0]
        producers[norm.output[0]] = conv
        folded.append(norm)
    for norm in folded:
        graph.node.remove(norm)
    _drop_unused(graph)


def _is_inference_norm(node: Any) -> bool:
    training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
    return node.op_type == "BatchNormalization" and len(node.output) == 1 and not training


def _folded(conv: Any, norm: Any, arrays: list[Any]) -> tuple[Any, Any] | None:
    """Return the weight and bias of the convolution that does both, None where they leave fp32's range."""
    weight, bias = arrays[0], arrays[1] if len(conv.input) > 2 else 0.0  # noqa: PLR2004
    gamma, beta, mean, variance = arrays[-4:]
    epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), _EPSILON)
    factor = gamma / np.sqrt(variance + epsilon)
    group = next((attribute.i for attribute in conv.attribute if attribute.name == "group"), 1)
    if conv.op_type == "Conv":
        scaled = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    else:  # input channels come first, output channels are counted within each group
        per_group = np.repeat(factor.reshape(group, 1, -1), weight.shape[0] // group, axis=1)
        scaled = weight * per_group.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    moved = (bias - mean) * factor + beta
    made = scaled.astype(np.float32), moved.astype(np.float32)
    return made if all(np.isfinite(array).all() for array in made) else None


def _set_bias(graph: Any, conv: Any, bias: Any, weights: dict[str, Any], fallback: str) -> None:
    from onnx import numpy_helper

    if len(conv.input) > 2:  # noqa: PLR2004
        weights[conv.input[2]].CopyFrom(numpy_helper.from_array(bias, conv.input[2]))
        return
    name = f"{fallback}.folded.{conv.name}"
    graph.initializer.append(numpy_helper.from_array(bias, name))
    conv.input.append(name)


def _drop_unused(graph: Any) -> None:
    """Drop the initializers that nothing reads."""
    from repogen.precision.graphs import captured

    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    read |= {name for node in graph.node for name in captured(node)} | {value.name for value in graph.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
