"""Input values for a model: seeded, of the right type and shape, within what is known of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from repogen.dtypes import BY_TRITON
from repogen.model import InputHint, ServedTensor, ShapeRange

_NO_HINT = InputHint()
DEFAULT_SIZE = 8
"""Size of a free axis of which nothing is known."""


def values(
    dtype: str, shape: tuple[int, ...], hint: InputHint = _NO_HINT, *, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return one array of Triton type `dtype`: floats in [-1, 1), integers 0 or 1, unless `hint` says more."""
    if hint.values:
        return np.asarray(rng.choice(np.asarray(hint.values, dtype=object), size=shape)).astype(_numpy(dtype))
    if dtype == "TYPE_STRING":
        return rng.choice(np.array([b"alpha", b"beta", b"gamma"], dtype=object), size=shape)
    if dtype == "TYPE_BOOL":
        return rng.integers(0, 2, size=shape).astype(np.bool_)
    kind = _numpy(dtype)
    if kind.kind == "f":
        low, high = hint.range or (-1.0, 1.0)
        return rng.uniform(low, high, size=shape).astype(kind)
    low, high = hint.range or (0, 2)
    return rng.integers(int(low), int(high), size=shape).astype(kind)


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
    return {
        tensor.name: values(
            tensor.dtype,
            shape_of(tensor, batch, max_batch_size=max_batch_size, shapes=shapes),
            hints.get(tensor.name, _NO_HINT),
            rng=rng,
        )
        for tensor in inputs
    }


def _numpy(dtype: str) -> np.dtype[Any]:
    name = BY_TRITON[dtype].numpy
    if name is None:
        import ml_dtypes  # comes with tritonclient

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
