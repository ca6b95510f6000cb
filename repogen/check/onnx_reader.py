"""The child that reads ONNX files: one path a line on stdin, one JSON answer a line on stdout.

Started by `repogen.check.onnx_facts`. A hostile or broken file takes this process down, not the check.
"""

import json
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from repogen.backends_data import OLDEST_OPSET
from repogen.dtypes import BY_ONNX

_MEMORY = 16 * 2**30
_LARGEST_OPENED = 2**30
"""Bytes of model and weights above which no session is opened: shapes are then what ONNX's own inference says."""
_SMALL = 1024
"""Elements of a constant that shape inference may need the values of."""
_FREE = "repogen:"
"""What the names of free axes of inputs begin with while shapes are inferred."""
_BATCH = f"{_FREE}batch"
_ALONG_AN_AXIS = {"Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "TopK", "LpNormalization"}
_PLAIN = ("", "ai.onnx")
_DEFAULTS = 4
"""The IR version from which a request may override a constant that is also an input."""
_KNOWN_DOMAINS = {
    *_PLAIN, "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc", "org.pytorch.aten",
}  # fmt: skip
"""Domains whose operators ONNX Runtime brings along."""
_ORT_NAMES = {"float": "FLOAT", "double": "DOUBLE"}
Row = dict[str, Any]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what native code prints is no answer
        for line in sys.stdin:
            try:
                answer = look(Path(json.loads(line)))
            except Exception as error:
                answer = {"problem": _first_line(error)}
            print(json.dumps(answer), file=answers, flush=True)


def look(path: Path) -> Row:
    """Return what ONNX Runtime would tell Triton's backend of the model at `path`."""
    model = onnx.load(str(path), load_external_data=False)
    if not model.HasField("graph") or (not model.graph.node and not model.graph.output):
        return {"problem": "it holds no graph"}
    facts = _declared(model)
    settled = _infer(model, facts)
    folder = path.parent
    there = all((folder / location).is_file() for location, _ in facts["external"])
    size = path.stat().st_size + sum((folder / name).stat().st_size for name, _ in facts["external"] if there)
    if not settled and there and not facts["custom"] and size < _LARGEST_OPENED:
        _open(path, facts)
    return facts


def _declared(model: Any) -> Row:
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer} | {row.values.name for row in graph.sparse_initializer}
    used = set(_used(graph)) | {value.name for value in graph.output}
    nodes = list(_nodes(graph))
    own = {(function.domain, function.name) for function in model.functions}
    foreign = [node for node in nodes if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in own]
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    plain = [node.op_type for node in nodes if node.domain in _PLAIN]
    newest = opsets.get("ai.onnx", 1)
    return {
        "problem": "",
        "ir_version": model.ir_version,
        "opsets": opsets,
        "inputs": [_row(value) for value in graph.input if value.name not in constants],
        "overridable": [
            _row(value) for value in graph.input if value.name in constants and model.ir_version >= _DEFAULTS
        ],
        "defaults": [value.name for value in graph.input if value.name in constants],
        "outputs": [_row(value) for value in graph.output],
        "unused": [value.name for value in graph.input if value.name not in used | constants],
        "external": _external(graph),
        "custom": sorted({f"{node.domain}:{node.op_type}" for node in foreign}),
        "unknown": sorted({name for name in plain if not onnx.defs.has(name, "")}) if newest <= _known_opset() else [],
        "mixing": sorted({node.op_type for node in nodes if _mixes(node, graph)}),
        "rows_follow": False,
        "seen_by": "onnx",
        "refused": "",
    }


def _known_opset() -> int:
    return int(onnx.defs.onnx_opset_version())


def _row(value: Any) -> Row:
    kind = (value.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
    row: Row = {"name": value.name, "kind": kind, "dtype": "", "dims": None}
    if kind == "tensor":
        tensor = value.type.tensor_type
        row["dtype"] = _dtype(onnx.TensorProto.DataType.Name(tensor.elem_type))
        row["dims"] = _dims(tensor)
    return row


def _dtype(onnx_name: str) -> str:
    return BY_ONNX[onnx_name].triton if onnx_name in BY_ONNX else onnx_name


def _dims(tensor: Any) -> list[int] | None:
    if not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1 for dim in tensor.shape.dim]


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in _inner(node):
            yield from _nodes(inner)


def _inner(node: Any) -> Iterable[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _used(graph: Any) -> Iterator[str]:
    for node in _nodes(graph):
        yield from node.input
        for inner in _inner(node):
            yield from (value.name for value in inner.output)


def _mixes(node: Any, graph: Any) -> bool:
    """Return whether a node may join the rows of a batch: it works along axis 0, or along all axes."""
    if node.domain not in _PLAIN or not (node.op_type.startswith("Reduce") or node.op_type in _ALONG_AN_AXIS):
        return False
    for attribute in node.attribute:
        if attribute.name in ("axis", "axes"):
            return 0 in (attribute.ints or [attribute.i])
    if len(node.input) > 1 and node.op_type != "TopK":
        given = [tensor for tensor in graph.initializer if tensor.name == node.input[1]]
        return any(0 in onnx.numpy_helper.to_array(tensor).ravel() for tensor in given)
    return node.op_type not in ("Softmax", "LogSoftmax", "TopK", "LpNormalization", "Hardmax")  # those: the last axis


def _external(graph: Any) -> list[tuple[str, str]]:
    tensors = [*graph.initializer]
    for node in _nodes(graph):
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
        for inner in _inner(node):
            tensors += inner.initializer
    found: dict[str, str] = {}
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            found.setdefault(location, tensor.name)
    return sorted(found.items())


def _infer(model: Any, facts: Row) -> bool:
    """Let ONNX's own inference decide the outputs' shapes; return whether ONNX Runtime's could say nothing else."""
    known = OLDEST_OPSET <= facts["opsets"].get("ai.onnx", 1) <= _known_opset()
    light = _bare(model)
    try:
        derived = [onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=how) for how in (False, True)]
    except Exception:
        return False
    first, second = (list(inferred.graph.output) for inferred in derived)
    settled = known and not facts["unknown"] and first == second
    follow = True
    for row, value in zip(facts["outputs"], first, strict=True):
        if row["kind"] != "tensor" or value.type.WhichOneof("value") not in (None, "tensor_type"):
            settled = False
            continue
        tensor = value.type.tensor_type
        row["dtype"] = row["dtype"] if row["dtype"] != "UNDEFINED" else _row(value)["dtype"]
        follow = follow and len(tensor.shape.dim) > 0 and tensor.shape.dim[0].dim_param == _BATCH
        settled = _merge(row, _dims(tensor)) and settled and all(_known(dim) for dim in tensor.shape.dim)
    facts["rows_follow"] = follow
    return bool(settled)


def _known(dim: Any) -> bool:
    """Return whether inference knows an axis: a size, or that it follows an axis of an input."""
    return bool(dim.HasField("dim_value") or dim.dim_param.startswith(_FREE))


def _merge(row: Row, derived: list[int] | None) -> bool:
    """Put what was derived over what is declared; return whether the two agree."""
    declared = row["dims"]
    if derived is None:
        return False
    if declared is None:
        row["dims"] = derived
    elif len(declared) != len(derived):
        return False
    else:
        row["dims"] = [want if want >= 0 else have for have, want in zip(declared, derived, strict=True)]
        if any(-1 not in (have, want) and have != want for have, want in zip(declared, derived, strict=True)):
            return False  # ONNX Runtime then takes either the inferred size or none at all
    return True


def _bare(model: Any) -> Any:
    """Return the model without what it claims of shapes inside, and without weights; its batch axes share a name."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    del graph.value_info[:]
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in constants and not dim.HasField("dim_value"):
                dim.dim_param = f"{_FREE}{dim.dim_param or f'{value.name}.{axis}'}" if axis else _BATCH
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    for tensor in graph.initializer:
        if _elements(tensor.dims) > _SMALL:
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "string_data"):
                tensor.ClearField(field)
            tensor.data_location = onnx.TensorProto.EXTERNAL
    return bare


def _elements(dims: Iterable[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def _open(path: Path, facts: Row) -> None:
    """Ask ONNX Runtime itself, where it is installed."""
    try:
        import onnxruntime
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        facts["refused"] = re.sub(r"Load model from .* failed:", "", _first_line(error))
        return
    facts["inputs"] = [_seen(argument) for argument in session.get_inputs()]
    facts["outputs"] = [_seen(argument) for argument in session.get_outputs()]
    facts["overridable"] = [_seen(argument) for argument in session.get_overridable_initializers()]
    facts["seen_by"] = "onnxruntime"


def _seen(argument: Any) -> Mapping[str, Any]:
    kind, _, inner = argument.type.partition("(")
    kind = {"seq": "sequence"}.get(kind, kind)
    if kind != "tensor":
        return {"name": argument.name, "kind": kind, "dtype": "", "dims": None}
    onnx_name = inner.removesuffix(")")
    dims = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape]
    dtype = _dtype(_ORT_NAMES.get(onnx_name, onnx_name.upper()))
    return {"name": argument.name, "kind": kind, "dtype": dtype, "dims": dims}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    main()
