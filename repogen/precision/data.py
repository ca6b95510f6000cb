"""Read the user's own data: .npz files with an array for each input, samples along axis 0, one file at a time.

Runs in the child process: what it reads may be hostile, or larger than memory.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repogen.dtypes import BY_TRITON
from repogen.model import InputHint, Tensor
from repogen.onnx_graph import hint_of
from repogen.samples import DEFAULT_SIZE, NO_HINT, rows_of, values

Arrays = dict[str, "np.ndarray[Any, Any]"]
_LARGEST = 2 * 2**30
_MOST_CHANNELS = 4096


class BadData(Exception):
    """What is wrong with a data file; the message names the file and, where there is one, the sample's index."""


@dataclass(frozen=True)
class Sample:
    """The arrays of one run: `index` is the first of their rows in `file`."""

    file: str
    index: int
    arrays: Arrays


@dataclass
class Channels:
    """The extremes of each channel (axis 1) of each float input, over all samples."""

    low: dict[str, "np.ndarray[Any, Any]"] = field(default_factory=dict)
    high: dict[str, "np.ndarray[Any, Any]"] = field(default_factory=dict)

    def add(self, arrays: Arrays) -> None:
        for name, array in arrays.items():
            if array.dtype.kind != "f" or array.ndim < 2 or array.shape[1] > _MOST_CHANNELS:  # noqa: PLR2004
                continue
            axes = (0, *range(2, array.ndim))
            low, high = array.min(axis=axes), array.max(axis=axes)
            if name in self.low and self.low[name].shape != low.shape:
                continue  # axis 1 is free: there are no channels to compare
            self.low[name] = np.minimum(self.low.get(name, low), low)
            self.high[name] = np.maximum(self.high.get(name, high), high)

    def constant(self) -> list[str]:
        """Return a sentence for each input that has channels which never change."""
        found = []
        for name, low in self.low.items():
            same = np.flatnonzero(low == self.high[name])
            if same.size:
                shown = ", ".join(map(str, same[:5])) + (", ..." if same.size > 5 else "")  # noqa: PLR2004
                found.append(f"channel {shown} of {name!r} is the same in all samples: is the data right?")
        return found


def samples(
    files: Sequence[str], inputs: Sequence[Tensor], *, batched: bool, rows: int = 1, extra: bool = False
) -> Iterator[Sample]:
    """Give the samples of all files, `rows` at a time where the model batches, else a file at a time.

    An input whose axis 0 is literal is fed that many rows at a time. `extra` lets arrays pass that are no inputs,
    such as labels. Raises BadData.
    """
    for file in files:
        arrays = checked(file, inputs, extra=extra)
        step = _step(inputs, batched=batched, rows=rows)
        if step is None:
            yield Sample(file, 0, arrays)
            continue
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise BadData(f"{file}: the inputs have different numbers of samples: {counts}")
        count = next(iter(counts.values()))
        if not batched and count % step:
            raise BadData(f"{file}: {count} samples, but the model takes {step} at a time")
        for start in range(0, count, step):
            yield Sample(file, start, {name: array[start : start + step] for name, array in arrays.items()})


def _step(inputs: Sequence[Tensor], *, batched: bool, rows: int) -> int | None:
    if batched:
        return rows
    first = {tensor.dims[0] if tensor.dims else None for tensor in inputs}
    literal = next(iter(first)) if len(first) == 1 else None
    return literal if isinstance(literal, int) and literal > 0 else None


def checked(file: str, inputs: Sequence[Tensor], *, extra: bool = False) -> Arrays:
    """Return the arrays of one file, found right: names, types, shapes, numbers that are numbers. Raises BadData."""
    arrays = _loaded(file)
    known = {tensor.name: tensor for tensor in inputs}
    for name in arrays:
        if name not in known and not extra:
            raise BadData(f"{file}: {name!r} is no input of the model; they are {', '.join(known)}")
    for name in known:
        if name not in arrays:
            raise BadData(f"{file}: there is no array for the input {name!r}; it has {', '.join(arrays) or 'none'}")
    for name, array in arrays.items():
        if name in known and (problem := _problem(array, known[name])):
            raise BadData(f"{file}: {name!r} {problem}")
    _check_free_axes(file, arrays, inputs)
    return {name: _plain(array, known[name]) if name in known else array for name, array in arrays.items()}


def _check_free_axes(file: str, arrays: Arrays, inputs: Sequence[Tensor]) -> None:
    """Refuse inputs that differ along an axis which has one name in all of them."""
    seen: dict[str, tuple[int, str]] = {}
    for tensor in inputs:
        for size, dim in zip(arrays[tensor.name].shape, tensor.dims or (), strict=False):
            if isinstance(dim, str):
                other, name = seen.setdefault(dim, (size, tensor.name))
                if other != size:
                    raise BadData(f"{file}: {tensor.name!r} has {size} along {dim!r} where {name!r} has {other}")


def _loaded(file: str) -> Arrays:
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
                raise BadData(f"{file} unpacks to more than 2 GiB: split it into several files")
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, zipfile.BadZipFile) as error:
        reason = "it holds Python objects, which are never unpickled" if "pickle" in str(error) else str(error)
        raise BadData(f"{file} is not an .npz of plain arrays: {reason}") from None


def _problem(array: "np.ndarray[Any, Any]", tensor: Tensor) -> str:
    if unlike := _other_type(array, tensor.dtype):
        return f"is {array.dtype}, not {unlike}"
    if tensor.dims is not None and not _has_shape(array.shape, tensor.dims):
        return f"has the shape {list(array.shape)}, not [{', '.join(map(str, tensor.dims))}]"
    return _not_finite(array) if array.size else "is empty"


def _other_type(array: "np.ndarray[Any, Any]", dtype: str) -> str:
    """Return the type that the array should have, "" where it has it."""
    wanted = BY_TRITON[dtype].numpy
    if dtype == "TYPE_STRING":
        return "" if array.dtype.kind in "US" else "text"
    if wanted is None:  # bfloat16, which NumPy writes as raw bytes
        return "" if array.dtype.kind == "V" and array.dtype.itemsize == BY_TRITON[dtype].size else "bfloat16"
    return "" if array.dtype == wanted else wanted


def _has_shape(shape: Sequence[int], dims: Sequence[int | str]) -> bool:
    """Say whether a shape is the model's, the first axis aside: samples are counted along it."""
    inner = zip(shape[1:], dims[1:], strict=False)
    return len(shape) == len(dims) and all(size == dim for size, dim in inner if isinstance(dim, int))


def _not_finite(array: "np.ndarray[Any, Any]") -> str:
    if array.dtype.kind != "f":
        return ""
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return ""
    place = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if array.ndim else ()
    what = "NaN" if np.isnan(array[place]) else "infinity"
    return f"has {what} at sample {place[0] if place else 0}"


def _plain(array: "np.ndarray[Any, Any]", tensor: Tensor) -> "np.ndarray[Any, Any]":
    if array.dtype.kind in "US":
        return _texts(array)
    if BY_TRITON[tensor.dtype].numpy is None:
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array


def made_up(
    inputs: Sequence[Tensor], *, sizes: Mapping[str, int], hints: Mapping[str, InputHint], count: int, batched: bool
) -> Iterator[Sample]:
    """Give `count` samples of made-up values, one at a time, within what is known of the inputs."""
    for index in range(count):
        rng = np.random.default_rng(index)
        arrays = {}
        for tensor in inputs:
            hint = hints.get(tensor.name, NO_HINT)
            if hint.file is not None:
                rows = rows_of(hint.file, tensor.name)
                taken = np.take(rows, [index % len(rows)], axis=0) if batched else rows
                arrays[tensor.name] = _plain(taken, tensor) if taken.dtype.kind != "O" else _texts(taken)
                continue
            shape = tuple(
                1 if axis == 0 and batched else sizes.get(dim, DEFAULT_SIZE) if isinstance(dim, str) else dim
                for axis, dim in enumerate(tensor.dims or ())
            )
            made = values(tensor.dtype, shape, hint, rng=rng)
            arrays[tensor.name] = _texts(made) if made.dtype.kind == "O" else made
        yield Sample("made-up inputs", index, arrays)


def _texts(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return texts as ONNX Runtime takes them."""
    words = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return np.array(words, dtype=object).reshape(array.shape)


def asked_samples(
    question: Mapping[str, Any], *, rows: int = 1, count: int = 8, extra: bool = False
) -> Iterator[Sample]:
    """Give the samples that a question asks for: those of its `files`, or made-up ones where it names none."""
    inputs = tensors(question["inputs"])
    if question["files"]:
        return samples(question["files"], inputs, batched=question["batched"], rows=rows, extra=extra)
    hints = {name: hint_of(row) for name, row in question["hints"].items()}
    return made_up(inputs, sizes=question["sizes"], hints=hints, count=count, batched=question["batched"])


def tensors(rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return tensors from what a question has of them."""
    return tuple(Tensor(row["name"], row["dtype"], None if row["dims"] is None else tuple(row["dims"])) for row in rows)
