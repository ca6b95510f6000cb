"""Read an ONNX file: what it declares of itself, without running it."""

import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from repogen.cache import cached
from repogen.child import MEMORY, ChildFailed, ask
from repogen.errors import ModelError
from repogen.external import external_files
from repogen.labels import axis_label
from repogen.model import CustomOperator, Graph, InputHint, Tensor
from repogen.units import size_text

__all__ = ["axis_label", "read_graph", "refuse_what_is_not_onnx", "with_weights"]

_RULES = "3"
"""Changes whenever the facts read from a file do: remembered ones are then read again."""
_PROTOBUF_LIMIT = 2**31 - 1


def read_graph(path: Path, digest: str, *, memory: int = MEMORY) -> Graph:
    """Return what the ONNX file at `path`, whose sha256 is `digest`, says of itself.

    Raises ModelError naming the file when it is not ONNX, is nothing that Triton carries, or refers to weights
    that are not plain files in its own folder. Of those weights nothing is read.
    """
    facts = cached("graphs", f"{_RULES} {digest}", lambda: _read(path, memory))
    if "error" in facts:
        raise ModelError(facts["error"], where=str(path), hint=facts["hint"])
    return Graph(
        path=path,
        size=path.stat().st_size,
        ir_version=facts["ir_version"],
        opsets=facts["opsets"],
        producer=facts["producer"],
        inputs=_tensors(facts["inputs"]),
        outputs=_tensors(facts["outputs"]),
        operators=facts["operators"],
        external=external_files(facts["external"], path),
        defaults=_tensors(facts["defaults"]),
        unused=tuple(facts["unused"]),
        subgraphs=facts["subgraphs"],
        custom=tuple(CustomOperator(**row) for row in facts["custom"]),
        data_dependent=tuple(facts["data_dependent"]),
        shape_inputs=facts["shape_inputs"],
        random=tuple(facts["random"]),
        beyond_fp16=_constants(facts),
        branches=tuple(facts["branches"]),
        hints={name: hint_of(row) for name, row in facts["hints"].items()},
    )


def weights_of(path: Path, digest: str, *, memory: int = MEMORY) -> tuple[str, ...]:
    """Return the names of the weights files that an ONNX file refers to, as it says them; () for what is no ONNX."""
    facts = cached("graphs", f"{_RULES} {digest}", lambda: _read(path, memory))
    return tuple(sorted({row["location"] for row in facts.get("external", ())}))


def with_weights(graph: Graph, digest: str, *, memory: int = MEMORY) -> Graph:
    """Return the facts with those of the weights files added; `digest` is of the model and of them."""
    if not graph.external:
        return graph
    question = {"path": str(graph.path), "constants": True}
    facts = cached("weights", f"{_RULES} {digest}", lambda: _asked(graph.path, question, memory))
    return replace(graph, beyond_fp16=(*graph.beyond_fp16, *_constants(facts)))


def hint_of(row: Mapping[str, Any]) -> InputHint:
    """Return a hint as JSON has it."""
    span = row.get("range")
    return InputHint(
        values=tuple(row.get("values", ())),
        range=(span[0], span[1]) if span else None,
        file=Path(row["file"]) if row.get("file") else None,
        why=row.get("why", ""),
    )


def _read(path: Path, memory: int) -> dict[str, Any]:
    return _asked(path, {"path": str(path)}, memory)


def _asked(path: Path, question: Mapping[str, Any], memory: int) -> dict[str, Any]:
    try:
        answer = ask("onnx_facts", question, memory=memory, seconds=60)
    except ChildFailed as failure:
        raise ModelError(
            f"cannot be read: {failure}", where=str(path), hint="it is damaged, hostile, or too large for --memory"
        ) from None
    if "error" in answer:
        raise ModelError(answer["error"], where=str(path), hint=answer["hint"])
    return answer


def _tensors(rows: list[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(row["name"], row["dtype"], None if row["dims"] is None else tuple(row["dims"])) for row in rows)


def _constants(facts: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple((name, value) for name, value in facts["beyond_fp16"])


def refuse_what_is_not_onnx(path: Path) -> None:
    """Raise ModelError for what people copy in place of a model, saying what it is."""
    where = str(path)
    try:
        status = path.stat()
        head = b"" if not stat.S_ISREG(status.st_mode) else _head(path)
    except FileNotFoundError:
        raise ModelError("there is no such file", where=where, hint="check models.*.source") from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", where=where) from None
    if stat.S_ISDIR(status.st_mode):
        raise ModelError("is a directory, not an ONNX file", where=where, hint="name the .onnx file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError("is not a regular file", where=where)
    if not head:
        raise ModelError("is empty (0 bytes)", where=where, hint="export or copy it again")
    if head.startswith(b"version https://git-lfs"):
        raise ModelError("is a Git LFS pointer, not the model itself", where=where, hint="run git lfs pull")
    if head.lstrip()[:1] in (b"<", b"{"):
        kind = "HTML or XML page" if head.lstrip()[:1] == b"<" else "JSON text"
        raise ModelError(f"is a {kind}, not an ONNX file", where=where, hint="download the raw file")
    if status.st_size > _PROTOBUF_LIMIT:
        message = f"has {size_text(status.st_size)}, and a protobuf cannot have more than 2 GiB"
        raise ModelError(message, where=where, hint="export it with its weights in a file of their own (external data)")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)
