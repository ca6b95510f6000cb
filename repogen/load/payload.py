"""Pools of ready-made requests: from a model's description, or from what a live server says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError
from repogen.model import DynamicBatching, Instances, ServedModel, ServedTensor

if TYPE_CHECKING:
    import numpy as np

    Request = dict[str, np.ndarray[Any, Any]]

_INDEX = "requests"


def pool(model: ServedModel, *, batch: int, count: int, seed: int) -> list[Request]:
    """Return `count` different requests of `batch` samples, the same ones for the same seed."""
    from repogen import samples

    limit = max(model.max_batch_size, 1)
    if not 1 <= batch <= limit:
        reason = f"max_batch_size is {model.max_batch_size}"
        raise RepogenError(f"{model.name} takes no requests of batch {batch}: {reason}", hint=f"1 to {limit}")
    return [
        samples.request(
            model.inputs,
            batch,
            max_batch_size=model.max_batch_size,
            shapes=model.shapes,
            hints=model.hints,
            seed=seed + index,
        )
        for index in range(count)
    ]


def from_config(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> ServedModel:
    """Return what a live server's `ModelConfig` says of a model, as far as requests for it need it.

    `shapes` gives the sizes of inputs that have free axes, batch axis left out.
    """
    unknown = set(shapes) - {tensor.name for tensor in config.input}
    if unknown:
        names = ", ".join(tensor.name for tensor in config.input)
        raise RepogenError(f"{config.name} has no input {min(unknown)!r}", hint=f"its inputs are {names}")
    batching = DynamicBatching(config.dynamic_batching.max_queue_delay_microseconds)
    return ServedModel(
        name=config.name,
        backend=config.backend,
        source="",
        max_batch_size=config.max_batch_size,
        inputs=tuple(_tensor(config, tensor, shapes.get(tensor.name)) for tensor in config.input),
        outputs=tuple(_tensor(config, tensor, None) for tensor in config.output),
        instances=tuple(Instances("cpu", group.count) for group in config.instance_group),
        dynamic_batching=batching if config.HasField("dynamic_batching") else None,
        files=(),
    )


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


def _tensor(config: Any, tensor: Any, shape: tuple[int, ...] | None) -> ServedTensor:
    from tritonclient.grpc import model_config_pb2

    dims = tuple(tensor.dims)
    if shape is not None:
        fits = len(shape) == len(dims) and all(d in (-1, s) and s >= 0 for d, s in zip(dims, shape, strict=True))
        if not fits:
            raise RepogenError(
                f"input {tensor.name} of {config.name} has dims {list(dims)}, so {list(shape)} does not fit",
                hint="one size for each dim, batch axis left out",
            )
        dims = shape
    dtype = model_config_pb2.DataType.Name(tensor.data_type)
    inner = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    return ServedTensor(tensor.name, dtype, dims, scalar=inner == (), reshape=inner)
