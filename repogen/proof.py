"""Prove by running whether a model may be batched: ask a child process, and remember its answer.

A hostile or huge model takes the child down, not us.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from repogen.cache import cached
from repogen.model import Graph, InputHint, Proof, ShapeRange, Tensor

_RULES = "1"
"""Changes whenever the child's way of proving does: a remembered answer is then asked for again."""


def prove(
    graph: Graph,
    *,
    digest: str,
    hints: Mapping[str, InputHint],
    shapes: Mapping[str, ShapeRange],
    timeout: float = 120,
) -> Proof:
    """Run the model at batch 1, 2 and 3 on ONNX Runtime and say whether its requests may be merged.

    `digest` is the sha256 of the model's bytes, weights included. Never raises for what the model does: when
    it cannot be run, `Proof.batchable` is None and the reason says why.
    """
    question = {
        "inputs": [asdict(tensor) for tensor in graph.inputs],
        "outputs": [asdict(tensor) for tensor in graph.outputs],
        "hints": {name: asdict(hint) for name, hint in sorted(hints.items())},
        "shapes": {label: asdict(span) for label, span in sorted(shapes.items())},
    }
    key = json.dumps([_RULES, digest, _onnxruntime_version(), question], sort_keys=True)
    answer = cached("proofs", key, lambda: _ask(graph.path, question, timeout))
    return _proof(answer)


def _onnxruntime_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""


def _ask(path: Path, question: Mapping[str, Any], timeout: float) -> dict[str, Any] | None:
    if not _onnxruntime_version():
        return None
    command = [sys.executable, "-m", "repogen.proving", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    try:
        child = subprocess.run(
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"batchable": None, "reason": f"it did not finish within {timeout:.0f} s"}
    if child.returncode == 0:
        return dict(json.loads(child.stdout))
    last = next((line for line in reversed(child.stderr.splitlines()) if line.strip()), "")
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}"
    return {"batchable": None, "reason": f"ONNX Runtime ended with {how}: {last}"[:400]}


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
    )


def _tensor(row: Mapping[str, Any]) -> Tensor:
    return Tensor(row["name"], row["dtype"], None if row["dims"] is None else tuple(row["dims"]))
