"""The child that reads an ONNX file: what it declares, as JSON. Nothing else parses a model's protobuf.

Started by `repogen.onnx_graph` through `repogen.child`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from repogen.dataflow import Flow, all_nodes, label, shape_inputs, subgraphs
from repogen.dtypes import BY_ONNX
from repogen.external import entries_of
from repogen.input_values import input_hints
from repogen.labels import axis_label

_KNOWN_DOMAINS = {
    *("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"),
    *("com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc"),
}
_DATA_DEPENDENT = {"NonZero", "Unique", "NonMaxSuppression", "Compress", "StringSplit"}
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_HALF_MAX = 65504.0
_LISTED = 50  # of each kind of finding: a hostile file may have millions
_INFERABLE = 256 * 2**20  # bytes; shape inference copies the model
_INFERABLE_NODES = 50_000
_CHUNK = 4 * 2**20  # elements


class Unservable(Exception):
    """What is wrong with the file, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the file at `path`, or `error` and `hint`; with `constants`, those beyond FP16 alone."""
    try:
        model = _load(question["path"])
        if question.get("constants"):
            return {"beyond_fp16": beyond_fp16(model, Path(question["path"]).parent)}
        return _facts(model, Path(question["path"]).stat().st_size)
    except Unservable as finding:
        return {"error": str(finding), "hint": finding.hint}


def _load(path: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError) as error:
        bytearray(2 * Path(path).stat().st_size)  # a MemoryError where the parser lacked memory, which it does not say
        raise Unservable("is not an ONNX file, or was cut short", "export or copy it again") from error
    if not model.HasField("graph") or not model.graph.output:
        raise Unservable("holds no graph with outputs", "export or copy it again")
    if not model.graph.node and not model.opset_import:
        raise Unservable("was cut short: it has neither nodes nor an opset", "export or copy it again")
    return model


def _facts(model: Any, size: int) -> dict[str, Any]:
    """Return the facts that depend on the file's content alone."""
    graph = model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    initializers |= {tensor.values.name for tensor in graph.sparse_initializer}
    required = [value for value in graph.input if value.name not in initializers]
    inputs = [_declared(value, "input") for value in required]
    outputs = [_declared(value, "output") for value in graph.output]
    inferred = _inferred(model, size)
    flow = Flow(graph, frozenset(value.name for value in required))
    types = {value.name: value.type.tensor_type.elem_type for value in required}
    nodes = [*all_nodes(graph.node), *(node for body in model.functions for node in all_nodes(body.node))]
    return {
        "ir_version": model.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "inputs": inputs,
        "outputs": outputs,
        "defaults": [_default(value) for value in graph.input if value.name in initializers],
        "unused": sorted(value.name for value in required if value.name not in flow.read),
        "operators": dict(sorted(Counter(_full_name(node) for node in nodes).items())),
        "subgraphs": sum(1 for node in nodes for _ in subgraphs(node)),
        "custom": _custom(nodes, {(function.domain, function.name) for function in model.functions}),
        "data_dependent": _labels(nodes, _DATA_DEPENDENT),
        "random": _labels(nodes, _RANDOM),
        "shape_inputs": shape_inputs(graph, flow),
        "hints": input_hints(graph, flow, _shapes(inferred), types),
        "branches": _unlike_branches(inferred.graph)[:_LISTED],
        "beyond_fp16": beyond_fp16(model, None),
        "external": entries_of(_tensors(model)),
    }


def _declared(value: Any, part: str) -> dict[str, Any]:
    import onnx

    kind = value.type.WhichOneof("value")
    if kind is None and part == "output":  # ONNX Runtime infers it
        return {"name": value.name, "dtype": "", "dims": None}
    if kind != "tensor_type":
        what = (kind or "unknown").removesuffix("_type").replace("_", " ")
        hint = "Triton serves plain tensors: export the model without it"
        article = "an" if what[0] in "aeiou" else "a"
        raise Unservable(f"{part} {value.name!r} is {article} {what}, not a tensor", hint)
    tensor = value.type.tensor_type
    known = onnx.TensorProto.DataType.values()
    onnx_type = onnx.TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else "of a newer ONNX"
    if onnx_type not in BY_ONNX:
        raise Unservable(
            f"{part} {value.name!r} has type {onnx_type}, which Triton does not carry",
            "cast it inside the graph before export",
        )
    return {"name": value.name, "dtype": BY_ONNX[onnx_type].triton, "dims": _dims(value.name, tensor)}


def _default(value: Any) -> dict[str, Any]:
    try:
        return _declared(value, "input")
    except Unservable:  # nobody sends it, so Triton need not carry it
        return {"name": value.name, "dtype": "", "dims": None}


def _dims(name: str, tensor: Any) -> list[int | str] | None:
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        literal = dim.HasField("dim_value") and dim.dim_value >= 0
        dims.append(dim.dim_value if literal else axis_label(name, axis, dim.dim_param))
    return dims


def _full_name(node: Any) -> str:
    """Return the operator's name, with its domain before it where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def _custom(nodes: list[Any], functions: set[tuple[str, str]]) -> list[dict[str, Any]]:
    found = Counter(
        (node.domain, node.op_type)
        for node in nodes
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions
    )
    return [{"domain": domain, "op": op, "count": count} for (domain, op), count in sorted(found.items())][:_LISTED]


def _labels(nodes: list[Any], kinds: set[str]) -> list[str]:
    return [label(node) for node in nodes if node.op_type in kinds][:_LISTED]


def _inferred(model: Any, size: int) -> Any:
    """Return the model with the shapes that ONNX itself infers, where that is cheap and works."""
    import onnx

    if size > _INFERABLE or len(model.graph.node) > _INFERABLE_NODES:
        return model
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # it says nothing that the checks and ONNX Runtime do not say better
        return model


def _shapes(model: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that are known, a free axis as None."""
    graph = model.graph
    found: dict[str, tuple[int | None, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            found[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    for node in all_nodes(graph.node):
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                found[node.output[0]] = tuple(attribute.t.dims)
        for body in subgraphs(node):
            found |= {tensor.name: tuple(tensor.dims) for tensor in body.initializer}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _unlike_branches(graph: Any) -> list[str]:
    """Say which If gives tensors of another rank or type by its condition."""
    found = []
    for node in all_nodes(graph.node):
        bodies = list(subgraphs(node)) if node.op_type == "If" else []
        for ours, theirs in zip(*(body.output for body in bodies), strict=False) if len(bodies) == 2 else ():  # noqa: PLR2004
            one, two = ours.type.tensor_type, theirs.type.tensor_type
            ranks = [len(tensor.shape.dim) if tensor.HasField("shape") else None for tensor in (one, two)]
            if None not in ranks and ranks[0] != ranks[1]:
                names = {attribute.name: attribute.g.output[0].name for attribute in node.attribute}
                first = "then" if names.get("then_branch") == bodies[0].output[0].name else "else"
                second = {"then": "else", "else": "then"}[first]
                found.append(
                    f"{label(node)} gives rank {ranks[0]} in its {first} branch and {ranks[1]} in its {second}"
                )
            elif one.elem_type != two.elem_type and one.elem_type and two.elem_type:
                found.append(f"{label(node)} gives another type by its condition")
    return found


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Give every tensor that is stored in the model, with its name or that of what its node gives."""
    nodes = [*all_nodes(model.graph.node), *(node for body in model.functions for node in all_nodes(body.node))]
    for node in nodes:
        made = next((name for name in node.output if name), node.op_type)
        for attribute in node.attribute:
            single = [attribute.t] if attribute.HasField("t") else []
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for tensor in (*single, *attribute.tensors, *_parts([*sparse, *attribute.sparse_tensors])):
                yield tensor.name or made, tensor
    for graph in (model.graph, *(body for node in nodes for body in subgraphs(node))):
        for tensor in (*graph.initializer, *_parts(graph.sparse_initializer)):
            yield tensor.name, tensor


def _parts(sparse: Iterable[Any]) -> Iterator[Any]:
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def beyond_fp16(model: Any, folder: Path | None) -> list[list[Any]]:
    """Return constants with values that FP16 cannot hold; those in files of their own where `folder` is given."""
    import onnx

    found = []
    for name, tensor in _named_floats(model):
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if external == (folder is not None):
            worst = _worst(tensor, folder)
            if worst > _HALF_MAX:
                found.append([name, worst])
    return found[:_LISTED]


def _named_floats(model: Any) -> Iterator[tuple[str, Any]]:
    import onnx

    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    for node in all_nodes(model.graph.node):
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name in ("value_float", "value_floats"):
                values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                yield node.output[0], onnx.helper.make_tensor("", kinds[0], [len(values)], values)
    for name, tensor in _tensors(model):
        if tensor.data_type in kinds:
            yield name, tensor


def _worst(tensor: Any, folder: Path | None) -> float:
    """Return the largest magnitude in a tensor; a weights file is read in pieces."""
    import numpy as np
    import onnx

    if folder is None:
        array = onnx.numpy_helper.to_array(tensor)
        return _magnitude(np.asarray(array, dtype=np.float64) if array.dtype.kind != "f" else array)
    said = {entry.key: entry.value for entry in tensor.external_data}
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    left = int(np.prod(tensor.dims, dtype=np.int64))
    worst = 0.0
    with (folder / said["location"]).open("rb") as file:
        file.seek(int(said.get("offset", 0)))
        while left > 0:
            piece = np.fromfile(file, dtype=kind, count=min(left, _CHUNK))
            if not piece.size:
                break
            left -= piece.size
            worst = max(worst, _magnitude(piece.astype(np.float32) if piece.dtype.kind != "f" else piece))
    return worst


def _magnitude(array: Any) -> float:
    import numpy as np

    numbers = array[~np.isnan(array)] if array.size and np.isnan(np.sum(array)) else array
    return float(max(abs(numbers.min()), abs(numbers.max()))) if numbers.size else 0.0
