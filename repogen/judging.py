"""The child that judges a lowered model: it runs it and the fp32 original on the same samples and compares.

Started by `repogen.accuracy` through `repogen.child`. `compare` takes any candidate: a plan on a GPU is one too.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from repogen.assets import plan_engine
from repogen.precision.data import Arrays, BadData, Sample, asked_samples

Run = Callable[[Arrays], Arrays]
"""Answers one request: the arrays of all outputs by name."""
_WORST = 3
_TIMED = 15
_WARM = 3
_MADE_UP = 8


class MetricFailed(Exception):
    """The user's own metric could not be asked."""


@dataclass
class Totals:
    """What is added up of one output at one batch size."""

    want: float = 0.0
    have: float = 0.0
    product: float = 0.0
    off: float = 0.0
    max_abs: float = 0.0
    agree: int = 0
    rows: int = 0
    nan: int = 0
    unlike: str = ""
    worst: list[tuple[float, str, int]] = field(default_factory=list)

    def add(self, want: "np.ndarray[Any, Any]", have: "np.ndarray[Any, Any]", sample: Sample) -> None:
        """Take in the answers to some rows of one sample."""
        if want.shape != have.shape:
            self.unlike = f"is {list(have.shape)} where fp32 has {list(want.shape)}"
            self.worst.append((float("inf"), sample.file, sample.index))
            return
        if want.dtype.kind not in "fV":
            self.agree += int(np.sum(want == have))
            self.rows += want.size
            self._rank(float(np.mean(want != have)) if want.size else 0.0, sample)
            return
        want, have = want.astype(np.float64), have.astype(np.float64)
        self._top1(want, have)
        lost = ~np.isfinite(have) & np.isfinite(want)
        self.nan += int(lost.sum())
        want, have = (np.where(np.isfinite(array), array, 0.0) for array in (want, have))
        off = want - have
        self.want += float(np.sum(want * want))
        self.have += float(np.sum(have * have))
        self.product += float(np.sum(want * have))
        self.off += float(np.sum(off * off))
        self.max_abs = max(self.max_abs, float(np.max(np.abs(off), initial=0.0)))
        relative = float(np.linalg.norm(off) / (np.linalg.norm(want) or 1.0))
        self._rank(float("inf") if lost.any() else relative, sample)

    def _top1(self, want: "np.ndarray[Any, Any]", have: "np.ndarray[Any, Any]") -> None:
        if want.ndim and want.shape[-1] > 1 and want.size:
            self.agree += int(np.sum(want.argmax(axis=-1) == have.argmax(axis=-1)))
            self.rows += want.size // want.shape[-1]

    def _rank(self, error: float, sample: Sample) -> None:
        self.worst = sorted([*self.worst, (error, sample.file, sample.index)], key=lambda row: -row[0])[:_WORST]

    def as_json(self) -> dict[str, Any]:
        norm = float(np.sqrt(self.want) * np.sqrt(self.have))
        same = self.want == self.have == 0.0
        return {
            "cosine": 1.0 if same else self.product / norm if norm else 0.0,
            "relative_l2": float(np.sqrt(self.off / self.want)) if self.want else float(np.sqrt(self.off)),
            "max_abs": self.max_abs,
            "top1": self.agree / self.rows if self.rows else None,
            "nan": self.nan,
            "unlike": self.unlike,
            "worst": [list(row) for row in self.worst],
        }


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the comparison and the two scores (`task` is judge), or how long a run takes (time)."""
    try:
        if question["task"] == "time":
            return _timed(question)
        reference = session_run(question["reference"])
        return compare(reference, _candidate(question), question)
    except BadData as problem:
        return {"bad_data": str(problem)}
    except MetricFailed as problem:
        return {"bad_metric": str(problem)}


def compare(reference: Run, candidate: Run, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the candidate answers the question's samples beside the reference, by output and batch size."""
    largest = max(1, question["max_batch_size"])
    sizes = sorted({1, min(2, largest), largest}) if question["batched"] else [0]
    metric = _metric(question)
    totals: dict[tuple[str, int], Totals] = {}
    answers: tuple[list[Arrays], list[Arrays]] = ([], [])
    seen, count = [], 0
    for sample in _chunks(question, largest):
        labels = sample.arrays.keys() - {tensor["name"] for tensor in question["inputs"]}
        inputs = {name: array for name, array in sample.arrays.items() if name not in labels}
        want = reference(inputs)
        have: Arrays = {}
        for size in sizes:
            have = _by_size(candidate, inputs, size, want, sample, totals)
        count += _rows(inputs) if question["batched"] else 1
        if metric is not None:
            answers[0].append(want)
            answers[1].append(have)
            seen.append(sample.arrays)
    rows = [{"output": name, "batch": size, **total.as_json()} for (name, size), total in totals.items()]
    scores = None if metric is None else [_scored(metric, one, seen, question["metric"]) for one in answers]
    return {"rows": rows, "samples": count, "scores": scores}


def _chunks(question: Mapping[str, Any], largest: int) -> Iterable[Sample]:
    """Give the samples, as many at a time as the largest batch has."""
    count = max(_MADE_UP, largest)
    samples = asked_samples(question, rows=largest, count=count, extra=bool(question["metric"]))
    if question["files"] or not question["batched"]:
        yield from samples
        return
    one_by_one = list(samples)
    for start in range(0, len(one_by_one), largest):
        some = one_by_one[start : start + largest]
        arrays = {name: np.concatenate([sample.arrays[name] for sample in some]) for name in some[0].arrays}
        yield Sample(some[0].file, some[0].index, arrays)


def _rows(arrays: Arrays) -> int:
    return max((len(array) for array in arrays.values() if array.ndim), default=1)


def _by_size(
    candidate: Run, inputs: Arrays, size: int, want: Arrays, sample: Sample, totals: dict[tuple[str, int], Totals]
) -> Arrays:
    """Ask the candidate for the sample's rows, `size` at a time (0: as they are), and return all its answers."""
    count = _rows(inputs) if size else 1
    parts: list[Arrays] = []
    for start in range(0, count, size or 1):
        asked = {name: array[start : start + size] for name, array in inputs.items()} if size else inputs
        part = candidate(asked)
        parts.append(part)
        for name, array in part.items():
            mine = want[name][start : start + size] if size else want[name]
            here = Sample(sample.file, sample.index + start, {})
            totals.setdefault((name, size), Totals()).add(mine, array, here)
    return {name: np.concatenate([part[name] for part in parts]) if size else parts[0][name] for name in parts[0]}


def _candidate(question: Mapping[str, Any]) -> Run:
    path = question["candidate"]
    if Path(path).suffix == ".plan":
        return plan_run(path, version_compatible=question["version_compatible"])
    return session_run(path, rounded=question["precision"])


def plan_run(path: str, *, version_compatible: bool = False) -> Run:
    """Return what asks a plan on this machine's first GPU, by the engine that serves it."""
    engine = plan_engine().Engine(path, version_compatible=version_compatible)

    def run(arrays: Arrays) -> Arrays:
        asked = {
            name: arrays[name].astype(engine.dtype(name)) for name in engine.inputs
        }  # INT64 is INT32 in TensorRT 8
        shapes = {name: array.shape for name, array in asked.items()}
        for name, room in engine.room(shapes).items():
            room[...] = asked[name]
        return {name: array.copy() for name, array in engine.run(shapes).items()}

    return run


def session_run(path: str, *, rounded: str = "") -> Run:
    """Return what asks ONNX Runtime on this CPU; with `rounded` fp16 or bf16 as a GPU would compute in it."""
    import onnxruntime

    model: Any = path
    emulate = rounded in ("fp16", "bf16")
    if emulate:
        from repogen.precision.emulation import emulated

        model = emulated(Path(path), rounded)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    if emulate:  # fusions would run over the casts that round
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = {tensor.name: tensor.type for tensor in session.get_inputs()}
    names = [tensor.name for tensor in session.get_outputs()]

    def run(arrays: Arrays) -> Arrays:
        asked = {
            name: array.astype(np.float16) if kinds[name] == "tensor(float16)" else array
            for name, array in arrays.items()
        }
        return dict(zip(names, session.run(names, asked), strict=True))

    return run


def _metric(question: Mapping[str, Any]) -> Any:
    if not question["metric"]:
        return None
    module, _, name = question["metric"].partition(":")
    sys.path.insert(0, question["folder"])
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        raise MetricFailed(f"{question['metric']} cannot be imported: {type(error).__name__}: {error}") from None


def _scored(metric: Any, answers: Sequence[Arrays], samples: Sequence[Arrays], name: str) -> float:
    try:
        score = float(metric(answers, samples))
    except Exception as error:
        raise MetricFailed(f"{name} failed: {type(error).__name__}: {error}") from None
    if not np.isfinite(score):
        raise MetricFailed(f"{name} gave {score}, which is no score")
    return score


def _timed(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the milliseconds of single runs at batch 1, after a few that do not count."""
    run = session_run(question["candidate"])
    sample = next(iter(asked_samples({**question, "files": []}, count=1)))
    taken = []
    for number in range(_WARM + _TIMED):
        begun = time.perf_counter()
        run(sample.arrays)
        if number >= _WARM:
            taken.append((time.perf_counter() - begun) * 1000)
    return {"milliseconds": taken}
