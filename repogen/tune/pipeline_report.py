"""A pipeline's tuning in words, as JSON, as part of the HTML page, and as what `--apply` writes for each step."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import Any

from repogen.report import svg
from repogen.tune.forecast import Predictor
from repogen.tune.pipeline_search import PipelineTrial
from repogen.tune.pipeline_tuning import TunedPipeline, settings_words
from repogen.tune.search import Answer, Question
from repogen.tune.service import Calibration
from repogen.tune.space import triton_default
from repogen.tune.trial import Trial
from repogen.tune.tuning import Tuned


def verdict(tuned: TunedPipeline) -> str:
    """Return the answer in one sentence."""
    goal, choice = tuned.goal, tuned.choice
    if choice is None:
        reason = tuned.trials[-1].measured.reason if tuned.trials else "nothing was measured"
        return f"no run was valid, so nothing is recommended: {reason}"
    seen = choice.measured
    span = f"[{seen.low * 1e3:.1f}, {seen.high * 1e3:.1f}]"
    reached = f"{goal.name} {seen.latency * 1e3:.1f} ms {span} at {choice.rate:g}/s"
    what = settings_words(tuned.question, choice.settings)
    if goal.slo is None:
        return f"the lowest {goal.name}: {what}: {reached}"
    limit = f"{goal.name} {goal.slo * 1e3:g} ms"
    if tuned.held:
        sure = "holds" if seen.high <= goal.slo else "holds, but only just,"
        return f"{what}: {sure} {limit}: {reached}"
    return f"no setting holds {limit} at {choice.rate:g}/s; the best is {what} with {reached}"


def rows(tuned: TunedPipeline) -> list[tuple[str, ...]]:
    """Return a line for each trial."""
    return [
        (
            settings_words(tuned.question, trial.settings),
            f"{trial.rate:g}",
            trial.role,
            f"{trial.predicted * 1e3:.1f}",
            f"{trial.measured.latency * 1e3:.1f}" if trial.measured.valid else "void",
            f"{trial.measured.low * 1e3:.1f}..{trial.measured.high * 1e3:.1f}" if trial.measured.valid else "",
            f"{trial.error:+.0%}" if trial.measured.valid else "",
        )
        for trial in tuned.trials
    ]


def header(tuned: TunedPipeline) -> tuple[str, ...]:
    return "setting", "rate/s", "", f"{tuned.goal.name} predicted", "measured ms", "95 %", "error"


def where(tuned: TunedPipeline) -> str:
    """Say where the time goes, and what was left alone because little of it does."""
    parts = [f"{stage.model} {share:.0%}" for stage, share in zip(tuned.stages, tuned.shares, strict=True)]
    left = [stage.model for n, stage in enumerate(tuned.stages) if n not in tuned.question.tuned]
    alone = f"; left as they are: {', '.join(left)}" if left else ""
    return f"time of one request by itself: {', '.join(parts)}{alone}"


def document(tuned: TunedPipeline) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {
        "model": tuned.name,
        "verdict": verdict(tuned),
        "explanation": where(tuned),
        "held": tuned.held,
        "goal": asdict(tuned.goal),
        "arrivals": tuned.arrivals,
        "steps": {stage.model: {"share": share, "current": asdict(now)}
                  for stage, share, now in zip(tuned.stages, tuned.shares, tuned.question.current, strict=True)},
        "choice": _trial(tuned, tuned.choice) if tuned.choice else None,
        "trials": [_trial(tuned, trial) for trial in tuned.trials],
        "measurements": tuned.calibrations + len(tuned.trials),
        "seconds": tuned.seconds,
        "evidence": {name: asdict(one) for name, one in tuned.evidence.items()},
        "machine": tuned.machine,
        "date": tuned.date,
    }  # fmt: skip


def _trial(tuned: TunedPipeline, trial: PipelineTrial) -> dict[str, Any]:
    settings = {stage.model: asdict(one) for stage, one in zip(tuned.stages, trial.settings, strict=True)}
    rest = {**asdict(trial), "settings": settings, "words": settings_words(tuned.question, trial.settings)}
    return {**rest, "error": trial.error if trial.measured.valid else None}


def section(tuned: TunedPipeline) -> str:
    """Return the part of the page that is about this pipeline."""
    kind = "good" if tuned.held else "bad"
    head = "".join(f"<th>{escape(name)}</th>" for name in header(tuned))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(tuned))
    shares = [(stage.model, (("share", share * 100),)) for stage, share in zip(tuned.stages, tuned.shares, strict=True)]
    cards = [("Where the time of one request goes", svg.rows(shares, "%", "Steps of the pipeline"))]
    points = sorted((t.predicted * 1e3, t.measured.latency * 1e3) for t in tuned.trials if t.measured.valid)
    if points:
        most = max(max(point) for point in points)
        lines = [svg.Line("equal", [(0, 0), (most, most)], 3), svg.Line("trials", points, 1, dots=True)]
        x, y = svg.linear(most, "predicted ms"), svg.linear(most, "measured ms")
        cards.append(("Trials: predicted and measured", svg.lines(lines, x, y, "Predicted and measured latency")))
    grid = "".join(f'<section class="card"><h3>{escape(name)}</h3>{picture}</section>' for name, picture in cards)
    facts = f"{tuned.calibrations} calibration runs, {len(tuned.trials)} trials, {tuned.seconds:.0f} s, {tuned.machine}"
    return (
        f'<h2>{escape(tuned.name)}</h2><p class="verdict {kind}">{escape(verdict(tuned))}</p>'
        f'<p>{escape(where(tuned))}</p><div class="wide"><table><tr>{head}</tr>{body}</table></div>'
        f'<div class="grid">{grid}</div><p class="soft">{escape(facts)}</p>'
    )


def of_step(tuned: TunedPipeline, model: str) -> Tuned:
    """Return one step's part as the tuning of a model, which is what the manifest's entry can take."""
    number = next(n for n, stage in enumerate(tuned.stages) if stage.model == model)
    now, choice = tuned.question.current[number], tuned.choice
    predictor = Predictor(Calibration({}))
    trials = tuple(Trial(t.settings[number], t.rate, t.role, t.predicted, t.measured) for t in tuned.trials)
    best = None if choice is None else trials[tuned.trials.index(choice)]
    question = Question(tuned.goal, (), predictor, now, triton_default(now))
    answer = Answer(trials, best, tuned.held, predictor)
    return Tuned(
        question,
        answer,
        tuned.evidence[model],
        tuned.arrivals,
        tuned.calibrations,
        tuned.seconds,
        tuned.machine,
        tuned.date,
    )
