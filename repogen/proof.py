"""Prove by running whether a model may be batched: ask a child process, and remember its answer.

A hostile or huge model takes the child down, not us.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from repogen.cache import cached
from repogen.child import MEMORY, ChildFailed, ask
from repogen.files import sha256
from repogen.model import Graph, InputHint, Proof, ShapeRange, Tensor
from repogen.onnx_graph import hint_of

_RULES = "3"
"""Changes whenever the child's way of proving does: a remembered answer is then asked for again."""
_SUMLESS = {
    *("Abs", "Add", "Sub", "Mul", "Div", "Neg", "Cast", "Identity", "Relu", "Clip", "Min", "Max", "Where", "Sign"),
    *("Reshape", "Transpose", "Concat", "Slice", "Split", "Squeeze", "Unsqueeze", "Gather", "Shape", "Expand", "Tile"),
    *(
        "Flatten",
        "Pad",
        "Constant",
        "ConstantOfShape",
        "Range",
        "Equal",
        "Greater",
        "Less",
        "Not",
        "And",
        "Or",
        "Floor",
    ),
    *("Ceil", "Round", "Size", "Dropout", "ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"),
}
"""Operators without sums of many terms: whatever the batch, they compute the same."""


def prove(
    graph: Graph,
    *,
    digest: str,
    hints: Mapping[str, InputHint],
    shapes: Mapping[str, ShapeRange],
    max_batch: int = 8,
    memory: int = MEMORY,
    timeout: float = 120,
) -> Proof:
    """Run the model at batch 1, 2, 3 and `max_batch` on ONNX Runtime and say whether its requests may be merged.

    `digest` is the sha256 of the model's bytes, weights included; `hints` go before what the graph tells of its
    inputs. Never raises for what the model does: when it cannot be run, `Proof.batchable` is None and the reason
    says why.
    """
    known = {**graph.hints, **hints}
    said: dict[str, dict[str, Any]] = {name: asdict(hint) | {"file": None} for name, hint in sorted(known.items())}
    question = {
        "inputs": [asdict(tensor) for tensor in graph.inputs],
        "outputs": [asdict(tensor) for tensor in graph.outputs],
        "hints": said,
        "shapes": {label: asdict(span) for label, span in sorted(shapes.items())},
        "random": list(graph.random),
        "sums": not _SUMLESS.issuperset(graph.operators),
        "max_batch": max_batch,
    }
    files = {name: hint.file for name, hint in known.items() if hint.file is not None}
    contents = {name: sha256(file) for name, file in sorted(files.items())}
    key = json.dumps([_RULES, digest, _onnxruntime_version(), question, contents], sort_keys=True)
    for name, file in files.items():
        said[name]["file"] = str(file)
    proof = _proof(_answer(key, {"path": str(graph.path), **question}, memory, timeout))
    # The answer may be remembered from another place: the samples lie where they lie now.
    here = {name: replace(hint, file=files.get(name)) for name, hint in proof.hints.items()}
    return replace(proof, hints=here)


@lru_cache
def _onnxruntime_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""


def _answer(key: str, question: Mapping[str, Any], memory: int, timeout: float) -> dict[str, Any] | None:
    """Return the child's answer. One that it found is remembered for every limit, a failure for its own limits."""
    if not _onnxruntime_version():
        return None

    def attempt() -> dict[str, Any]:
        return dict(cached("attempts", f"{memory} {timeout} {key}", lambda: _ask(question, memory, timeout)))

    found: dict[str, Any] | None = cached("proofs", key, lambda: attempt().get("answer"))
    return found or {"batchable": None, "reason": f"the proof could not be run: {attempt()['failure']}"}


def _ask(question: Mapping[str, Any], memory: int, timeout: float) -> dict[str, Any]:
    try:
        return {"answer": ask("proving", question, memory=memory, seconds=timeout)}
    except ChildFailed as failure:
        return {"failure": str(failure)}


def _proof(answer: Mapping[str, Any] | None) -> Proof:
    if answer is None:
        return Proof(None, "onnxruntime is not installed here, so the model was not run (pip install 'repogen[local]')")
    return Proof(
        batchable=answer["batchable"],
        reason=answer["reason"],
        inputs=tuple(_tensor(row) for row in answer.get("inputs", ())),
        outputs=tuple(_tensor(row) for row in answer.get("outputs", ())),
        sizes=answer.get("sizes", {}),
        batches=tuple(answer.get("batches", ())),
        refused=answer.get("refused", ""),
        peak_memory=answer.get("peak", 0),
        hints={name: hint_of(row) for name, row in answer.get("hints", {}).items()},
        notes=tuple(answer.get("notes", ())),
    )


def _tensor(row: Mapping[str, Any]) -> Tensor:
    return Tensor(row["name"], row["dtype"], None if row["dims"] is None else tuple(row["dims"]))
