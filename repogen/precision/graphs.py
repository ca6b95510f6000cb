"""Read, prepare and write the ONNX graph that is being rewritten. Runs in the child process only."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_EXTERNAL_FROM = 2**30
"""Weights of larger models go into a file of their own: a protobuf ends at 2 GiB."""
WEIGHTS = "model.onnx.data"


class Unfit(Exception):
    """The graph cannot be lowered: why, and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def prepared(path: Path, opset: int) -> Any:
    """Return the model in the form that the rewrites expect, of opset `opset` at least.

    Functions are inlined, constants are initializers, every node has a name of its own and BatchNormalization is
    folded into the convolution before it.
    """
    import onnx
    import onnx.inliner

    from repogen.precision.folding import fold_batch_norms

    model = onnx.load(path)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    model = _raised(model, opset)
    model.ir_version = max(model.ir_version, 4)  # older ones list every initializer as an input
    _lift_constants(model.graph)
    _name_nodes(model.graph)
    fold_batch_norms(model.graph)
    return model


def opset_of(model: Any) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _raised(model: Any, opset: int) -> Any:
    import onnx
    import onnx.version_converter

    if opset_of(model) >= opset:
        return model
    before = model.ir_version
    names = {name: node.name for node in model.graph.node for name in node.output if node.name}
    try:
        raised = onnx.version_converter.convert_version(model, opset)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1]
        message = f"has opset {opset_of(model)}, needs {opset} and cannot be raised to it: {reason}"
        raise Unfit(message, f"export it with opset {opset}") from None
    needed = onnx.helper.find_min_ir_version_for(raised.opset_import)
    raised.ir_version = max(before, needed)
    for node in raised.graph.node:  # some come back without the name by which people know them
        node.name = next((names[name] for name in node.output if name in names), node.name)
    return raised


def _lift_constants(graph: Any) -> None:
    """Turn the Constant nodes of the main graph into initializers."""
    kept, lifted = [], []
    for node in graph.node:
        tensor = _constant(node)
        if tensor is None:
            kept.append(node)
        else:
            tensor.name = node.output[0]
            lifted.append(tensor)
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(lifted)


def _constant(node: Any) -> Any:
    """Return what a Constant node gives as a tensor, None for other nodes and for what no initializer can hold."""
    from onnx import TensorProto, helper, numpy_helper

    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(attribute.t)
        return tensor
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name in kinds:
        return numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), kinds[attribute.name]))
    return None


def _name_nodes(graph: Any) -> None:
    """Give each node of the main graph a name of its own."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = unused(f"{node.op_type}_{index}", taken)
        taken.add(node.name)


def unused(name: str, taken: Iterable[str]) -> str:
    """Return `name`, with a number behind it where it is taken."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def bodies(node: Any) -> Iterator[Any]:
    """Give the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(node: Any) -> set[str]:
    """Return the names that the bodies of a node read from outside."""
    found: set[str] = set()
    for body in bodies(node):
        inner = {value.name for value in (*body.input, *body.initializer)}
        for one in body.node:
            found |= ({*one.input} | captured(one)) - inner
            inner.update(one.output)
        found |= {value.name for value in body.output} - inner
    return found - {""}


def all_names(graph: Any) -> set[str]:
    """Return every tensor's name, those of subgraphs included."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found |= {*node.input, *node.output}
        for body in bodies(node):
            found |= all_names(body)
    return found


def constants_of(graph: Any) -> dict[str, Any]:
    """Return the initializers that no request can replace, by name."""
    given = {value.name for value in graph.input}
    return {tensor.name: tensor for tensor in graph.initializer if tensor.name not in given}


def element_types(model: Any) -> dict[str, int]:
    """Return the element type of every tensor of the main graph whose type is known."""
    import onnx

    light = _without_large_weights(model)
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=False)
    graph = inferred.graph
    found = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            found[value.name] = value.type.tensor_type.elem_type
    return found


def _without_large_weights(model: Any) -> Any:
    """Return a copy whose large float weights are inputs: inference needs their type and shape, not their bytes."""
    import onnx

    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = "types"
    for part in ("node", "input", "output", "value_info"):
        getattr(graph, part).extend(getattr(model.graph, part))
    given = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if tensor.name in given:
            continue
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 64:  # noqa: PLR2004 - no shape
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
        else:
            graph.initializer.append(tensor)
    return light


def sort_nodes(graph: Any) -> None:
    """Put every node after those whose tensors it reads, otherwise in the order in which they stand."""
    producers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needs = [
        sorted({producers[name] for name in {*node.input, *captured(node)} if name in producers}) for node in graph.node
    ]
    placed: dict[int, None] = {}
    for place in range(len(needs)):
        stack = [place]
        while stack:
            missing = [other for other in needs[stack[-1]] if other not in placed]
            if missing and stack[-1] not in placed:
                stack.extend(reversed(missing))
            else:
                placed.setdefault(stack.pop())
    nodes = [graph.node[place] for place in placed]
    copies = [type(node).FromString(node.SerializeToString(deterministic=True)) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def save(model: Any, folder: Path) -> list[str]:
    """Check the model, write it into `folder` and return its files; the same model gives the same bytes."""
    import onnx

    del model.graph.value_info[:]
    model.producer_name, model.producer_version = "repogen", ""
    target = folder / "model.onnx"
    whole = _complete_outputs(model)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _EXTERNAL_FROM:
        onnx.save_model(model, target, save_as_external_data=True, location=WEIGHTS, size_threshold=1024)
        _check(target, whole=whole)
        return ["model.onnx", WEIGHTS]
    _check(model, whole=whole)
    target.write_bytes(model.SerializeToString(deterministic=True))
    return ["model.onnx"]


def _complete_outputs(model: Any) -> bool:
    """Give outputs without a shape the one that can be inferred; say whether all have one now."""
    missing = [value for value in model.graph.output if not value.type.tensor_type.HasField("shape")]
    if missing:
        import onnx

        inferred = onnx.shape_inference.infer_shapes(_without_large_weights(model))
        by_name = {value.name: value for value in inferred.graph.output}
        for value in missing:
            if by_name[value.name].type.tensor_type.HasField("shape"):
                value.CopyFrom(by_name[value.name])
    return all(value.type.tensor_type.HasField("shape") for value in missing)


def _check(model: Any, *, whole: bool) -> None:
    """Let ONNX check all of it: types and shapes strictly, where it would take the model at all."""
    import onnx

    if whole:  # a model whose outputs say no shape is served, but never passes
        onnx.checker.check_model(model, full_check=True)
