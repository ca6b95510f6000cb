"""`repogen inspect`: what an ONNX file is, and the manifest entry for it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.child import MEMORY
from repogen.console import Console
from repogen.units import size_text

if TYPE_CHECKING:
    from repogen.model import Graph, Proof, ServedModel, Tensor
    from repogen.preflight import Preflight

_SHOWN = 8


def inspect(path: Path, *, console: Console, memory: int = MEMORY, tensorrt: bool = False) -> int:
    from repogen.desired import read_and_prove, served_by_default

    graph, proof, files = read_and_prove(path, memory=memory)
    model = served_by_default(path, graph, proof, files)
    _show(graph, proof, model, console)
    tried = _tried(model, graph, console) if tensorrt else None
    console.document(_document(graph, proof, model) | ({"tensorrt": asdict(tried)} if tried else {}))
    return 0 if tried is None or tried.passed else 1


def _tried(model: "ServedModel", graph: "Graph", console: Console) -> "Preflight":
    from repogen.preflight import preflight_model, report

    found = preflight_model(model, graph)
    console.say()
    for line in report(found):
        console.say(line)
    return found


def _show(graph: "Graph", proof: "Proof", model: "ServedModel", console: Console) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in graph.opsets.items())
    console.say(
        f"{graph.path}  {size_text(graph.size)}, IR {graph.ir_version}, opset {opsets}, {graph.producer}".rstrip(", ")
    )
    console.say(_releases(graph))
    console.say()
    console.table(("", "name", "type", "shape"), _rows(proof.inputs or graph.inputs, proof.outputs or graph.outputs))
    console.say()
    answer = {True: "batching: yes", False: "batching: no", None: "batching: not proved"}[proof.batchable]
    console.say(f"{answer}, {proof.reason}")
    if proof.sizes:
        sizes = ", ".join(f"{label}={size}" for label, size in proof.sizes.items())
        console.say(f"ran with free axes {sizes}")
    if proof.peak_memory:
        console.say(f"the proof took {size_text(proof.peak_memory)} of memory")
    console.say(_operators(graph, console))
    for weights in graph.external:
        console.say(f"weights: {weights.name} {size_text(weights.size)}")
    for note in model.notes[1:]:
        console.say(f"note: {note}")
    console.say()
    console.say("manifest entry:")
    console.say(entry_text(model))


def _releases(graph: "Graph") -> str:
    from repogen.servable import first_release

    first = first_release(graph)
    return f"ONNX Runtime opens it in Triton releases from {first} on" if first else "too new for every known release"


def _operators(graph: "Graph", console: Console) -> str:
    common = sorted(graph.operators.items(), key=lambda item: (-item[1], item[0]))
    shown = common if console.verbose else common[:_SHOWN]
    more = f", {len(common) - len(shown)} more kinds (-v)" if len(shown) < len(common) else ""
    total = sum(graph.operators.values())
    return f"operators: {total}: {', '.join(f'{name} {count}' for name, count in shown)}{more}"


def _rows(inputs: Iterable["Tensor"], outputs: Iterable["Tensor"]) -> Iterator[tuple[str, str, str, str]]:
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            shape = "no rank given" if tensor.dims is None else f"[{', '.join(map(str, tensor.dims))}]"
            yield kind, tensor.name, tensor.dtype, "[] (a scalar)" if tensor.dims == () else shape


def entry_text(model: "ServedModel") -> str:
    """Return the manifest entry of `model` as YAML."""
    lines = [f"  {model.name}:", f"    source: {model.source}", f"    max_batch_size: {model.max_batch_size}"]
    free = {label for tensor in model.inputs for label in tensor.labels if label}
    spans = {label: span for label, span in model.shapes.items() if label in free and span.min > 0}
    if spans:
        lines.append("    shapes:  # sizes at which it ran: set your own")
        for label, span in spans.items():
            lines.append(f'      "{label}": {{min: {span.min}, opt: {span.opt}, max: {span.max}}}')
    return "\n".join(lines)


def _document(graph: "Graph", proof: "Proof", model: "ServedModel") -> dict[str, Any]:
    from repogen.servable import first_release

    def tensors(found: Iterable["Tensor"]) -> list[dict[str, Any]]:
        return [{"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.dims} for tensor in found]

    return {
        "path": str(graph.path),
        "size": graph.size,
        "ir_version": graph.ir_version,
        "opsets": graph.opsets,
        "first_release": first_release(graph),
        "producer": graph.producer,
        "inputs": tensors(proof.inputs or graph.inputs),
        "outputs": tensors(proof.outputs or graph.outputs),
        "defaults": tensors(graph.defaults),
        "unused": graph.unused,
        "operators": graph.operators,
        "custom": [asdict(found) for found in graph.custom],
        "subgraphs": graph.subgraphs,
        "branches": graph.branches,
        "data_dependent": graph.data_dependent,
        "shape_inputs": graph.shape_inputs,
        "random": graph.random,
        # JSON has no infinity.
        "beyond_fp16": [[name, value if math.isfinite(value) else str(value)] for name, value in graph.beyond_fp16],
        "external": [{"name": weights.name, "size": weights.size} for weights in graph.external],
        "batching": {
            "proved": proof.batchable,
            "reason": proof.reason,
            "axis": 0 if proof.batchable else None,
            "batches": proof.batches,
            "sizes": proof.sizes,
            "values": {name: _hint(hint) for name, hint in proof.hints.items()},
            "peak_memory": proof.peak_memory,
        },
        "max_batch_size": model.max_batch_size,
        "notes": model.notes,
    }


def _hint(hint: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(hint).items() if value}
