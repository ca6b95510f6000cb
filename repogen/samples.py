"""Input values for a model: seeded, of the right type and shape, within what is known of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from repogen.dtypes import BY_TRITON
from repogen.model import InputHint, ServedTensor, ShapeRange

NO_HINT = InputHint()
DEFAULT_SIZE = 8
"""Size of a free axis of which nothing is known."""


def values(
    dtype: str, shape: tuple[int, ...], hint: InputHint = NO_HINT, *, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return one array of Triton type `dtype`: floats in [-1, 1), integers 0 or 1, unless `hint` says more."""
    if hint.values or dtype == "TYPE_STRING":
        return _picked(dtype, shape, hint.values or ("alpha", "beta", "gamma"), rng)
    kind = _numpy(dtype)
    if kind.kind in "fV":
        low, high = hint.range or (-1.0, 1.0)
        return rng.uniform(low, high, size=shape).astype(kind)
    low, high = (math.ceil(edge) for edge in hint.range or (0, 2))
    return rng.integers(low, max(high, low + 1), size=shape).astype(kind)


def _picked(
    dtype: str, shape: tuple[int, ...], known: Sequence[float | str], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return an array of the values that are known; strings are bytes, as on the wire."""
    if dtype == "TYPE_STRING":
        return rng.choice(np.array([str(word).encode() for word in known], dtype=object), size=shape)
    return np.asarray(rng.choice(np.asarray(known, dtype=object), size=shape)).astype(_numpy(dtype))


def shape_of(
    tensor: ServedTensor, batch: int, *, max_batch_size: int, shapes: Mapping[str, ShapeRange]
) -> tuple[int, ...]:
    """Return the request shape of `tensor`, its free axes at their `opt` size."""
    free = {label: span.opt for label, span in shapes.items()}
    labels = tensor.labels or ("",) * len(tensor.dims)
    inner = tuple(
        free.get(label, DEFAULT_SIZE) if dim < 0 else dim for dim, label in zip(tensor.dims, labels, strict=True)
    )
    return (batch, *inner) if max_batch_size else inner


def request(
    inputs: Iterable[ServedTensor],
    batch: int,
    *,
    max_batch_size: int,
    shapes: Mapping[str, ShapeRange],
    hints: Mapping[str, InputHint],
    seed: int,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one request of `batch` samples, the same for the same seed."""
    rng = np.random.default_rng(seed)
    made = {}
    for tensor in inputs:
        hint = hints.get(tensor.name, NO_HINT)
        if hint.file is not None:
            rows = rows_of(hint.file, tensor.name)
            if hint.single:
                made[tensor.name] = np.asarray(rows[seed % len(rows)])
            else:
                made[tensor.name] = _taken(tensor, rows, batch, seed, batched=max_batch_size > 0)
            continue
        shape = shape_of(tensor, batch, max_batch_size=max_batch_size, shapes=shapes)
        made[tensor.name] = values(tensor.dtype, shape, hint, rng=rng)
    return made


def rows_of(file: Path, name: str) -> np.ndarray[Any, Any]:
    """Return one input's samples from an .npz that `repogen.sample_file` has found right, strings as bytes."""
    return _rows(file, name, file.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _rows(file: Path, name: str, _changed: int) -> np.ndarray[Any, Any]:
    with np.load(file, allow_pickle=False) as arrays:
        array: np.ndarray[Any, Any] = arrays[name]
    if array.dtype.kind == "U":
        return np.array([item.encode() for item in array.ravel()], dtype=object).reshape(array.shape)
    if array.dtype.kind == "V":  # how NumPy writes what it has no type for
        return array.view(_numpy("TYPE_BF16"))
    return array.astype(object) if array.dtype.kind == "S" else array


def _taken(
    tensor: ServedTensor, rows: np.ndarray[Any, Any], batch: int, seed: int, *, batched: bool
) -> np.ndarray[Any, Any]:
    """Return `batch` samples, one after the other from place `seed` on, as a request carries them."""
    if not batched:
        return rows.reshape(1) if rows.ndim == 0 else rows
    chosen: np.ndarray[Any, Any] = np.take(rows, np.arange(seed, seed + batch) % len(rows), axis=0)
    return chosen.reshape(batch, 1) if tensor.reshape == () else chosen


def _numpy(dtype: str) -> np.dtype[Any]:
    name = BY_TRITON[dtype].numpy
    if name is None:
        import ml_dtypes  # comes with tritonclient

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
