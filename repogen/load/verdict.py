"""Whether a run can be believed; where not, it is void, and this says why; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repogen.load.arrivals import CLOSED
from repogen.load.observe import Observation
from repogen.load.samples import KILLED, Samples

_LATE = 0.05
_BUSY = 0.9
_MISSED = 0.02
_S = 1e-9


@dataclass(frozen=True)
class Verdict:
    """Valid, or void with every reason."""

    valid: bool
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "valid" if self.valid else f"void: {'; '.join(self.reasons)}"


def judge(
    samples: Sequence[Samples],
    observation: Observation,
    *,
    p99: float | None,
    lateness: float,
    failures: Sequence[tuple[str, int]],
) -> Verdict:
    """Return the verdict on one run: `p99` and `lateness` (its P99) in milliseconds."""
    reasons = [
        *_endings(samples),
        *_server(observation),
        *_errors(samples, failures),
        *(_late(lateness, p99) if p99 else ()),
        *_saturated(samples),
        *_missed(samples),
    ]
    return Verdict(not reasons, tuple(reasons))


def _endings(samples: Sequence[Samples]) -> list[str]:
    ended = [part.conditions.ended for part in samples]
    words = {
        KILLED: "the generator was killed: these are the samples it had written down",
        "interrupted": "the run was interrupted",
        "full": "the generator's memory for samples was full",
    }
    shared = max((part.conditions.workers for part in samples), default=1)
    lost = shared - len(samples)
    gone = [f"{lost} of {shared} workers were lost, and their samples"] if lost > 0 else []
    return gone + [words[ending] for ending in words if ending in ended]


def _server(observation: Observation) -> list[str]:
    if observation.restarted:
        return [f"the server's {observation.problem}" if observation.problem else "the server restarted"]
    lost = observation.problem.startswith("the server was lost")
    return [observation.problem] if lost else []


def _errors(samples: Sequence[Samples], failures: Sequence[tuple[str, int]]) -> list[str]:
    total = sum(int(part.measured.sum()) for part in samples)
    failed = sum(int((part.measured & (part.status != 0)).sum()) for part in samples)
    if not total:
        return ["no request was measured"]
    if not failed:
        return []
    most = f", most with: {failures[0][0]}" if failures else ""
    return [f"{failed:,} of {total:,} requests failed{most}"]


def _late(lateness: float, p99: float) -> list[str]:
    if lateness <= _LATE * p99:
        return []
    return [
        (
            f"requests left up to {lateness * 1000:.0f} us late (P99), more than 5 % of the P99 of {p99:.3g} ms: "
            "the generator's machine is too busy"
        )
    ]


def _saturated(samples: Sequence[Samples]) -> list[str]:
    busiest = max((part.conditions.cpu for part in samples), default=0.0)
    if busiest <= _BUSY:
        return []
    return [f"a generator used {busiest:.0%} of a core: more processes (--workers) would show more"]


def _missed(samples: Sequence[Samples]) -> list[str]:
    wanted = got = 0.0
    for part in samples:
        told = part.conditions
        if told.arrivals == CLOSED or told.end <= told.begin:
            continue
        answered = part.status == 0
        keep = part.measured & answered
        if not keep.any():
            continue
        import numpy as np

        # A constant latency only moves the answers: the window moves along by the median.
        shift = int(np.median((part.done - part.intended)[keep]))
        inside = answered & (part.done >= told.begin + shift) & (part.done < told.end + shift)
        wanted += int(part.measured.sum())
        got += int(inside.sum())
    if not wanted or got >= (1 - _MISSED) * wanted:
        return []
    return [f"{got:,.0f} of {wanted:,.0f} due requests were answered in time: the rate was missed by more than 2 %"]
