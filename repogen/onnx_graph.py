"""Read an ONNX file: what it declares of itself, without running it."""

import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repogen.cache import cached
from repogen.dtypes import BY_ONNX
from repogen.errors import ModelError
from repogen.model import Dims, ExternalFile, Graph, Tensor

_RULES = "1"
"""Changes whenever the facts read from a file do: remembered ones are then read again."""
_ANONYMOUS = {"", "?", "-1", "None", "unknown", "*"}
"""Symbols that exporters write for "any size": two of them are not the same size."""


def read_graph(path: Path, digest: str) -> Graph:
    """Return what the ONNX file at `path`, whose sha256 is `digest`, says of itself.

    Raises ModelError naming the file when it is not ONNX, or refers to weights outside its own folder.
    """
    facts = cached("graphs", f"{_RULES} {digest}", lambda: _facts(path))
    return Graph(
        path=path,
        size=path.stat().st_size,
        ir_version=facts["ir_version"],
        opsets=facts["opsets"],
        producer=facts["producer"],
        inputs=tuple(_tensor(row) for row in facts["inputs"]),
        outputs=tuple(_tensor(row) for row in facts["outputs"]),
        operators=facts["operators"],
        external=tuple(_external_file(location, tensor, path) for location, tensor in facts["external"]),
    )


def _facts(path: Path) -> dict[str, Any]:
    """Return the facts that depend on the file's content alone, as JSON."""
    model = _load(path)
    graph = model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    initializers |= {tensor.values.name for tensor in graph.sparse_initializer}
    return {
        "ir_version": model.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "inputs": [_declared(value, path) for value in graph.input if value.name not in initializers],
        "outputs": [_declared(value, path) for value in graph.output],
        "operators": dict(sorted(_operators(graph).items())),
        "external": _external_locations(graph),
    }


def _tensor(row: Mapping[str, Any]) -> Tensor:
    return Tensor(row["name"], row["dtype"], None if row["dims"] is None else tuple(row["dims"]))


def axis_label(tensor: str, axis: int, symbol: str | None) -> str:
    """Return the name of a free axis: its symbol, or `tensor.axis` where the graph gives none of its own."""
    return f"{tensor}.{axis}" if symbol is None or symbol.strip() in _ANONYMOUS else symbol


def _load(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        message = "is not an ONNX file, or was cut short"
        raise ModelError(message, where=str(path), hint="export or copy it again") from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("holds no graph with outputs", where=str(path), hint="export or copy it again")
    return model


def refuse_what_is_not_onnx(path: Path) -> None:
    """Raise ModelError for what people copy in place of a model, saying what it is."""
    where = str(path)
    try:
        mode = path.stat().st_mode
        head = b"" if not stat.S_ISREG(mode) else _head(path)
    except FileNotFoundError:
        raise ModelError("there is no such file", where=where, hint="check models.*.source") from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", where=where) from None
    if stat.S_ISDIR(mode):
        raise ModelError("is a directory, not an ONNX file", where=where, hint="name the .onnx file in it")
    if not stat.S_ISREG(mode):
        raise ModelError("is not a regular file", where=where)
    if not head:
        raise ModelError("is empty (0 bytes)", where=where, hint="export or copy it again")
    if head.startswith(b"version https://git-lfs"):
        raise ModelError("is a Git LFS pointer, not the model itself", where=where, hint="run git lfs pull")
    if head.lstrip()[:1] in (b"<", b"{"):
        kind = "HTML or XML page" if head.lstrip()[:1] == b"<" else "JSON text"
        raise ModelError(f"is a {kind}, not an ONNX file", where=where, hint="download the raw file")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)


def _declared(value: Any, path: Path) -> dict[str, Any]:
    import onnx

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "unknown").removesuffix("_type")
        hint = "Triton serves plain tensors: export the model without it"
        raise ModelError(f"{value.name!r} is a {what}, not a tensor", where=str(path), hint=hint)
    tensor = value.type.tensor_type
    onnx_type = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if onnx_type not in BY_ONNX:
        hint = "cast it inside the graph before export"
        raise ModelError(
            f"{value.name!r} has type {onnx_type}, which Triton does not carry", where=str(path), hint=hint
        )
    return {"name": value.name, "dtype": BY_ONNX[onnx_type].triton, "dims": _dims(value.name, tensor)}


def _dims(name: str, tensor: Any) -> Dims | None:
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        literal = dim.HasField("dim_value") and dim.dim_value >= 0
        dims.append(dim.dim_value if literal else axis_label(name, axis, dim.dim_param))
    return tuple(dims)


def _operators(graph: Any) -> Counter[str]:
    """Count operators, those inside If, Loop and Scan included; a domain of its own is written before the name."""
    found: Counter[str] = Counter()
    for node in graph.node:
        plain = node.domain in ("", "ai.onnx")
        found[node.op_type if plain else f"{node.domain}:{node.op_type}"] += 1
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                found += _operators(inner)
    return found


def _external_locations(graph: Any) -> list[tuple[str, str]]:
    """Return each weights file that the graph refers to, with the name of one tensor in it."""
    import onnx

    found: dict[str, str] = {}
    for tensor in _tensors(graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            found.setdefault(location, tensor.name)
    return sorted(found.items())


def _tensors(graph: Any) -> list[Any]:
    found = [*graph.initializer]
    for sparse in graph.sparse_initializer:
        found += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t] if attribute.HasField("t") else []
            found += attribute.tensors
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                found += _tensors(inner)
    return found


def _external_file(location: str, tensor: str, path: Path) -> ExternalFile:
    where = str(path)
    what = f"weights of {tensor!r} lie in {location!r}"
    folder = path.parent.resolve()
    file = folder / location
    parts = Path(location).parts
    if not location or Path(location).is_absolute() or ".." in parts or file.resolve() != file:
        hint = "put the file beside the model, without links"
        raise ModelError(f"{what}, which is outside the model's folder or a link", where=where, hint=hint)
    if not file.is_file():
        raise ModelError(f"{what}, which is not there", where=where, hint="copy it beside the model")
    if file.stat().st_nlink > 1:
        raise ModelError(f"{what}, which is a hard link", where=where, hint="copy the file")
    return ExternalFile(Path(location).as_posix(), file.stat().st_size)
