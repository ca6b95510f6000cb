"""What Triton cannot serve, told before anything is built; and what people should know of what it can."""

from collections.abc import Iterator, Sequence

from repogen.errors import ManifestError, ModelError
from repogen.model import CustomOperator, Graph, Proof, ServedModel, Tensor
from repogen.releases import RELEASES, Release, onnx_limits

_FEW = 3
_BF16_FROM = "26.03"


def refuse_unservable(graph: Graph, proof: Proof, *, operator_library: bool) -> None:
    """Raise ModelError for what no Triton can serve. `operator_library`: the user brings the custom operators."""
    where = str(graph.path)
    if graph.custom and not operator_library:
        names = ", ".join(_counted(found) for found in graph.custom)
        hint = (
            "give their library in `config: {model_operations: {op_library_filename: [/path/lib.so]}}`, "
            "or export the model without them"
        )
        raise ModelError(f"needs operators that ONNX Runtime does not have: {names}", where=where, hint=hint)
    if proof.refused and not graph.custom:
        hint = "export it again, or with another opset"
        raise ModelError(f"ONNX Runtime does not open it: {proof.refused}", where=where, hint=hint)
    for part, tensors in (("input", proof.inputs or graph.inputs), ("output", proof.outputs or graph.outputs)):
        for tensor in tensors:
            _refuse_tensor(part, tensor, graph)


def _counted(found: CustomOperator) -> str:
    return f"{found.domain}:{found.op} ({found.count} node{'s' if found.count > 1 else ''})"


def _refuse_tensor(part: str, tensor: Tensor, graph: Graph) -> None:
    if not tensor.dtype:
        raise ModelError(f"the graph gives no type for {part} {tensor.name!r}", where=str(graph.path))
    if tensor.dims is None:
        why = f": {graph.branches[0]}" if graph.branches else ""
        hint = "give it a shape at export (free axes may stay free)"
        if graph.branches:
            hint = "let both branches give the same rank, or fold the condition into a constant at export"
        message = f"the graph gives no rank for {part} {tensor.name!r}, and Triton's config needs one{why}"
        raise ModelError(message, where=str(graph.path), hint=hint)


def refuse_newer_than(release: Release, graph: Graph, where: str) -> None:
    """Raise ManifestError where a Triton release, or its ONNX Runtime, is known not to take the model."""
    bf16 = next((tensor.name for tensor in (*graph.inputs, *graph.outputs) if tensor.dtype == "TYPE_BF16"), None)
    if bf16 is not None and release.ngc < _BF16_FROM:
        message = f"{graph.path} has {bf16!r} of type BF16, which the onnxruntime backend has from {_BF16_FROM} on"
        hint = "cast it to FP32 or FP16 inside the graph, or pin a later release"
        raise ManifestError(message, where=where, hint=hint)
    if (problem := _too_new(release, graph)) and (limits := onnx_limits(release)) and limits.confidence == "measured":
        first = first_release(graph)
        hint = (
            f"pin triton: {first!r} or later, or export with an older opset" if first else "export with an older opset"
        )
        raise ManifestError(f"{graph.path} has {problem}", where=where, hint=hint)


def _too_new(release: Release, graph: Graph) -> str:
    limits = onnx_limits(release)
    if limits is None:
        return ""
    whose = f"ONNX Runtime {release.onnxruntime} of Triton {release.ngc}"
    if graph.ir_version > limits.ir_version:
        return f"IR version {graph.ir_version}, and {whose} opens up to {limits.ir_version}"
    for domain, most in (("ai.onnx", limits.opset), ("ai.onnx.ml", limits.ml_opset)):
        if graph.opsets.get(domain, 0) > most:
            return f"opset {graph.opsets[domain]} of {domain}, and {whose} knows up to {most}"
    return ""


def first_release(graph: Graph) -> str:
    """Return the first Triton release that opens the model, "" where none is known to."""
    fits = (name for name, release in RELEASES.items() if onnx_limits(release) and not _too_new(release, graph))
    return next(fits, "")


def advice(
    graph: Graph, proof: Proof, model: ServedModel, *, release: Release | None, fixed: frozenset[str]
) -> tuple[str, ...]:
    """Return what people should know of a model before they serve it; `fixed` axes have one size by the manifest."""
    return tuple(_advice(graph, proof, model, release, fixed))


def _advice(
    graph: Graph, proof: Proof, model: ServedModel, release: Release | None, fixed: frozenset[str]
) -> Iterator[str]:
    yield from proof.notes
    if release is not None and (problem := _too_new(release, graph)):
        yield f"perhaps too new: {problem} (inferred)"
    free = list(dict.fromkeys(label for tensor in model.inputs for label in tensor.labels if label in model.shapes))
    free = [label for label in free if model.shapes[label].max > 0 and label not in fixed]
    if model.max_batch_size > 1 and free:
        yield (
            f"requests that differ in {', '.join(free)} are never merged: pad them to a few sizes (buckets), "
            "all to one, or make the input ragged (allow_ragged_batch) where the model takes that"
        )
    for name in graph.unused:
        yield f"input {name!r} is read by no node, but every request must carry it"
    for name, reader in graph.shape_inputs.items():
        yield f"the values of input {name!r} become a shape ({reader}): they must be alike in merged requests"
    if graph.defaults:
        yield f"{_some([tensor.name for tensor in graph.defaults])}: defaults of the graph, no request carries them"
    if graph.data_dependent:
        yield f"sizes that depend on values: {_some(graph.data_dependent)}"
    yield from graph.branches[:_FEW]
    if graph.beyond_fp16:
        worst = [f"{name} {value:g}" for name, value in graph.beyond_fp16]
        yield f"constants that FP16 cannot hold: {_some(worst)}"
    yield from _traced(proof)


def _some(items: Sequence[str]) -> str:
    shown = ", ".join(items[:_FEW])
    return f"{shown} and {len(items) - _FEW} more" if len(items) > _FEW else shown


def _traced(proof: Proof) -> Iterator[str]:
    """Point at a literal size of an output where the input's axis is free: an export may have baked it in."""
    for output in proof.outputs:
        inner = range(1, len(output.dims or ()) - 1)
        for axis in inner:
            size = (output.dims or ())[axis]
            free = [
                tensor
                for tensor in proof.inputs
                if _free_at(tensor, axis) and len(tensor.dims or ()) < len(output.dims or ())
            ]
            if isinstance(size, int) and size > 1 and free:
                label = (free[0].dims or ())[axis]
                yield (
                    f"axis {axis} of output {output.name!r} is {size} although {label} of input {free[0].name!r} "
                    "is free: an export may have baked in the size it was traced with"
                )


def _free_at(tensor: Tensor, axis: int) -> bool:
    return tensor.dims is not None and axis < len(tensor.dims) and isinstance(tensor.dims[axis], str)
