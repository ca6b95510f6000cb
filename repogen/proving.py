"""The child that proves batchability: it runs the model on ONNX Runtime and compares.

Started by `repogen.proof` through `repogen.child`.
"""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from repogen.blame import blame, first_line, run_error
from repogen.comparing import OTHER_ORDER, SAME_ARITHMETIC, STRICT, difference
from repogen.dtypes import BY_ONNX
from repogen.labels import axis_label
from repogen.model import InputHint, ShapeRange, Tensor
from repogen.onnx_graph import hint_of
from repogen.samples import NO_HINT, rows_of, values
from repogen.shaking import SHAKE, shaken_weights

Arrays = dict[str, np.ndarray[Any, Any]]

_SIZES = (64, 224, 16, 8, 1, 512, 32, 128, 3, 2)
"""Sizes to try for free axes of which nothing is known: what common architectures accept, likeliest first."""
_TRIES = 60
_PATIENCE = 40.0  # seconds of trying sizes and values
_ODD = 3
_MAXIMUM_COSTS = 2.0  # seconds that a run at the largest batch may take
_ORT_NAMES = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16"}
_NOISE = 300  # how much larger than the noise of the last digits a difference may be: long sums add up more of it
_FILLS = ("derived", "zeros", "ones")


class Unfit(Exception):
    """The model cannot be batched, and why."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `repogen.model.Proof` holds, as JSON."""
    import onnxruntime  # noqa: F401 - where it cannot be loaded, that is not the model's fault

    try:
        model = _Model(question)
    except Exception as error:
        if "bad_alloc" in str(error):
            raise MemoryError from None
        return {
            "batchable": None,
            "reason": f"ONNX Runtime does not open it: {first_line(error)}",
            "refused": first_line(error),
        }
    found: dict[str, Any] = {
        "inputs": [vars(row) for row in model.inputs],
        "outputs": [vars(row) for row in model.outputs],
    }
    unfit = unfit_by_declaration(model.inputs, model.outputs)
    try:
        model.find_sizes()
    except Exception as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise MemoryError from None
        why = run_error(model.path, error)
        reason = unfit or f"it could not be run on made-up inputs: {why}"
        notes = [f"it could not be run on made-up inputs: {why}"] if unfit else []
        return found | {"batchable": False if unfit else None, "reason": reason, "notes": notes}
    found |= {"sizes": model.all_sizes(), "hints": model.used_hints(), "notes": model.notes()}
    if unfit:
        return found | {"batchable": False, "reason": unfit + model.why_fixed(), "batches": [1]}
    try:
        batches = model.prove()
    except Unfit as finding:
        return found | {"batchable": False, "reason": str(finding), "batches": [1]}
    if model.random:
        reason = f"its rows follow the batch, but {', '.join(model.random)} makes every answer another"
        return found | {"batchable": None, "reason": reason, "batches": batches}
    return found | {"batchable": True, "reason": f"proved at batch {_listed(batches)}", "batches": batches}


class _Model:
    """One ONNX Runtime session and what is known of its inputs."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        self.path: str = question["path"]
        self.session = self.open()
        self.inputs = _tensors(self.session.get_inputs(), question["inputs"])
        self.outputs = _tensors(self.session.get_outputs(), question["outputs"])
        self.hints = {name: hint_of(row) for name, row in question["hints"].items()}
        self.shapes = {label: ShapeRange(**row) for label, row in question["shapes"].items()}
        self.random: list[str] = question["random"]
        self.sums: bool = question["sums"]
        self.max_batch: int = question["max_batch"]
        files = {tensor.name: self.hints.get(tensor.name, NO_HINT).file for tensor in self.inputs}
        self.rows = {name: rows_of(file, name) for name, file in files.items() if file is not None}
        self.sizes = self._sample_sizes()
        self.fill = _FILLS[0]
        self.seconds = 0.0

    def open(self, *, optimized: bool = True, model: bytes | None = None) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it has to say comes back as exceptions
        options.intra_op_num_threads = 2
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other models need the cores
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(model or self.path, options, providers=["CPUExecutionProvider"])

    def _sample_sizes(self) -> dict[str, int]:
        """Return the sizes of free axes that the user's own samples have."""
        return {
            dim: size
            for tensor in self.inputs if tensor.name in self.rows
            for dim, size in zip(tensor.dims or (), self.rows[tensor.name].shape, strict=False)
            if isinstance(dim, str) and dim not in self._batch_labels()
        }  # fmt: skip

    def find_sizes(self) -> None:
        """Find sizes of the free inner axes, and values, with which one sample runs; raises what the first try did."""
        known = dict(self.sizes)
        unknown = [label for label in self._free_axes() if label not in self.shapes and label not in known]
        spans = {label: min(max(_SIZES[0], span.min), span.max) for label, span in self.shapes.items()}
        first: Exception | None = None
        begun = time.monotonic()
        for tried, fill in itertools.product(_candidates(unknown), _FILLS if self._has_integers() else _FILLS[:1]):
            self.sizes, self.fill = spans | tried | known, fill
            try:
                started = time.monotonic()
                self.run(self.sample(1, seed=0))
            except Exception as error:
                first = first or error
                if time.monotonic() - begun > _PATIENCE:
                    break
            else:
                self.seconds = time.monotonic() - started
                return
        assert first is not None
        raise first

    def _has_integers(self) -> bool:
        return any("INT" in tensor.dtype for tensor in self.inputs)

    def _free_axes(self) -> list[str]:
        batch = self._batch_labels()
        labels = [dim for tensor in self.inputs for dim in tensor.dims or () if isinstance(dim, str)]
        return [label for label in dict.fromkeys(labels) if label not in batch]

    def _batch_labels(self) -> set[str]:
        return {tensor.dims[0] for tensor in self.inputs if tensor.dims and isinstance(tensor.dims[0], str)}

    def all_sizes(self) -> dict[str, int]:
        return {label: self.sizes[label] for label in self._free_axes()} | dict.fromkeys(
            sorted(self._batch_labels()), 1
        )

    def used_hints(self) -> dict[str, dict[str, Any]]:
        used = {name: self._hint(name) for name in (tensor.name for tensor in self.inputs)}
        return {name: {**asdict(hint), "file": str(hint.file) if hint.file else None} for name, hint in used.items()
                if hint != NO_HINT}  # fmt: skip

    def notes(self) -> list[str]:
        """Return what people should know of the values that it ran with."""
        found = []
        for tensor in self.inputs:
            hint = self._hint(tensor.name)
            if hint.why:
                what = hint.values or (f"{hint.range[0]:.0f} to {hint.range[1] - 1:.0f}" if hint.range else "")
                found.append(f"values of {tensor.name!r}: {what} ({hint.why})")
            elif hint == NO_HINT and "INT" in tensor.dtype:
                found.append(
                    f"values of {tensor.name!r}: 0 and 1, nothing is known of them: "
                    f"say `inputs: {{{tensor.name}: {{range: [low, high]}}}}` or `samples: file.npz`"
                )
        return found

    def _hint(self, name: str) -> InputHint:
        hint = self.hints.get(name, NO_HINT)
        dtype = next(tensor.dtype for tensor in self.inputs if tensor.name == name)
        if self.fill == _FILLS[0] or "INT" not in dtype or (hint != NO_HINT and not hint.why):
            return hint
        return InputHint(values=(_FILLS.index(self.fill) - 1,), why="nothing else ran")

    def sample(self, batch: int, seed: int) -> Arrays:
        sizes = self.sizes | dict.fromkeys(self._batch_labels(), batch)
        rng = np.random.default_rng(seed)
        made: Arrays = {}
        for tensor in self.inputs:
            free = bool(tensor.dims) and isinstance((tensor.dims or (0,))[0], str)
            if tensor.name in self.rows:
                rows = self.rows[tensor.name]
                made[tensor.name] = np.take(rows, np.arange(seed, seed + batch) % len(rows), axis=0) if free else rows
                continue
            # Of an input without a rank nothing but a try can tell.
            shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in (tensor.dims or ()))
            made[tensor.name] = values(tensor.dtype, shape, self._hint(tensor.name), rng=rng)
        return made

    def run(self, inputs: Arrays, session: Any = None) -> Arrays:
        feed = {name: _text(array) for name, array in inputs.items()}
        names = [tensor.name for tensor in self.outputs]
        return dict(zip(names, (session or self.session).run(names, feed), strict=True))

    def prove(self) -> list[int]:
        """Compare merged runs with each other and with single ones; raises Unfit with the reason.

        Merged runs of the same size use the same arithmetic, so what a sample answers may not change with its
        neighbours or its place at all. Against single runs, sums in another order leave small differences, which
        ill-conditioned layers enlarge.
        """
        samples = [self.sample(1, seed=seed) for seed in range(_ODD)]
        try:
            singles = [self.run(sample) for sample in samples]
        except Exception as error:
            raise Unfit(f"it fails on some made-up inputs: {run_error(self.path, error)}") from None
        if not self.random:
            for name, array in self.run(samples[0]).items():
                if off := difference(singles[0][name], array, SAME_ARITHMETIC):
                    raise Unfit(f"two runs on the same input differ: output {name!r} {off}")
        for orders in (((0, 1), (0, 2), (1, 0)), ((0, 1, 2), (0, 2, 1), (2, 1, 0))):
            runs = [self._merged(samples, singles, order) for order in orders]
            self._compare_places(orders, runs)
        batches = [1, 2, _ODD]
        if self.max_batch > _ODD and self.seconds * self.max_batch < _MAXIMUM_COSTS:
            self._merged(samples, singles, [index % _ODD for index in range(self.max_batch)])
            batches.append(self.max_batch)
        return batches

    def why_fixed(self) -> str:
        """Say what keeps an output at one size although every input is free along axis 0, "" where that is not so."""
        if not self.inputs or any(not tensor.dims or isinstance(tensor.dims[0], int) for tensor in self.inputs):
            return ""
        try:
            self.run(self.sample(2, seed=0))
        except Exception as error:
            return f"; batch 2 fails: {run_error(self.path, error)}"
        fixed = [tensor.name for tensor in self.outputs if not tensor.dims or isinstance(tensor.dims[0], int)]
        return self._culprit(fixed[0]) if fixed else ""

    def _compare_places(self, orders: Sequence[Sequence[int]], runs: Sequence[Arrays]) -> None:
        """Compare what each sample answered in runs of one size, whatever its neighbours and its place were."""
        if self.random:
            return
        for order, other in zip(orders[1:], runs[1:], strict=True):
            for name, array in runs[0].items():
                for place, index in enumerate(orders[0]):
                    if index in order:
                        at = order.index(index)
                        if off := difference(array[place : place + 1], other[name][at : at + 1], SAME_ARITHMETIC):
                            what = (
                                "depends on its neighbours in the batch"
                                if at == place
                                else "depends on its place in the batch"
                            )
                            raise Unfit(f"a sample's answer {what}: output {name!r} {off}{self._culprit(name)}")

    def _merged(self, samples: Sequence[Arrays], singles: Sequence[Arrays], order: Sequence[int]) -> Arrays:
        batch = len(order)
        try:
            got = self.run(_joined([samples[index] for index in order]))
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError from None
            raise Unfit(f"batch {batch} fails although batch 1 runs: {run_error(self.path, error)}") from None
        for name, array in got.items():
            rows = [singles[index][name] for index in order]
            if any(row.shape[:1] != (1,) for row in rows) or array.shape[:1] != (batch,):
                shape = list(array.shape)
                message = f"output {name!r} is {shape} at batch {batch}: its axis 0 does not follow the batch"
                raise Unfit(message + self._culprit(name))
            if len({row.shape for row in rows}) > 1:
                raise Unfit(f"the shape of output {name!r} depends on the values of the input")
            self._compare_single(name, np.concatenate(rows), array, batch, samples)
        return got

    def _compare_single(self, name: str, single: Any, merged: Any, batch: int, samples: Sequence[Arrays]) -> None:
        if self.random:
            if single.shape != merged.shape:
                raise Unfit(f"output {name!r} is {list(merged.shape)} at batch {batch}, not {list(single.shape)}")
            return
        off = difference(single, merged, STRICT)
        if off and (not self.sums or difference(single, merged, self._allowed(name, samples))):
            raise Unfit(f"answers change at batch {batch}: output {name!r} {off}{self._culprit(name)}")

    def _allowed(self, name: str, samples: Sequence[Arrays]) -> float:
        """Return the difference, as a share of the largest value, that another order of sums explains.

        How much the model enlarges such noise is seen in runs with inputs and weights that differ in their last
        digits.
        """
        shaken = self.open(model=shaken_weights(self.path))
        noise = 0.0
        for sample in samples:
            answer = self.run(sample)[name]
            for other in (self.run(sample, shaken)[name], self.run(_shaken(sample), shaken)[name]):
                if other.dtype.kind == "f" and answer.shape == other.shape and answer.size:
                    largest = float(np.nanmax(np.abs(answer), initial=0.0)) or 1.0
                    noise = max(noise, float(np.nanmax(np.abs(answer - other), initial=0.0)) / largest)
        return min(OTHER_ORDER, max(SAME_ARITHMETIC, _NOISE * noise))

    def _culprit(self, output: str) -> str:
        try:
            found = blame(self.path, output, self.open, self.sample)
        except Exception:  # a clue, no more: the finding stands without it
            found = ""
        return f"; {found}" if found else ""


def _shaken(sample: Arrays) -> Arrays:
    return {
        name: array * array.dtype.type(1 + SHAKE) if array.dtype.kind == "f" else array
        for name, array in sample.items()
    }


def _candidates(labels: Sequence[str]) -> Iterable[dict[str, int]]:
    """Give sizes for `labels` to try: all alike first, then every mixture of the likeliest, within bounds."""
    alike = [dict.fromkeys(labels, size) for size in (_SIZES if labels else _SIZES[:1])]
    mixed = itertools.product((1, 512, 64, 256, 8), repeat=len(labels)) if len(labels) > 1 else ()
    mixtures = (dict(zip(labels, sizes, strict=True)) for sizes in mixed)
    return itertools.islice(itertools.chain(alike, mixtures), _TRIES)


def unfit_by_declaration(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> str:
    """Say why the shapes alone forbid batching, "" where they do not."""
    inputs = tuple(inputs)
    if not inputs:
        return "it has no inputs"
    for kind, tensors in (("input", inputs), ("output", tuple(outputs))):
        for tensor in tensors:
            if tensor.dims is None:
                return f"the graph gives no rank for {kind} {tensor.name!r}"
            if not tensor.dims:
                away = "" if kind == "input" else ": drop it from the graph's outputs, or give it a batch axis"
                return f"{kind} {tensor.name!r} is a scalar{away}"
            if isinstance(tensor.dims[0], int):
                return f"axis 0 of {kind} {tensor.name!r} is fixed at {tensor.dims[0]}"
    batch = {tensor.dims[0] for tensor in inputs if tensor.dims}
    for tensor in inputs:
        for axis, dim in enumerate((tensor.dims or ())[1:], 1):
            if dim in batch:
                return f"axis {axis} of input {tensor.name!r} is {dim!r} too, so it would grow with the batch"
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


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
