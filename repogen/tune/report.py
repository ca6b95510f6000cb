"""A tuning as JSON, as CSV in Model Analyzer's columns, and as one HTML page with its charts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from repogen import __version__
from repogen.report import svg
from repogen.report.page import STYLE
from repogen.tune.explain import paragraph, verdict
from repogen.tune.forecast import COARSE, Forecast
from repogen.tune.search import joined, outlook
from repogen.tune.setting import Setting
from repogen.tune.trial import Trial
from repogen.tune.tuning import Tuned
from repogen.units import duration_text

_COLUMNS = (
    "model_name",
    "batch_size",
    "request_rate",
    "model_config_path",
    "instance_group",
    "max_batch_size",
    "satisfies_constraints",
    "perf_throughput",
    "perf_latency_p99",
)
"""Model Analyzer's names, latencies in milliseconds; ours follow."""
_OURS = (
    "queue_delay_us",
    "preferred_batch_sizes",
    "role",
    "valid",
    "predicted",
    "low",
    "high",
    "mean_batch",
    "percentile",
)
_RATES = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.87, 0.94)
_HOT = 6  # shades of the heat map


def document(tuned: Tuned) -> dict[str, Any]:
    """Return everything as JSON values; seconds and microseconds as the names say."""
    answer = tuned.answer
    return {
        "model": tuned.evidence.model,
        "verdict": verdict(tuned),
        "explanation": paragraph(tuned),
        "held": answer.held,
        "goal": asdict(tuned.question.goal),
        "arrivals": tuned.arrivals,
        "choice": _trial(answer.choice) if answer.choice else None,
        "limit_per_s": answer.limit,
        "trials": [_trial(trial) for trial in answer.trials],
        "measurements": tuned.calibrations + len(answer.trials),
        "grid_settings": len(tuned.question.candidates),
        "seconds": tuned.seconds,
        "evidence": asdict(tuned.evidence),
        "machine": tuned.machine,
        "date": tuned.date,
        "outlook": [{**asdict(row), "words": row.setting.words()} for row in outlook(tuned.question, answer.predictor)],
        "services": {str(n): asdict(service) for n, service in answer.predictor.calibration.services.items()},
    }


def as_csv(found: Sequence[Tuned]) -> str:
    """Return a line for each trial."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*_COLUMNS, *_OURS))
    for tuned in found:
        for trial in tuned.answer.trials:
            writer.writerow(_row(tuned, trial))
    return stream.getvalue()


def as_html(found: Sequence[Tuned], pipelines: Mapping[str, str] | None = None, day: str = "") -> str:
    """Return the page: no script, nothing loaded from elsewhere. `pipelines` have their sections by their names."""
    others = pipelines or {}
    names = ", ".join((*others, *(tuned.evidence.model for tuned in found)))
    title = f"Tuning of {names}"
    body = "".join((*others.values(), *(_section(tuned) for tuned in found)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_HEAT}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(found[0].date if found else day)} · repogen {__version__}</p>'
        f"{body}</main></body></html>\n"
    )


_HEAT = (
    "".join(
        f".h{level}{{background:color-mix(in srgb,var(--c1) {8 + level * 13}%,transparent)}}" for level in range(_HOT)
    )
    + ".missed{color:var(--bad)}"
)


def _trial(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "words": trial.setting.words(), "error": trial.error if trial.measured.valid else None}


def _row(tuned: Tuned, trial: Trial) -> tuple[Any, ...]:
    setting, seen, slo = trial.setting, trial.measured, tuned.question.goal.slo
    kind = "GPU" if "GPU" in tuned.evidence.device else "CPU"
    return (
        tuned.evidence.model,
        1,
        f"{trial.rate:g}",
        f"{tuned.evidence.model}_{duration_text(setting.delay)}_{setting.instances}_{setting.max_batch}",
        f"{setting.instances}:{kind}",
        setting.max_batch,
        "" if slo is None else "Yes" if seen.valid and seen.latency <= slo else "No",
        f"{seen.rate:.6g}",
        f"{seen.latency * 1e3:.6g}",
        setting.delay,
        " ".join(map(str, setting.preferred)),
        trial.role,
        seen.valid,
        f"{trial.predicted * 1e3:.6g}",
        f"{seen.low * 1e3:.6g}",
        f"{seen.high * 1e3:.6g}",
        f"{seen.mean_batch:.4g}",
        tuned.question.goal.name,
    )


def _section(tuned: Tuned) -> str:
    answer = tuned.answer
    kind = "good" if answer.held else "bad"
    cards = [("Trials: predicted and measured", _agreement(tuned))]
    if choice := answer.choice:
        cards += [
            (f"{tuned.question.goal.name} over the rate", _against_rate(tuned, choice)),
            ("Throughput and latency: the front of all settings", _front(tuned, choice)),
            (f"Predicted {tuned.question.goal.name} (ms) at {choice.rate:g}/s", _heat_map(tuned, choice)),
            *_histograms(tuned),
        ]
    grid = "".join(f'<section class="card"><h3>{escape(name)}</h3>{body}</section>' for name, body in cards if body)
    evidence = tuned.evidence
    facts = (
        ("backend", evidence.backend),
        ("device", evidence.device),
        ("build", evidence.build[:16]),
        ("server", f"Triton {evidence.server}"),
        ("machine", tuned.machine),
        ("arrivals", tuned.arrivals),
        ("runs", f"{tuned.calibrations} calibrations, {len(answer.trials)} trials, {tuned.seconds:.0f} s"),
        ("settings predicted", str(len(tuned.question.candidates))),
    )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return (
        f'<h2>{escape(evidence.model)}</h2><p class="verdict {kind}">{escape(verdict(tuned))}</p>'
        f"<p>{escape(paragraph(tuned))}</p>{_table(tuned)}"
        f'<div class="grid">{grid}</div><section class="card"><h3>Evidence</h3><dl>{listed}</dl></section>'
    )


def _table(tuned: Tuned) -> str:
    header = ("setting", "rate/s", "run", "predicted", "measured", "95 % interval", "error", "mean batch", "requests")
    rows = []
    for trial in tuned.answer.trials:
        seen = trial.measured
        cells = [trial.setting.words(), f"{trial.rate:g}", trial.role, f"{trial.predicted * 1e3:.2f}"]
        if seen.valid:
            span = f"{seen.low * 1e3:.2f} to {seen.high * 1e3:.2f}"
            cells += [
                f"{seen.latency * 1e3:.2f}",
                span,
                f"{trial.error:+.1%}",
                f"{seen.mean_batch:.1f}",
                f"{seen.requests:,}",
            ]
        else:
            cells += ["void", seen.reason, "", "", ""]
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _valid(tuned: Tuned) -> list[Trial]:
    return joined([trial for trial in tuned.answer.trials if trial.measured.valid])


def _agreement(tuned: Tuned) -> str:
    trials = _valid(tuned)
    if not trials:
        return ""
    points = [(trial.predicted * 1e3, trial.measured.latency * 1e3) for trial in trials]
    spans = [(trial.measured.low * 1e3, trial.measured.high * 1e3) for trial in trials]
    most = max(max(p) for p in points)
    x, y = svg.linear(most, "predicted ms"), svg.linear(max(most, *(high for _, high in spans)), "measured ms")
    ordered = sorted(zip(points, spans, strict=True))
    dots = svg.Line("trials", [p for p, _ in ordered], 1, [s for _, s in ordered], dots=True)
    return svg.lines([svg.Line("equal", [(0, 0), (most, most)], 3), dots], x, y, "Predicted and measured latency")


def _against_rate(tuned: Tuned, choice: Trial) -> str:
    predictor, goal = tuned.answer.predictor, tuned.question.goal
    names = {tuned.question.current: "served before", tuned.question.default: "default", choice.setting: "chosen"}
    limit = choice.rate / _RATES[-3]
    lines, most = [], 0.0
    for colour, (setting, name) in enumerate(names.items(), start=1):
        points = [(rate, predictor.at(setting, rate, COARSE).latency * 1e3) for rate in (limit * p for p in _RATES)]
        ceiling = 4 * (goal.slo * 1e3 if goal.slo else points[0][1])
        points = [(rate, latency) for rate, latency in points if latency <= ceiling]
        most = max([most, *(latency for _, latency in points)])
        if points:
            lines.append(svg.Line(f"{name} (predicted)", points, colour))
    return (
        svg.lines(lines, svg.linear(limit, "requests/s"), svg.linear(most, "ms"), "Latency over the rate")
        if lines
        else ""
    )


def _front(tuned: Tuned, choice: Trial) -> str:
    """Return, for objectives around the chosen one, the highest rate that any setting of the shortlist holds."""
    predictor = tuned.answer.predictor
    around = tuned.question.goal.slo or choice.measured.latency
    points = []
    for factor in (0.5, 0.7, 1.0, 1.5, 2.0):
        rates = [predictor.capacity(s, around * factor, COARSE, 6) for s in tuned.question.shortlist[:_HOT]]
        if rates and max(rates) > 0:
            points.append((max(rates), around * factor * 1e3))
    if not points:
        return ""
    measured = [(t.measured.rate or t.rate, t.measured.latency * 1e3) for t in _valid(tuned)]
    front = svg.Line("best predicted", sorted(points), 1)
    dots = svg.Line("measured", sorted(measured), 2, dots=True)
    most = max(latency for _, latency in (*points, *measured))
    top = max(rate for rate, _ in (*points, *measured))
    return svg.lines([front, dots], svg.linear(top, "requests/s"), svg.linear(most, "ms"), "Pareto front")


def _heat_map(tuned: Tuned, choice: Trial) -> str:
    """Return the predicted latency over delay and instances, with the chosen sizes."""
    same = [s for s in tuned.question.candidates if _alike(s, choice.setting)]
    delays, counts = sorted({s.delay for s in same}), sorted({s.instances for s in same})
    if not same:
        return ""
    cells: dict[tuple[int, int], Forecast] = {
        (s.delay, s.instances): tuned.answer.predictor.at(s, choice.rate, COARSE) for s in same
    }
    known = [math.log(cell.latency) for cell in cells.values()]
    low, high = min(known), max(known)
    slo = tuned.question.goal.slo or math.inf
    head = "".join(f"<th>{n} instance{'s' * (n > 1)}</th>" for n in counts)
    rows = ""
    for delay in delays:
        row = ""
        for count in counts:
            latency = cells[delay, count].latency
            level = round((math.log(latency) - low) / (high - low or 1) * (_HOT - 1))
            missed = " missed" if latency > slo else ""
            mark = " ◀" if (delay, count) == (choice.setting.delay, choice.setting.instances) else ""
            row += f'<td class="h{level}{missed}">{latency * 1e3:.3g}{mark}</td>'
        rows += f"<tr><th>{duration_text(delay)}</th>{row}</tr>"
    return f'<div class="wide"><table><tr><th>delay</th>{head}</tr>{rows}</table></div>'


def _alike(one: Setting, other: Setting) -> bool:
    key = ("max_batch", "preferred", "batching")
    return all(getattr(one, name) == getattr(other, name) for name in key) and one.batching


def _histograms(tuned: Tuned) -> list[tuple[str, str]]:
    """Return the executions by batch size of the choice and of the references."""
    found = []
    for trial in _valid(tuned):
        rows = trial.measured.batches
        if not rows:
            continue
        values = [(str(size), float(count), f"{count:,} executions of {size}") for size, count in rows]
        y = svg.linear(max(count for _, count in rows), "executions")
        picture = svg.bars(values, y, "batch size", f"Batches of {trial.setting.words()}")
        found.append((f"Batches: {trial.setting.words()}, {trial.rate:g}/s", picture))
    return found[:_HOT]
