"""`repogen inspect`: what an ONNX file is, and the manifest entry for it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.console import Console
from repogen.units import size_text

if TYPE_CHECKING:
    from repogen.model import Graph, Proof, ServedModel, Tensor


def inspect(path: Path, *, console: Console) -> int:
    from repogen.desired import read_and_prove, served_by_default

    graph, proof, files = read_and_prove(path)
    model = served_by_default(path, graph, proof, files)
    _show(graph, proof, model, console)
    console.document(_document(graph, proof, model))
    return 0


def _show(graph: "Graph", proof: "Proof", model: "ServedModel", console: Console) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in graph.opsets.items())
    console.say(
        f"{graph.path}  {size_text(graph.size)}, IR {graph.ir_version}, opset {opsets}, {graph.producer}".rstrip(", ")
    )
    console.say()
    console.table(("", "name", "type", "shape"), _rows(proof.inputs or graph.inputs, proof.outputs or graph.outputs))
    console.say()
    answer = {True: "batching: yes", False: "batching: no", None: "batching: not proved"}[proof.batchable]
    console.say(f"{answer}, {proof.reason}")
    if proof.sizes:
        sizes = ", ".join(f"{label}={size}" for label, size in proof.sizes.items())
        console.say(f"ran with free axes {sizes}")
    common = sorted(graph.operators.items(), key=lambda item: (-item[1], item[0]))
    shown = common if console.verbose else common[:8]
    more = f", {len(common) - len(shown)} more kinds (-v)" if len(shown) < len(common) else ""
    total = sum(graph.operators.values())
    console.say(f"operators: {total}: {', '.join(f'{name} {count}' for name, count in shown)}{more}")
    for weights in graph.external:
        console.say(f"weights: {weights.name} {size_text(weights.size)}")
    console.say()
    console.say("manifest entry:")
    console.say(entry_text(model))


def _rows(inputs: Iterable["Tensor"], outputs: Iterable["Tensor"]) -> Iterable[tuple[str, str, str, str]]:
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            shape = "no rank given" if tensor.dims is None else f"[{', '.join(map(str, tensor.dims))}]"
            yield kind, tensor.name, tensor.dtype, "[] (a scalar)" if tensor.dims == () else shape


def entry_text(model: "ServedModel") -> str:
    """Return the manifest entry of `model` as YAML."""
    lines = [f"  {model.name}:", f"    source: {model.source}", f"    max_batch_size: {model.max_batch_size}"]
    free = {label for tensor in model.inputs for label in tensor.labels if label}
    spans = {label: span for label, span in model.shapes.items() if label in free}
    if spans:
        lines.append("    shapes:  # sizes at which it ran: set your own")
        for label, span in spans.items():
            lines.append(f'      "{label}": {{min: {span.min}, opt: {span.opt}, max: {span.max}}}')
    return "\n".join(lines)


def _document(graph: "Graph", proof: "Proof", model: "ServedModel") -> dict[str, Any]:
    def tensors(found: Iterable["Tensor"]) -> list[dict[str, Any]]:
        return [{"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.dims} for tensor in found]

    return {
        "path": str(graph.path),
        "size": graph.size,
        "ir_version": graph.ir_version,
        "opsets": graph.opsets,
        "producer": graph.producer,
        "inputs": tensors(proof.inputs or graph.inputs),
        "outputs": tensors(proof.outputs or graph.outputs),
        "operators": graph.operators,
        "external": [{"name": weights.name, "size": weights.size} for weights in graph.external],
        "batching": {
            "proved": proof.batchable,
            "reason": proof.reason,
            "axis": 0 if proof.batchable else None,
            "batches": proof.batches,
            "sizes": proof.sizes,
        },
        "max_batch_size": model.max_batch_size,
    }
