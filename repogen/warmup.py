"""Warm-up requests for a model: one for each size that Triton batches to, in each profile. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repogen.model import ExtraFile, InputHint, Instances, Profile, ServedModel, ServedTensor

_FOLDER = "warmup"  # where Triton looks for a model's input_data_file


def warmed(model: ServedModel) -> ServedModel:
    """Return `model` with `model_warmup`: batch 1, each preferred size and the maximum, in each of a plan's profiles.

    Inputs of which values are known (given, or found in the graph) get a file of such values, since zeros or
    noise could be refused by the model itself, which fails the load; the others are zero.
    """
    if model.build and len(model.build.profiles) > 1:
        samples, files = _in_profiles(model, model.build.profiles)
    else:
        inputs, files = _inputs(model, {}, "input")
        samples = [{"name": f"batch {size}", "batch_size": size, "inputs": inputs} for size in _sizes(model)]
    return replace(model, config={"model_warmup": samples, **model.config}, extra_files=(*model.extra_files, *files))


def _in_profiles(model: ServedModel, profiles: Sequence[Profile]) -> tuple[list[dict[str, Any]], list[ExtraFile]]:
    """Return samples of every size that a profile takes, for those that all instances have.

    Triton runs each sample on each instance, and one that fits none of an instance's profiles fails the load.
    """
    samples: list[dict[str, Any]] = []
    files: list[ExtraFile] = []
    for number in sorted(_common(model.instances, len(profiles))):
        shapes = profiles[number].shapes
        inputs, more = _inputs(model, {name: span[1] for name, span in shapes.items()}, f"profile_{number}")
        files += more
        if not model.max_batch_size:
            samples.append({"name": f"profile {number}", "batch_size": 1, "inputs": inputs})
            continue
        low, best, high = (
            pick(span[index][0] for span in shapes.values()) for index, pick in enumerate((max, min, min))
        )
        sizes = sorted({best, *(size for size in _sizes(model) if low <= size <= high)})
        samples += [{"name": f"profile {number} batch {n}", "batch_size": n, "inputs": inputs} for n in sizes]
    return samples, files


def _common(groups: Sequence[Instances], count: int) -> set[int]:
    """Return the numbers of the profiles that every instance group runs."""
    common = set(range(count))
    for group in groups:
        if named := group.more.get("profile"):
            common &= {int(number) for number in named}
    return common


def _sizes(model: ServedModel) -> list[int]:
    preferred = model.dynamic_batching.preferred_batch_size if model.dynamic_batching else ()
    return sorted({1, *preferred, max(model.max_batch_size, 1)})


def _inputs(
    model: ServedModel, shapes: Mapping[str, tuple[int, ...]], prefix: str
) -> tuple[dict[str, Any], list[ExtraFile]]:
    """Return the inputs of a sample, by name, and their files; `shapes` are those that are not the model's own best."""
    inputs: dict[str, Any] = {}
    files = []
    for index, tensor in enumerate(model.inputs):
        fields, file = _input(model, tensor, f"{prefix}_{index}", shapes.get(tensor.name))
        inputs[tensor.name] = fields
        files += [file] if file else []
    return inputs, files


def _input(
    model: ServedModel, tensor: ServedTensor, name: str, given: tuple[int, ...] | None
) -> tuple[dict[str, Any], ExtraFile | None]:
    import numpy as np

    from repogen.samples import shape_of, values

    shape = given or shape_of(tensor, 1, max_batch_size=model.max_batch_size, shapes=model.shapes)
    dims = list(shape[1:] if model.max_batch_size else shape)
    fields: dict[str, Any] = {"data_type": tensor.dtype, "dims": dims}
    hint = model.hints.get(tensor.name, InputHint())
    if hint == InputHint() and tensor.dtype != "TYPE_STRING":
        return {**fields, "zero_data": True}, None
    array = values(tensor.dtype, tuple(dims), hint, rng=np.random.default_rng(0))
    return {**fields, "input_data_file": name}, ExtraFile(f"{_FOLDER}/{name}", _wire(array))


def _wire(array: Any) -> bytes:
    """Return the bytes that a request would carry: each string after its length."""
    if array.dtype != object:
        return bytes(array.tobytes())
    strings = (item if isinstance(item, bytes) else str(item).encode() for item in array.ravel())
    return b"".join(len(item).to_bytes(4, "little") + item for item in strings)
