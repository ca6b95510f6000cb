"""The child that proves batchability: reads a question on stdin, runs the model, writes one JSON answer.

Started by `repogen.proof` as `python -m repogen.proving MODEL.onnx`.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from repogen.dtypes import BY_ONNX
from repogen.model import InputHint, ShapeRange, Tensor
from repogen.onnx_graph import axis_label
from repogen.samples import values

Arrays = dict[str, np.ndarray[Any, Any]]

_SIZES = (64, 224, 16, 8, 1, 512, 32, 128, 3, 2)
"""Sizes to try for free axes of which nothing is known: what common architectures accept, likeliest first."""
_TRIES = 60
_ODD = 3
_SAME_ARITHMETIC = 1e-4
_OTHER_ORDER = 1e-2
"""Allowed differences, as shares of the largest value."""
_ORT_NAMES = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16"}


class Unfit(Exception):  # noqa: N818 - a finding, not an error
    """The model cannot be batched, and why."""


def main() -> None:
    question = json.load(sys.stdin)
    try:
        answer = _answer(sys.argv[1], question)
    except Exception as error:
        answer = {"batchable": None, "reason": _first_line(error)}
    json.dump(answer, sys.stdout)


def _answer(path: str, question: Mapping[str, Any]) -> dict[str, Any]:
    model = _Model(path, question)
    answer: dict[str, Any] = {
        "inputs": [vars(tensor) for tensor in model.inputs],
        "outputs": [vars(tensor) for tensor in model.outputs],
    }
    try:
        answer["sizes"] = model.find_sizes()
    except Exception as error:
        unfit = _unfit_by_declaration(model.inputs, model.outputs)
        reason = unfit or f"it could not be run on made-up inputs: {_first_line(error)}"
        return answer | {"batchable": False if unfit else None, "reason": reason}
    try:
        model.prove()
    except Unfit as finding:
        return answer | {"batchable": False, "reason": str(finding), "batches": [1]}
    batches = [1, 2, _ODD]
    return answer | {"batchable": True, "reason": f"proved at batch {_listed(batches)}", "batches": batches}


class _Model:
    """One ONNX Runtime session and what is known of its inputs."""

    def __init__(self, path: str, question: Mapping[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it has to say comes back as exceptions
        options.intra_op_num_threads = 2
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = _tensors(self.session.get_inputs(), question["inputs"])
        self.outputs = _tensors(self.session.get_outputs(), question["outputs"])
        self.hints = {
            name: InputHint(tuple(row["values"]), tuple(row["range"]) if row["range"] else None)
            for name, row in question["hints"].items()
        }
        self.shapes = {label: ShapeRange(**row) for label, row in question["shapes"].items()}
        self.sizes: dict[str, int] = {}

    def find_sizes(self) -> dict[str, int]:
        """Find sizes of the free inner axes at which one sample runs; raises what the last try raised."""
        free = self._free_axes()
        unknown = [label for label in free if label not in self.shapes]
        last: Exception | None = None
        for tried in _candidates(unknown):
            self.sizes = tried | {label: min(max(_SIZES[0], span.min), span.max) for label, span in self.shapes.items()}
            try:
                self.run(self.sample(1, seed=0))
            except Exception as error:
                last = last or error
            else:
                return {label: self.sizes[label] for label in free}
        assert last is not None
        raise last

    def _free_axes(self) -> list[str]:
        batch = self._batch_labels()
        labels = [dim for tensor in self.inputs for dim in tensor.dims or () if isinstance(dim, str)]
        return [label for label in dict.fromkeys(labels) if label not in batch]

    def _batch_labels(self) -> set[str]:
        return {tensor.dims[0] for tensor in self.inputs if tensor.dims and isinstance(tensor.dims[0], str)}

    def sample(self, batch: int, seed: int) -> Arrays:
        sizes = self.sizes | dict.fromkeys(self._batch_labels(), batch)
        rng = np.random.default_rng(seed)
        made: Arrays = {}
        for tensor in self.inputs:
            shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims or ())
            made[tensor.name] = values(tensor.dtype, shape, self.hints.get(tensor.name, InputHint()), rng=rng)
        return made

    def run(self, inputs: Arrays) -> Arrays:
        feed = {name: _text(array) for name, array in inputs.items()}
        names = [tensor.name for tensor in self.outputs]
        return dict(zip(names, self.session.run(names, feed), strict=True))

    def prove(self) -> None:
        """Compare merged runs with each other and with single ones; raises Unfit with the reason.

        Two merged runs of the same size use the same arithmetic, so what a sample answers may not change with
        its neighbours at all. Against single runs, sums in another order leave small differences, which
        ill-conditioned layers enlarge.
        """
        if reason := _unfit_by_declaration(self.inputs, self.outputs):
            raise Unfit(reason)
        samples = [self.sample(1, seed=seed) for seed in range(_ODD)]
        singles = [self.run(sample) for sample in samples]
        for name, array in self.run(samples[0]).items():
            if off := _difference(singles[0][name], array, _SAME_ARITHMETIC):
                raise Unfit(f"two runs on the same input differ: output {name!r} {off}")
        for order, neighbours in (((0, 1), (0, 2)), ((0, 1, 2), (0, 2, 1))):
            merged = self._merged(samples, singles, order)
            other = self._merged(samples, singles, neighbours)
            for name, array in merged.items():
                if off := _difference(array[:1], other[name][:1], _SAME_ARITHMETIC):
                    raise Unfit(f"a sample's answer depends on its neighbours in the batch: output {name!r} {off}")

    def _merged(self, samples: Sequence[Arrays], singles: Sequence[Arrays], order: Sequence[int]) -> Arrays:
        batch = len(order)
        try:
            got = self.run(_joined([samples[index] for index in order]))
        except Exception as error:
            raise Unfit(f"batch {batch} fails although batch 1 runs: {_first_line(error)}") from None
        for name, array in got.items():
            rows = [singles[index][name] for index in order]
            if any(row.shape[:1] != (1,) for row in rows) or array.shape[:1] != (batch,):
                shape = list(array.shape)
                raise Unfit(f"output {name!r} is {shape} at batch {batch}: its axis 0 does not follow the batch")
            if len({row.shape for row in rows}) > 1:
                raise Unfit(f"the shape of output {name!r} depends on the values of the input")
            if off := _difference(np.concatenate(rows), array, _OTHER_ORDER):
                raise Unfit(f"answers change at batch {batch}: output {name!r} {off}")
        return got


def _candidates(labels: Sequence[str]) -> Iterable[dict[str, int]]:
    """Give sizes for `labels` to try: all alike first, then every mixture of the likeliest, within bounds."""
    alike = [dict.fromkeys(labels, size) for size in (_SIZES if labels else _SIZES[:1])]
    mixed = itertools.product((1, 512, 64, 256, 8), repeat=len(labels)) if len(labels) > 1 else ()
    mixtures = (dict(zip(labels, sizes, strict=True)) for sizes in mixed)
    return itertools.islice(itertools.chain(alike, mixtures), _TRIES)


def _unfit_by_declaration(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> str:
    inputs = tuple(inputs)
    if not inputs:
        return "it has no inputs"
    for kind, tensors in (("input", inputs), ("output", tuple(outputs))):
        for tensor in tensors:
            if tensor.dims is None:
                return f"the graph gives no rank for {kind} {tensor.name!r}"
            if not tensor.dims:
                return f"{kind} {tensor.name!r} is a scalar"
            if isinstance(tensor.dims[0], int):
                return f"axis 0 of {kind} {tensor.name!r} is fixed at {tensor.dims[0]}"
    return ""


def _difference(want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], tolerance: float) -> str:
    """Say how far `have` is from `want`, "" when within `tolerance` of the largest value."""
    if want.shape != have.shape:
        return f"is {list(have.shape)}, not {list(want.shape)}"
    if want.dtype.kind not in "fV":
        unlike = int(np.sum(want != have))
        return f"differs in {unlike} of {want.size} elements" if unlike > want.size * tolerance else ""
    half = want.dtype.itemsize < 4  # noqa: PLR2004 - fp16 and bf16 have 10 and 7 bits
    want, have = want.astype(np.float64), have.astype(np.float64)
    finite = np.isfinite(want)
    largest = float(np.max(np.abs(want[finite]), initial=0.0))
    off = float(np.max(np.abs(want[finite] - have[finite]), initial=0.0))
    if not np.array_equal(want[~finite], have[~finite], equal_nan=True):
        return "has NaN or infinity in other places"
    if not off <= (10 * tolerance if half else tolerance) * largest + 1e-6:
        return f"is off by {off:.3g} where its largest value is {largest:.3g}"
    return ""


def _tensors(arguments: Iterable[Any], declared: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return the session's tensors: ONNX Runtime's own inference decides shapes, the file tells rank 0 from unknown."""
    without_rank = {row["name"] for row in declared if row["dims"] is None}
    found = []
    for argument in arguments:
        name = argument.name
        onnx_type = argument.type.removeprefix("tensor(").removesuffix(")")
        dtype = BY_ONNX[_ORT_NAMES.get(onnx_type, onnx_type.upper())].triton
        dims: tuple[int | str, ...] | None = tuple(
            dim if isinstance(dim, int) and dim >= 0 else axis_label(name, axis, dim if isinstance(dim, str) else None)
            for axis, dim in enumerate(argument.shape)
        )
        found.append(Tensor(name, dtype, None if not dims and name in without_rank else dims))
    return tuple(found)


def _joined(samples: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return strings as ONNX Runtime takes them: str, not bytes."""
    if array.dtype != np.object_:
        return array
    decoded = [item.decode() if isinstance(item, bytes) else item for item in array.ravel()]
    return np.array(decoded, dtype=object).reshape(array.shape)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


if __name__ == "__main__":
    main()
