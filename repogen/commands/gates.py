"""The accuracy gate as a sync runs it: before anything is built or published."""

from typing import TYPE_CHECKING

from repogen.child import MEMORY
from repogen.console import Console

if TYPE_CHECKING:
    from repogen.accuracy import Verdict
    from repogen.model import Gate
    from repogen.plan import Plan


def pass_gates(plan: "Plan", console: Console, *, memory: int = MEMORY) -> None:
    """Judge every model that the plan writes and that has a gate. Raises Refused for the first that fails."""
    from repogen.accuracy import pass_gate

    for change in plan.writes:
        if change.model is not None and change.model.gate is not None:
            console.note(f"judging {change.name} in {change.model.gate.precision}")
            verdict = pass_gate(change.name, change.model.gate, memory=memory)
            console.say(f"{change.name} {passed(verdict, change.model.gate)}")


def passed(verdict: "Verdict", gate: "Gate") -> str:
    """Say by what a model passed."""
    worst = max(verdict.rows, key=lambda row: row.relative_l2)
    samples = f"{verdict.samples} samples" if gate.files else f"{verdict.samples} made-up samples, none of your own"
    text = f"in {gate.precision} answers like fp32 on {samples}: cosine {worst.cosine:.5f}"
    text += f", relative L2 {worst.relative_l2:.3g} at worst"
    agreeing = [row.top1 for row in verdict.rows if row.top1 is not None]
    text += f", top-1 agreement {min(agreeing):.4f}" if agreeing else ""
    scores = f", {gate.metric} {verdict.scores[1]:.4g} (fp32 {verdict.scores[0]:.4g})" if verdict.scores else ""
    return text + scores
