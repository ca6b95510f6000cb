"""One model in each precision, side by side: size, latency and memory on this CPU, and how far from fp32 it answers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from repogen.accuracy import Verdict, asked, judge, question_of
from repogen.child import MEMORY
from repogen.errors import RepogenError
from repogen.model import Gate
from repogen.precision.lowering import LOWERED, Calibration, Source, lower

_TIMES_SOURCE = 10


@dataclass(frozen=True)
class Compared:
    """One precision of a model; `missing` says why there is none."""

    precision: str
    size: int = 0
    milliseconds: tuple[float, ...] = ()  # of single runs at batch 1
    memory: int = 0  # bytes, of the process that ran it
    verdict: Verdict | None = None
    note: str = ""
    missing: str = ""

    @property
    def latency(self) -> float:
        return statistics.median(self.milliseconds) if self.milliseconds else 0.0


def side_by_side(
    source: Source,
    gate: Gate,
    *,
    calibration: Calibration | None,
    keep: Sequence[str] = (),
    memory: int = MEMORY,
) -> tuple[Compared, ...]:
    """Return fp32 and every other precision of `source`, judged by `gate`; what cannot be made says why."""
    fp32 = replace(gate, candidate=source.path, precision="fp32")
    found = [_timed(Compared("fp32", source.size), fp32, memory)]
    for precision in LOWERED:
        data = calibration if precision == "int8" else None
        found.append(_compared(source, replace(gate, precision=precision), data, keep, memory))
    return tuple(found)


def _compared(
    source: Source, gate: Gate, calibration: Calibration | None, keep: Sequence[str], memory: int
) -> Compared:
    precision = gate.precision
    try:
        made = lower(source, precision, calibration=calibration, keep=keep, where=gate.where, memory=memory)
        gate = replace(gate, candidate=made.files[0].source)
        size = sum(file.size for file in made.files)
        row = Compared(precision, size, verdict=judge(gate, memory=memory), note=made.what())
        # What a CPU only emulates says nothing of its speed.
        return row if precision == "bf16" else _timed(row, gate, memory)
    except RepogenError as error:
        return Compared(precision, missing=str(error))


def _timed(row: Compared, gate: Gate, memory: int) -> Compared:
    size = gate.candidate.stat().st_size
    question: dict[str, Any] = {**question_of(gate), "task": "time"}
    answer = asked(question, gate.where, memory + _TIMES_SOURCE * size)
    return replace(row, milliseconds=tuple(answer["milliseconds"]), memory=answer["peak"])
