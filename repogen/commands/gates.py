"""The accuracy gate as a sync runs it: the graph before it is built, the plan before it is published."""

from dataclasses import replace
from typing import TYPE_CHECKING

from repogen.child import MEMORY
from repogen.console import Console

if TYPE_CHECKING:
    from repogen.accuracy import Verdict
    from repogen.model import Gate
    from repogen.plan import Plan


def pass_gates(plan: "Plan", console: Console, *, memory: int = MEMORY) -> None:
    """Judge every model that the plan writes and that has a gate. Raises Refused for the first that fails."""
    for change in plan.writes:
        if change.model is not None and change.model.gate is not None:
            _pass(change.name, "", change.model.gate, console, memory)


def pass_plan_gates(plan: "Plan", console: Console) -> None:
    """Judge every plan that is about to be published and that a GPU of this machine can run. Raises Refused.

    Where none can, the lowered graph has been judged in its place, with the rounding that the plan would do.
    """
    from repogen.builds import runs_here

    for change in plan.writes:
        model = change.model
        if model is None or model.gate is None or model.build is None or not runs_here(model.build):
            continue
        compatible = model.build.options.version_compatible
        for file in model.files:
            if file.source.suffix == ".plan":
                gate = replace(model.gate, candidate=file.source, version_compatible=compatible)
                _pass(change.name, "the plan of ", gate, console, MEMORY)


def _pass(name: str, what: str, gate: "Gate", console: Console, memory: int) -> None:
    from repogen.accuracy import pass_gate

    console.note(f"judging {what}{name} in {gate.precision}")
    verdict = pass_gate(f"{what}{name}", gate, memory=memory)
    console.say(f"{what}{name} {passed(verdict, gate)}")


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
