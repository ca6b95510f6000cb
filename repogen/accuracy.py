"""The accuracy gate: a model in another precision is published only while it answers like fp32 on the user's data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from repogen.cache import cached
from repogen.child import MEMORY, UNBOUNDED, ChildFailed, ask
from repogen.errors import ManifestError, Refused
from repogen.files import sha256
from repogen.model import Gate

_RULES = "1"
_SECONDS = 1800.0
_TIMES_SOURCE = 10
DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "fp32": {"cosine": 0.99999, "relative_l2": 0.005, "nan": 0},
    "fp16": {"cosine": 0.999, "relative_l2": 0.03, "nan": 0},
    "bf16": {"cosine": 0.99, "relative_l2": 0.15, "nan": 0},
    "int8": {"cosine": 0.97, "relative_l2": 0.25, "nan": 0},
}
"""Limits where the manifest names none. Whole numbers and texts must agree to `_AGREEING`."""
_AGREEING = {"fp32": 1.0, "fp16": 0.99, "bf16": 0.97, "int8": 0.95}


@dataclass(frozen=True)
class Judged:
    """One output at one batch size (0: the model does not batch). `problem` is "" where it passes."""

    output: str
    batch: int
    cosine: float
    relative_l2: float
    max_abs: float
    top1: float | None
    nan: int
    worst: tuple[tuple[float, str, int], ...]  # error, file, index of the sample
    problem: str


@dataclass(frozen=True)
class Verdict:
    """What the gate found. `scores` are those of fp32 and of the candidate by the user's own metric."""

    rows: tuple[Judged, ...]
    samples: int
    scores: tuple[float, float] | None
    problem: str = ""  # of the scores

    @property
    def passed(self) -> bool:
        return not self.problem and not any(row.problem for row in self.rows)


def pass_gate(name: str, gate: Gate, *, memory: int = MEMORY) -> Verdict:
    """Return the verdict on a model. Raises Refused naming output, batch size and the worst samples where it fails."""
    verdict = judge(gate, memory=memory)
    if verdict.passed:
        return verdict
    hint = "keep sensitive nodes in fp32 (repogen verify --bisect names them), or give the gate other limits"
    if not gate.files:
        hint += "; accuracy: {data: val/*.npz} judges by real samples"
    message = f"{name} in {gate.precision} does not answer like fp32: {_what_failed(verdict)}"
    raise Refused(message, where=gate.where, hint=f"{hint}; what is published stays")


def _what_failed(verdict: Verdict) -> str:
    failed = sorted((row for row in verdict.rows if row.problem), key=lambda row: -row.relative_l2)
    said = [f"{row.output!r}{f' at batch {row.batch}' if row.batch else ''} {row.problem}" for row in failed[:3]]
    said += [verdict.problem] if verdict.problem else []
    finest = min(failed, key=lambda row: row.batch, default=None)  # there each error is of one sample
    worst = [f"{file} sample {index}" for _, file, index in finest.worst] if finest else []
    return "; ".join(said) + (f"; worst: {', '.join(worst)}" if worst else "")


def judge(gate: Gate, *, memory: int = MEMORY) -> Verdict:
    """Compare the candidate with fp32, remembered by content. Raises ManifestError for data that are not right."""
    question = question_of(gate)
    said = {name: value for name, value in question.items() if name not in ("reference", "candidate", "folder")}
    contents = [gate.digest, sha256(gate.candidate), [sha256(file) for file in gate.files], _metric_contents(gate)]
    key = json.dumps([_RULES, said, contents], sort_keys=True)
    size = gate.reference.stat().st_size + gate.candidate.stat().st_size
    room = UNBOUNDED if gate.candidate.suffix == ".plan" else memory + _TIMES_SOURCE * size
    answer = cached("verdicts", key, lambda: asked(question, gate.where, room))
    return verdict_of(answer, gate)


def question_of(gate: Gate) -> dict[str, Any]:
    """Return what `repogen.judging` is asked for a gate."""
    return {
        "task": "judge",
        "reference": str(gate.reference),
        "candidate": str(gate.candidate),
        "precision": gate.precision,
        "inputs": [asdict(tensor) for tensor in gate.inputs],
        "batched": gate.max_batch_size > 0,
        "max_batch_size": gate.max_batch_size,
        "files": [str(file) for file in gate.files],
        "sizes": dict(gate.sizes),
        "hints": {
            name: asdict(hint) | {"file": str(hint.file) if hint.file else None}
            for name, hint in sorted(gate.hints.items())
        },
        "metric": gate.metric,
        "folder": str(gate.folder),
        "version_compatible": gate.version_compatible,
    }


def asked(question: Mapping[str, Any], where: str, memory: int) -> dict[str, Any]:
    """Ask the child. Raises ManifestError for what the user gave and Refused where a model could not be run."""
    try:
        answer = ask("judging", question, memory=memory, seconds=_SECONDS)
    except ChildFailed as failure:
        message = f"{question['candidate']} could not be judged: {failure}"
        raise Refused(message, where=where, hint="fewer samples, or more --memory") from None
    for key, hint in (("bad_data", "np.savez(file, **inputs) writes one"), ("bad_metric", "package.module:function")):
        if key in answer:
            raise ManifestError(answer[key], where=where, hint=hint)
    return answer


def _metric_contents(gate: Gate) -> str:
    """Return the digest of the metric's own file, "" where it is not beside the manifest."""
    file = gate.folder / f"{gate.metric.partition(':')[0].replace('.', '/')}.py"
    return sha256(file) if gate.metric and file.is_file() else ""


def verdict_of(answer: Mapping[str, Any], gate: Gate) -> Verdict:
    """Return what an answer of `repogen.judging` means under the gate's limits. Pure."""
    rows = tuple(
        Judged(
            row["output"],
            row["batch"],
            row["cosine"],
            row["relative_l2"],
            row["max_abs"],
            row["top1"],
            row["nan"],
            tuple((error, file, index) for error, file, index in row["worst"]),
            _problem(row, gate),
        )
        for row in answer["rows"]
    )
    scores = answer["scores"]
    return Verdict(rows, answer["samples"], tuple(scores) if scores else None, _score_problem(scores, gate))


def _problem(row: Mapping[str, Any], gate: Gate) -> str:
    limits = {**DEFAULTS[gate.precision], **gate.limits}
    if row["unlike"]:
        return str(row["unlike"])
    if row["nan"] > limits["nan"]:
        return f"has {row['nan']} NaN or infinite values where fp32 has numbers"
    for name in ("relative_l2", "max_abs"):
        if name in limits and row[name] > limits[name]:
            return f"has {name} {row[name]:.4g}, more than {limits[name]:g}"
    whole = row["cosine"] == 1.0 and row["relative_l2"] == 0.0  # the answers are no floats, or the same
    least = {"cosine": limits["cosine"], "top1": limits.get("top1", _AGREEING[gate.precision] if whole else 0.0)}
    for name, wanted in least.items():
        if row[name] is not None and row[name] < wanted:
            return f"has {name} {row[name]:.4g}, less than {wanted:g}"
    return ""


def _score_problem(scores: Sequence[float] | None, gate: Gate) -> str:
    if scores is None:
        return ""
    before, after = scores
    said = f"{gate.metric} is {after:.4g} where fp32 has {before:.4g}"
    if gate.floor is not None and after < gate.floor:
        return f"{said}, less than the floor {gate.floor:g}"
    if gate.drop is not None and before - after > gate.drop:
        return f"{said}, a drop of more than {gate.drop:g}"
    return ""
