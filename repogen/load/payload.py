"""Pools of ready-made requests: from a model's description, or from what a live server says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError
from repogen.load.distribution import Distribution, parse
from repogen.model import DynamicBatching, Instances, ServedModel, ServedTensor, ShapeRange

if TYPE_CHECKING:
    import numpy as np

    Request = dict[str, np.ndarray[Any, Any]]

_INDEX = "requests"
_LARGEST = 256 * 2**20
"""Bytes that a pool may take, beyond its first few requests."""
_FEWEST = 4
_SHAPE_HINT = "INPUT:3,224 gives an input's sizes, 'W: lognormal(320, 80)' an axis's"


def pool(
    model: ServedModel,
    *,
    count: int,
    seed: int,
    batch: Distribution | int = 1,
    sizes: Mapping[str, Distribution] | None = None,
) -> list[Request]:
    """Return `count` different requests, the same ones for the same seed; less where they would fill memory.

    `batch` is how many samples a request has. `sizes` gives free axes by their label; the others have their `opt`.
    """
    import numpy as np

    from repogen import samples

    spread = sizes or {}
    _refuse_unknown(model, spread)
    rng = np.random.default_rng(seed)
    batches = _batches(model, batch, count, rng)
    drawn = {label: _sizes(model, label, one, count, rng) for label, one in spread.items()}
    requests: list[Request] = []
    weight = 0
    for index in range(count):
        fixed = {label: ShapeRange(row[index], row[index], row[index]) for label, row in drawn.items()}
        made = samples.request(
            model.inputs,
            batches[index],
            max_batch_size=model.max_batch_size,
            shapes={**model.shapes, **fixed},
            hints=model.hints,
            seed=seed + index,
        )
        weight += sum(array.nbytes for array in made.values())
        if weight > _LARGEST and len(requests) >= _FEWEST:
            break
        requests.append(made)
    return requests


def batch_of(model: ServedModel, request: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """Return how many samples a request carries."""
    return next(iter(request.values())).shape[0] if model.max_batch_size and request else 1


def parse_sizes(texts: Iterable[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, Distribution]]:
    """Return what `--shape` texts say: sizes by input (`x:3,224`), distributions by axis (`W: uniform(32, 320)`)."""
    shapes: dict[str, tuple[int, ...]] = {}
    spread: dict[str, Distribution] = {}
    for text in (part for one in texts for part in one.split(";") if part.strip()):
        name, found, rest = (part.strip() for part in text.rpartition(":"))  # a tensor may be called input:0
        parts = [part.strip() for part in rest.split(",")] if rest else []
        if not found or not name:
            raise RepogenError(f"{text!r} is no shape", where="--shape", hint=_SHAPE_HINT)
        if all(part.isdecimal() for part in parts):
            shapes[name] = tuple(int(part) for part in parts)
        elif rest[:1].isalpha() and "(" in rest:
            spread[name] = parse(rest, f"--shape {name}")
        else:
            raise RepogenError(f"{text!r} is no shape", where="--shape", hint=_SHAPE_HINT)
    return shapes, spread


def split_sizes(model: ServedModel, texts: Iterable[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, Distribution]]:
    """Do as `parse_sizes`, a plain `W: 320` being the axis W where no input is called so."""
    shapes, spread = parse_sizes(texts)
    names = {tensor.name for tensor in model.inputs}
    for name in [name for name, sizes in shapes.items() if name not in names and len(sizes) == 1]:
        (size,) = shapes.pop(name)
        spread[name] = parse(str(size), f"--shape {name}")
    return shapes, spread


def with_shapes(model: ServedModel, shapes: Mapping[str, tuple[int, ...]]) -> ServedModel:
    """Return the model with the dims of some inputs fixed, batch axis left out."""
    unknown = set(shapes) - {tensor.name for tensor in model.inputs}
    if unknown:
        names = ", ".join(tensor.name for tensor in model.inputs)
        raise RepogenError(f"{model.name} has no input {min(unknown)!r}", hint=f"its inputs are {names}")
    inputs = tuple(_fixed(model.name, tensor, shapes.get(tensor.name)) for tensor in model.inputs)
    return replace(model, inputs=inputs)


def from_config(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> ServedModel:
    """Return what a live server's `ModelConfig` says of a model, as far as requests for it need it.

    `shapes` gives the sizes of inputs that have free axes, batch axis left out. A free axis is called as in a
    manifest: `input.1` is axis 1 of the request.
    """
    batching = DynamicBatching(config.dynamic_batching.max_queue_delay_microseconds)
    model = ServedModel(
        name=config.name,
        backend=config.backend,
        source="",
        max_batch_size=config.max_batch_size,
        inputs=tuple(_tensor(tensor, 1 if config.max_batch_size else 0) for tensor in config.input),
        outputs=tuple(_tensor(tensor, 0) for tensor in config.output),
        instances=tuple(Instances("cpu", group.count) for group in config.instance_group),
        dynamic_batching=batching if config.HasField("dynamic_batching") else None,
        files=(),
    )
    return with_shapes(model, shapes)


def save(path: Path, requests: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
    """Write requests as .npz, every tensor as the bytes it has on the wire, so that no pickle is needed."""
    import numpy as np

    from repogen.triton import to_wire

    index: list[list[dict[str, Any]]] = []
    raws: dict[str, Any] = {}
    for number, request in enumerate(requests):
        index.append([])
        for place, (name, array) in enumerate(request.items()):
            datatype, raw = to_wire(array)
            index[-1].append({"name": name, "datatype": datatype, "shape": list(array.shape)})
            raws[f"{number}.{place}"] = np.frombuffer(raw, dtype=np.uint8)
    np.savez(path, **{_INDEX: np.array(json.dumps(index))}, **raws)


def load(path: Path) -> list[Request]:
    """Return the requests of a file that `save` wrote."""
    import zipfile

    import numpy as np

    from repogen.triton import from_wire

    try:
        with np.load(path, allow_pickle=False) as file:
            return [
                {
                    row["name"]: from_wire(row["datatype"], row["shape"], file[f"{number}.{place}"].tobytes())
                    for place, row in enumerate(rows)
                }
                for number, rows in enumerate(json.loads(str(file[_INDEX])))
            ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise RepogenError(f"not a file of requests: {error}", where=str(path)) from None


def _tensor(tensor: Any, first: int) -> ServedTensor:
    from tritonclient.grpc import model_config_pb2

    dims = tuple(tensor.dims)
    dtype = model_config_pb2.DataType.Name(tensor.data_type)
    inner = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    labels = tuple(f"{tensor.name}.{axis}" if dim < 0 else "" for axis, dim in enumerate(dims, start=first))
    return ServedTensor(tensor.name, dtype, dims, scalar=inner == (), labels=labels, reshape=inner)


def _fixed(model: str, tensor: ServedTensor, shape: tuple[int, ...] | None) -> ServedTensor:
    if shape is None:
        return tensor
    dims = tensor.dims
    if len(shape) != len(dims) or not all(d in (-1, s) and s >= 0 for d, s in zip(dims, shape, strict=True)):
        raise RepogenError(
            f"input {tensor.name} of {model} has dims {list(dims)}, so {list(shape)} does not fit",
            hint="one size for each dim, batch axis left out",
        )
    return replace(tensor, dims=shape, labels=("",) * len(shape))


def _refuse_unknown(model: ServedModel, spread: Mapping[str, Distribution]) -> None:
    labels = {label for tensor in model.inputs for label in tensor.labels if label}
    if unknown := sorted(set(spread) - labels):
        known = ", ".join(sorted(labels)) or "none"
        raise RepogenError(f"{model.name} has no free axis {unknown[0]!r}", hint=f"its free axes: {known}")


def _batches(model: ServedModel, batch: Distribution | int, count: int, rng: np.random.Generator) -> list[int]:
    limit = max(model.max_batch_size, 1)
    drawn = batch.draw(count, rng) if isinstance(batch, Distribution) else [batch] * count
    for size in (min(drawn), max(drawn)):
        if not 1 <= size <= limit:
            reason = f"max_batch_size is {model.max_batch_size}"
            raise RepogenError(f"{model.name} takes no requests of batch {size}: {reason}", hint=f"1 to {limit}")
    return drawn


def _sizes(model: ServedModel, label: str, spread: Distribution, count: int, rng: np.random.Generator) -> list[int]:
    span = model.shapes.get(label)
    return spread.draw(count, rng, low=span.min if span else 1, high=span.max if span else None)
