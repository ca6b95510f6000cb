"""The child that finds where a lowered graph leaves fp32: it compares the tensors inside, some at a time.

Started by `repogen.bisect` through `repogen.child`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repogen.precision.calibration import open_with_outputs
from repogen.precision.data import Arrays, BadData, asked_samples
from repogen.precision.graphs import element_types, prepared
from repogen.precision.mixed import BORDER
from repogen.precision.rewriting import opset_for

_AT_A_TIME = 64
"""Tensors that one run gives: all of them at once would not fit for a large model."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each node of the fp32 graph, in its order, how far its outputs are off in the candidate."""
    import onnx

    try:
        sample = next(iter(asked_samples(question, count=1)))
    except BadData as problem:
        return {"bad_data": str(problem)}
    precision = question["precision"]
    reference = prepared(Path(question["reference"]), opset_for(precision))
    candidate = onnx.load(question["candidate"])
    half = precision in ("fp16", "bf16")
    if half:
        from repogen.precision.emulation import emulated

        candidate = onnx.ModelProto.FromString(emulated(Path(question["candidate"]), precision))
    types = element_types(reference)
    pairs = _pairs(reference.graph, candidate.graph, types, precision)
    errors: dict[str, float] = {}
    names = list(pairs)
    for start in range(0, len(names), _AT_A_TIME):
        some = names[start : start + _AT_A_TIME]
        want = _values(reference, some, sample.arrays)
        have = _values(candidate, [pairs[name] for name in some], sample.arrays, optimised=not half)
        errors |= {name: _error(want[name], have[pairs[name]]) for name in some}
    return {"rows": _rows(reference.graph, errors), "file": sample.file}


def _pairs(reference: Any, candidate: Any, types: Mapping[str, int], precision: str) -> dict[str, str]:
    """Return the name that each float tensor of the fp32 graph has in the candidate, where it is made there."""
    made = {name: node for node in candidate.node for name in node.output}
    found = {}
    for name in (name for node in reference.node for name in node.output if types.get(name) == 1):
        half = f"{name}_{precision}"
        # What a cast at a border gives is a copy; the tensor itself is the other one.
        native = half if half in made and not made[half].name.endswith(BORDER) else name
        if native in made:
            found[name] = native
    return found


def _values(model: Any, names: Sequence[str], arrays: Arrays, *, optimised: bool = True) -> Arrays:
    session = open_with_outputs(model, names, optimised=optimised)
    kinds = {tensor.name: tensor.type for tensor in session.get_inputs()}
    asked = {
        name: array.astype(np.float16) if kinds[name] == "tensor(float16)" else array for name, array in arrays.items()
    }
    return dict(zip(names, session.run(list(names), asked), strict=True))


def _error(want: "np.ndarray[Any, Any]", have: "np.ndarray[Any, Any]") -> float:
    """Return the relative L2 error; infinity where numbers became none, or shapes differ."""
    if want.shape != have.shape:
        return float("inf")
    want, have = want.astype(np.float64), have.astype(np.float64)
    if (np.isfinite(want) & ~np.isfinite(have)).any():
        return float("inf")
    same = np.isfinite(want) & np.isfinite(have)
    norm = float(np.linalg.norm(want[same]))
    off = float(np.linalg.norm(want[same] - have[same]))
    return off / norm if norm else off


def _rows(graph: Any, errors: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return each node's own error and the worst that comes into it."""
    rows = []
    for place, node in enumerate(graph.node):
        own = [errors[name] for name in node.output if name in errors]
        if own:
            into = max((errors[name] for name in node.input if name in errors), default=0.0)
            rows.append({"place": place, "node": node.name, "operator": node.op_type, "error": max(own), "into": into})
    return rows
