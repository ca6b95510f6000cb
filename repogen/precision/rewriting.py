"""The child that lowers: it reads the model and the data, measures ranges, rewrites and writes.

Started by `repogen.precision.lowering` through `repogen.child`.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repogen.precision.calibration import gather
from repogen.precision.data import BadData, asked_samples
from repogen.precision.graphs import Unfit, element_types, prepared, save
from repogen.precision.int8 import OPSET, quantisable, quantise
from repogen.precision.mixed import OPSETS, rewrite
from repogen.precision.sensitive import unknown

PROBES = 2
"""Made-up samples on which ranges are measured where there are no others."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of ranges (`task` is measure), or the files written and what was done (lower)."""
    try:
        return _measure(question) if question["task"] == "measure" else _lower(question)
    except BadData as problem:
        return {"bad_data": str(problem)}
    except Unfit as problem:
        return {"error": str(problem), "hint": problem.hint}
    except Exception as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise MemoryError from None
        raise


def opset_for(precision: str) -> int:
    return OPSET if precision == "int8" else OPSETS[precision]


def _measure(question: Mapping[str, Any]) -> dict[str, Any]:
    model = prepared(Path(question["path"]), opset_for(question["precision"]))
    types = element_types(model)
    if question["precision"] == "int8":
        names = sorted({node.input[0] for node in quantisable(model.graph, types, question["keep"])})
    else:
        made = [value.name for value in model.graph.input] + [name for node in model.graph.node for name in node.output]
        names = sorted(name for name in set(made) if types.get(name) == 1)
    data = itertools.islice(asked_samples(question, count=PROBES), question["samples"])
    method = question["method"] if question["precision"] == "int8" else "minmax"
    table = gather(model, names, data, method=method, percentile=question["percentile"], seconds=question["seconds"])
    return table.as_json()


def _lower(question: Mapping[str, Any]) -> dict[str, Any]:
    precision, keep = question["precision"], question["keep"]
    model = prepared(Path(question["path"]), opset_for(precision))
    if missing := unknown(model.graph, keep):
        message = f"keep_fp32 names {missing[0]!r}, which is neither a node nor an operator of the model"
        raise Unfit(message, "repogen verify --bisect prints the names of its nodes")
    if precision == "int8":
        nodes = quantisable(model.graph, element_types(model), keep)
        model = quantise(model, nodes, question["table"]["thresholds"])
        done = {"half": 0, "quantised": len(nodes), "casts": 0, "kept": {}}
    else:
        ranges = question["table"]["largest"]
        found = rewrite(model, precision, keep=keep, ranges=ranges, io=question["io"])
        done = {"half": found.half, "quantised": 0, "casts": found.casts, "kept": dict(found.kept)}
    return done | {"files": save(model, Path(question["folder"]))}
