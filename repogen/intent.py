"""Decide what is served: a manifest entry and what is known of its model, to one ServedModel. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repogen.errors import ManifestError
from repogen.manifest import ModelEntry, TensorEntry
from repogen.model import (
    DynamicBatching,
    InputHint,
    Instances,
    ModelFile,
    Proof,
    ServedModel,
    ServedTensor,
    ShapeRange,
    Tensor,
)
from repogen.settings import config_fields, instance_fields, triton_type
from repogen.settings_schema import InstancesEntry

DEFAULT_MAX_BATCH = 8
Where = Callable[..., str]
"""Names the file, line and key of a part of this entry, for messages."""


def decide_onnx(name: str, entry: ModelEntry, proof: Proof, files: Sequence[ModelFile], where: Where) -> ServedModel:
    """Return how an ONNX model is served. Raises ManifestError where the entry asks what the model cannot do.

    For `backend: tensorrt` the settings are that backend's, and `repogen.plan_models` makes a plan of the model.
    """
    max_batch, note = _max_batch_size(entry, proof, where)
    _check_declared(entry.inputs, proof.inputs, "inputs", where)
    _check_declared(entry.outputs, proof.outputs, "outputs", where)
    shapes = _shapes(entry, proof, max_batch, where)
    return _served(
        name,
        entry,
        backend="tensorrt" if entry.backend == "tensorrt" else "onnxruntime",
        max_batch_size=max_batch,
        inputs=tuple(_served_tensor(tensor, batched=max_batch > 0) for tensor in proof.inputs),
        outputs=tuple(_served_tensor(tensor, batched=max_batch > 0) for tensor in proof.outputs),
        files=tuple(files),
        shapes=shapes,
        note=note,
        where=where,
    )


def decide_python(name: str, entry: ModelEntry, files: Sequence[ModelFile], where: Where) -> ServedModel:
    """Return how a Python model is served: its tensors are what the entry says they are."""
    for part, tensors in (("inputs", entry.inputs), ("outputs", entry.outputs)):
        if not tensors:
            raise ManifestError(f"a python model needs its {part} declared", where=where(), hint=f"add `{part}:`")
        for tensor, said in tensors.items():
            if said.dtype is None or said.dims is None:
                hint = "write {dtype: FP32, dims: [3, -1]}, without the batch axis where the model batches"
                raise ManifestError(
                    "a python model's tensor needs dtype and dims", where=where(part, tensor), hint=hint
                )
    max_batch = entry.max_batch_size or 0
    if entry.requirements:
        needs = {"repogen_requirements": json.dumps(entry.requirements)}
        entry = entry.model_copy(update={"parameters": {**entry.parameters, **needs}})
    return _served(
        name,
        entry,
        backend="python",
        max_batch_size=max_batch,
        inputs=tuple(_declared_tensor(key, said, where("inputs", key)) for key, said in entry.inputs.items()),
        outputs=tuple(_declared_tensor(key, said, where("outputs", key)) for key, said in entry.outputs.items()),
        files=tuple(files),
        shapes={label: ShapeRange(**span.model_dump()) for label, span in entry.shapes.items()},
        note="as declared" if entry.max_batch_size is not None else "not declared, so requests are not merged",
        where=where,
    )


def _served(
    name: str,
    entry: ModelEntry,
    *,
    backend: str,
    max_batch_size: int,
    inputs: tuple[ServedTensor, ...],
    outputs: tuple[ServedTensor, ...],
    files: tuple[ModelFile, ...],
    shapes: Mapping[str, ShapeRange],
    note: str,
    where: Where,
) -> ServedModel:
    instances, instance_note = _instances(entry.instances, backend, where)
    notes = (f"max_batch_size {max_batch_size}: {note}", instance_note)
    return ServedModel(
        name=name,
        backend=backend,
        source=entry.source,
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=outputs,
        instances=instances,
        dynamic_batching=_batching(entry, max_batch_size, note, where),
        files=files,
        version=entry.version,
        keep_versions=entry.keep_versions,
        parameters=dict(entry.parameters),
        config=config_fields(entry, backend=backend, max_batch_size=max_batch_size, where=where),
        shapes=dict(shapes),
        hints={
            key: InputHint(said.values, said.range) for key, said in entry.inputs.items() if said.values or said.range
        },
        notes=tuple(text for text in notes if text),
    )


def _max_batch_size(entry: ModelEntry, proof: Proof, where: Where) -> tuple[int, str]:
    asked = entry.max_batch_size
    if proof.batchable:
        if asked is None:
            return DEFAULT_MAX_BATCH, f"the default; batching {proof.reason}"
        return asked, f"as asked; batching {proof.reason}" if asked else "as asked: requests are not merged"
    if asked is not None and asked > 1 and proof.batchable is False:
        hint = "write 0, or export the model with a free batch axis"
        message = f"{asked} is asked, but this model cannot be batched: {proof.reason}"
        raise ManifestError(message, where=where("max_batch_size"), hint=hint)
    if asked is not None and asked > 0 and proof.batchable is None:
        return asked, f"as asked, NOT proved: {proof.reason}"
    return 0, proof.reason


def _batching(entry: ModelEntry, max_batch_size: int, note: str, where: Where) -> DynamicBatching | None:
    said = entry.dynamic_batching
    if said is False or max_batch_size == 0 or (said is None and entry.sequence_batching is not None):
        if isinstance(said, bool) and said:
            raise ManifestError(f"is asked, but max_batch_size is 0: {note}", where=where("dynamic_batching"))
        return None
    if said is None or said is True:
        return DynamicBatching() if max_batch_size > 1 or said else None
    too_large = [size for size in said.preferred_batch_size if size > max_batch_size]
    if too_large:
        message = f"{too_large[0]} is larger than max_batch_size {max_batch_size}"
        raise ManifestError(message, where=where("dynamic_batching", "preferred_batch_size"))
    return DynamicBatching(said.max_queue_delay, tuple(sorted(set(said.preferred_batch_size))))


def _instances(
    said: tuple[InstancesEntry, ...] | None, backend: str, where: Where
) -> tuple[tuple[Instances, ...], str]:
    default = "cpu" if backend == "python" else "gpu"
    if said is None:
        note = "instances: one a GPU, the default; for a server without GPUs write `instances: [{kind: cpu}]`"
        return (Instances(default, 1),), note if default == "gpu" else ""
    groups = tuple(
        Instances(group.kind or ("gpu" if group.gpus else default), group.count, group.gpus, more)
        for group, more in zip(said, instance_fields(said, backend, where), strict=True)
    )
    return groups, ""


def _shapes(entry: ModelEntry, proof: Proof, max_batch: int, where: Where) -> dict[str, ShapeRange]:
    """Return the range of each free axis: what the entry says, else the one size at which the model was run.

    The batch axis is none of them: it goes from 1 to max_batch_size.
    """
    axes = [
        (f"{tensor.name}.{axis}", axis, dim) for tensor in proof.inputs for axis, dim in enumerate(tensor.dims or ())
    ]
    free = list(dict.fromkeys(dim for _, _, dim in axes if isinstance(dim, str)))
    aliases = {alias: dim for alias, _, dim in axes if isinstance(dim, str)}
    batch = {dim for _, axis, dim in axes if axis == 0 and max_batch}
    shapes = {label: ShapeRange(size, size, size) for label, size in proof.sizes.items() if label not in batch}
    shapes |= {alias: ShapeRange(0, 0, 0) for alias, _, dim in axes if dim == 0}
    for label, span in entry.shapes.items():
        if label not in free and label not in aliases and proof.inputs:
            hint = f"free axes: {', '.join(free) or 'none'}"
            raise ManifestError(f"the model has no free axis {label!r}", where=where("shapes", label), hint=hint)
        if aliases.get(label, label) in batch:
            _check_batch_range(ShapeRange(**span.model_dump()), max_batch, where("shapes", label))
        else:
            shapes[aliases.get(label, label)] = ShapeRange(**span.model_dump())
    return shapes


def _check_batch_range(span: ShapeRange, max_batch: int, where: str) -> None:
    if span.min != 1:
        message = f"the batch axis begins at {span.min}, but the batcher may send 1"
        raise ManifestError(message, where=where, hint="write min: 1, or remove it: it goes from 1 to max_batch_size")
    if span.max != max_batch:
        message = f"the batch axis ends at {span.max}, but max_batch_size is {max_batch}"
        raise ManifestError(message, where=where, hint="remove it: max_batch_size decides")


def _served_tensor(tensor: Tensor, *, batched: bool) -> ServedTensor:
    dims = tensor.dims or ()
    if not dims:
        return ServedTensor(tensor.name, tensor.dtype, (1,), scalar=True, labels=("",))
    inner = dims[1:] if batched else dims
    if not inner:  # [N]: Triton wants at least one axis beside the batch's
        return ServedTensor(tensor.name, tensor.dtype, (1,), labels=("",), reshape=())
    # A literal 0 is written as -1, which Triton takes: an empty request then fits.
    named = [
        dim if isinstance(dim, str) else f"{tensor.name}.{axis}" if dim == 0 else "" for axis, dim in enumerate(dims)
    ][len(dims) - len(inner) :]
    return ServedTensor(
        tensor.name,
        tensor.dtype,
        tuple(-1 if isinstance(dim, str) or dim == 0 else dim for dim in inner),
        labels=tuple(named),
    )


def _declared_tensor(name: str, said: TensorEntry, where: str) -> ServedTensor:
    dims = said.dims or ()
    if not dims or any(dim != -1 and dim < 1 for dim in dims):
        raise ManifestError(f"dims are sizes from 1, or -1 for any, not {list(dims)}", where=where)
    labels = tuple(f"{name}.{axis}" if dim < 0 else "" for axis, dim in enumerate(dims))
    return ServedTensor(name, triton_type(said.dtype or "", where), dims, labels=labels)


def _check_declared(said: Mapping[str, TensorEntry], tensors: Sequence[Tensor], part: str, where: Where) -> None:
    """Compare what the entry says of an ONNX model's tensors with its graph: the graph is right."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, entry in said.items():
        if name not in by_name:
            hint = f"the graph has {', '.join(by_name) or 'none'}"
            raise ManifestError(f"the graph has no {part[:-1]} {name!r}", where=where(part, name), hint=hint)
        tensor = by_name[name]
        if entry.dtype is not None and triton_type(entry.dtype, where(part, name)) != tensor.dtype:
            message = f"the graph has {tensor.dtype}, the manifest {entry.dtype}"
            raise ManifestError(message, where=where(part, name, "dtype"), hint=f"use {tensor.dtype}")
        if entry.dims is not None:
            _check_dims(entry.dims, tensor, where(part, name, "dims"))


def _check_dims(said: Sequence[int], tensor: Tensor, where: str) -> None:
    full: Sequence[Any] = tensor.dims or ()
    compared = full if len(said) == len(full) else full[1:]  # with or without the batch axis
    if len(said) != len(compared):
        message = f"the graph has {len(full)} axes {list(full)}, the manifest {len(said)}"
        raise ManifestError(message, where=where, hint="remove dims: they are read from the graph")
    offset = len(full) - len(compared)
    for axis, (have, want) in enumerate(zip(said, compared, strict=True)):
        if have != (want if isinstance(want, int) else -1):
            shown = want if isinstance(want, int) else f"{want} (free, -1)"
            message = f"axis {axis + offset} of {tensor.name!r}: the graph has {shown}, the manifest {have}"
            raise ManifestError(message, where=where, hint="remove dims: they are read from the graph")
