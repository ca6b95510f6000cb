"""Read the user's own samples: an .npz with an array for each input, samples along axis 0."""

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repogen.dtypes import BY_TRITON
from repogen.errors import ManifestError
from repogen.model import InputHint, ServedModel, ServedTensor, Tensor

_LARGEST = 2 * 2**30


def sample_hints(file: Path, inputs: Sequence[Tensor], where: str) -> dict[str, InputHint]:
    """Return a hint for each input that the file has samples of, once all of it was found right.

    Raises ManifestError naming the file and the array that is wrong. Nothing is unpickled.
    """
    arrays = _arrays(file, where)
    by_name = {tensor.name: tensor for tensor in inputs}
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in arrays.items():
        if name not in by_name:
            hint = f"the model's inputs are {', '.join(by_name) or 'none'}"
            raise ManifestError(f"{file} has an array {name!r}, which is no input", where=where, hint=hint)
        if problem := _problem(array, by_name[name], sizes):
            raise ManifestError(f"{file}: the samples of {name!r} {problem}", where=where)
    return {name: InputHint(file=file) for name in arrays}


def served_sample_hints(file: Path, model: ServedModel, where: str) -> dict[str, InputHint]:
    """Return the same for a model without a graph: a sample has the dims that its config says."""
    inputs = tuple(_with_axis(tensor) for tensor in model.inputs)
    single = not model.max_batch_size
    return {name: replace(hint, single=single) for name, hint in sample_hints(file, inputs, where).items()}


def _with_axis(tensor: ServedTensor) -> Tensor:
    labels = tensor.labels or ("",) * len(tensor.dims)
    sizes = (label or f"{tensor.name}.{axis}" for axis, label in enumerate(labels))
    dims = tuple(size if dim < 0 else dim for dim, size in zip(tensor.dims, sizes, strict=True))
    return Tensor(tensor.name, tensor.dtype, ("samples", *dims))


def _arrays(file: Path, where: str) -> dict[str, Any]:
    import numpy as np

    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
                raise ManifestError(f"{file} unpacks to more than 2 GiB", where=where, hint="a few samples do")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise ManifestError(
            f"there is no file {file}", where=where, hint="np.savez(file, **inputs) makes one"
        ) from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        hint = "make it with np.savez(file, **inputs): plain arrays, strings as np.array([...], dtype=str)"
        raise ManifestError(f"{file} is not an .npz of plain arrays: {error}", where=where, hint=hint) from None


def _problem(array: Any, tensor: Tensor, sizes: dict[str, tuple[int, str]]) -> str:
    """Say what keeps an array from being samples of an input; `sizes` gathers those of free axes."""
    wanted = BY_TRITON[tensor.dtype].numpy
    if not _same_type(array, tensor.dtype, wanted):
        return f"are {array.dtype}, not {wanted or 'bfloat16'}"
    if tensor.dims is not None and (problem := _unlike(array.shape, tensor.dims)):
        return problem
    for axis, (size, dim) in enumerate(zip(array.shape, tensor.dims or (), strict=False)):
        other, name = sizes.setdefault(f"batch {dim}" if axis == 0 else str(dim), (size, tensor.name))
        if isinstance(dim, str) and other != size:
            return f"have {size} along {dim!r} where those of {name!r} have {other}"
    return "have NaN in them" if array.dtype.kind == "f" and _has_nan(array) else ""


def _unlike(shape: Sequence[int], dims: Sequence[int | str]) -> str:
    text = f"have the shape {list(shape)}, not [{', '.join(map(str, dims))}]"
    if len(shape) != len(dims):
        return text
    for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
        if isinstance(dim, int) and size != dim:
            return f"{text}: axis {axis} differs"
        if axis == 0 and size == 0 and isinstance(dim, str):
            return "are none: axis 0 is 0"
    return ""


def _same_type(array: Any, dtype: str, wanted: str | None) -> bool:
    if dtype == "TYPE_STRING":
        return bool(array.dtype.kind in "US")
    if wanted is None:
        return bool(array.dtype.kind == "V" and array.dtype.itemsize == 2)  # noqa: PLR2004 - bfloat16's bytes
    return bool(array.dtype == wanted)


def _has_nan(array: Any) -> bool:
    import numpy as np

    return bool(np.isnan(array).any())
