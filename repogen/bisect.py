"""Find the first nodes at which a lowered model leaves fp32, by running both and comparing the tensors inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repogen.accuracy import DEFAULTS, question_of
from repogen.child import MEMORY, ChildFailed, ask
from repogen.errors import ManifestError, Refused
from repogen.model import Gate

_GROWTH = 2.0
"""A node is a culprit where its error is this many times what comes into it."""
_SHOWN = 10
_SECONDS = 1800.0
_TIMES_SOURCE = 12


@dataclass(frozen=True)
class Divergence:
    """A node whose outputs are off by `error` (relative L2) where its inputs are off by `into`."""

    place: int  # in the graph's order
    node: str
    operator: str
    error: float
    into: float


@dataclass(frozen=True)
class Bisection:
    """The nodes that lose most, in the graph's order, and how many nodes were compared."""

    found: tuple[Divergence, ...]
    compared: int
    worst: float
    limit: float
    file: str


def bisect(gate: Gate, *, limit: float | None = None, memory: int = MEMORY) -> Bisection:
    """Return where the candidate leaves fp32 by more than `limit` (relative L2), by default what the gate allows.

    Raises ManifestError for data that are not right, and Refused where a model cannot be run.
    """
    size = gate.reference.stat().st_size + gate.candidate.stat().st_size
    try:
        answer = ask("bisecting", question_of(gate), memory=memory + _TIMES_SOURCE * size, seconds=_SECONDS)
    except ChildFailed as failure:
        raise Refused(f"{gate.candidate} could not be compared: {failure}", where=gate.where) from None
    if "bad_data" in answer:
        raise ManifestError(answer["bad_data"], where=gate.where, hint="np.savez(file, **inputs) writes one")
    allowed = limit if limit is not None else gate.limits.get("relative_l2", DEFAULTS[gate.precision]["relative_l2"])
    found = culprits(answer["rows"], allowed)
    worst = max((row["error"] for row in answer["rows"]), default=0.0)
    return Bisection(found, len(answer["rows"]), worst, allowed, answer["file"])


def culprits(rows: Sequence[Mapping[str, Any]], limit: float) -> tuple[Divergence, ...]:
    """Return the first nodes above `limit` that add more than they inherit, in the graph's order. Pure."""
    above = [row for row in rows if row["error"] > limit]
    own = [row for row in above if row["error"] > _GROWTH * row["into"]] or above[:1]
    chosen = own[:_SHOWN]
    return tuple(Divergence(row["place"], row["node"], row["operator"], row["error"], row["into"]) for row in chosen)
