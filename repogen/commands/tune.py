"""`repogen tune`: the batching settings that hold a P99, predicted, confirmed by a handful of runs, and applied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repogen.console import Console
from repogen.errors import ManifestError, RepogenError

if TYPE_CHECKING:
    from repogen.manifest import Manifest
    from repogen.model import ServedModel
    from repogen.tune.journal import Journal
    from repogen.tune.pipeline_tuning import TunedPipeline
    from repogen.tune.search import Budget
    from repogen.tune.tuning import Tuned

_DRY_HINT = "run tune on a server once"


def tune(
    manifest: Path,
    *,
    only: Sequence[str],
    every: bool,
    url: str | None,
    jobs: int,
    budget: str,
    dry_run: bool,
    apply: bool,
    force: bool,
    fresh: bool,
    report: Path | None,
    csv: Path | None,
    console: Console,
) -> int:
    """Tune the models that were chosen; exit 1 where an objective cannot be held."""
    from repogen.commands.tune_pipeline import apply_steps, tune_one
    from repogen.desired import models_of
    from repogen.ensembles import with_members
    from repogen.manifest import load_manifest
    from repogen.publish import state_folder
    from repogen.tune.explain import paragraph, verdict

    said = load_manifest(manifest)
    names = _chosen(said, only, every=every)
    known = {model.name: model for model in models_of(_narrowed(said, with_members(said, names)), jobs=jobs)}
    models = [known[name] for name in names if known[name].backend != "ensemble"]
    state = state_folder(said.repository)
    spend = parse_budget(budget)
    if dry_run and len(models) < len(names):
        raise RepogenError(
            "a pipeline is not predicted without its server", hint="leave --dry-run out, or the pipeline"
        )
    pipelines = [
        tune_one(said, known[name], known, spend=spend, url=url, state=state, console=console)
        for name in names
        if known[name].backend == "ensemble"
    ]
    found: list[Tuned] = []
    for model in models:
        journal = _journal(state, model.name, fresh=fresh)
        tuned = _dry(said, model, journal) if dry_run else _live(said, model, journal, spend, url, state, console)
        found.append(tuned)
        if dry_run:
            _show_outlook(tuned, console)
        if tuned.answer.trials or not dry_run:
            console.say(f"{model.name}: {verdict(tuned)}")
            _show_trials(tuned, console)
            console.say(paragraph(tuned))
    _write_reports(found, pipelines, report, csv, console)
    if apply:
        _apply_all(manifest, found, models, report, force=force, console=console)
        apply_steps(manifest, pipelines, known, report, force=force, console=console)
    from repogen.tune import pipeline_report
    from repogen.tune.report import document

    documents = [*map(pipeline_report.document, pipelines), *map(document, found)]
    console.document({"tuned": documents})
    if not all(tuned.held for tuned in pipelines):
        return 1
    return 0 if all(tuned.answer.held or (dry_run and not tuned.answer.trials) for tuned in found) else 1


def parse_budget(text: str) -> Budget:
    """Return what `6 runs`, `5m` or `8 runs, 10m` allows."""
    from repogen.tune.search import Budget
    from repogen.units import microseconds

    runs, seconds = None, None
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if match := re.fullmatch(r"(\d+)\s*runs?", part):
            runs = int(match[1])
            continue
        try:
            seconds = microseconds(part) * 1e-6
        except ValueError:
            raise RepogenError(
                f"{text!r} is no budget", where="--budget", hint="8 runs, 5m, or both: 8 runs, 5m"
            ) from None
    if runs == 0 or (runs is None and not seconds):
        raise RepogenError(f"{text!r} allows nothing", where="--budget", hint="8 runs, 5m, or both: 8 runs, 5m")
    return Budget(runs or 1000, float("inf") if seconds is None else seconds)


def _chosen(said: Manifest, only: Sequence[str], *, every: bool) -> list[str]:
    from repogen.desired import refuse_unknown

    refuse_unknown(said, only)
    asking = [name for name, entry in said.models.items() if entry.tune is not None]
    if only:
        silent = [name for name in only if name not in asking]
        if silent:
            where = said.where("models", silent[0])
            raise ManifestError("has no `tune:`", where=where, hint="add tune: {slo: {p99: 20ms}, rate: 200/s}")
        return [name for name in said.models if name in only]
    if not asking:
        hint = "add tune: {slo: {p99: 20ms}, rate: 200/s} to one"
        raise ManifestError("no model has a `tune:`", where=said.where("models"), hint=hint)
    if len(asking) > 1 and not every:
        raise RepogenError(
            f"{len(asking)} models have a `tune:`", hint=f"--all, or --model with one of {', '.join(asking)}"
        )
    return asking


def _narrowed(said: Manifest, names: Sequence[str]) -> Manifest:
    from dataclasses import replace

    return replace(said, models={name: said.models[name] for name in names})


def _journal(state: Path, name: str, *, fresh: bool) -> Journal:
    from repogen.tune.journal import Journal

    journal = Journal(state / "tune" / f"{name}.jsonl")
    if fresh and journal.borrowed() is None:
        journal.path.unlink(missing_ok=True)
    return journal


def _live(
    said: Manifest, model: ServedModel, journal: Journal, spend: Budget, url: str | None, state: Path, console: Console
) -> Tuned:
    from repogen.endpoint import find_url
    from repogen.lock import writer
    from repogen.triton import Client
    from repogen.tune.tuning import tune_live

    entry = said.models[model.name].tune
    assert entry is not None
    # Nobody else may load models meanwhile: a sync would find a trial's config, and a second tune would end the trial.
    with writer(state), Client(find_url(url, state)) as client:
        return tune_live(client, model, entry, journal, spend, say=console.note)


def _dry(said: Manifest, model: ServedModel, journal: Journal) -> Tuned:
    """Answer without a server: the latest calibration in the journal, whatever it is evidence of."""
    from repogen.errors import Refused
    from repogen.tune.journal import Evidence, setting_from
    from repogen.tune.tuning import tune_dry

    entry = said.models[model.name].tune
    assert entry is not None
    saved = [row for row in journal.entries() if row["kind"] == "calibration"]
    if not saved:
        raise Refused(f"there is no saved calibration of {model.name}", where=str(journal.path), hint=_DRY_HINT)
    served = [row for row in journal.entries() if row["kind"] == "served"]
    current = setting_from((served or saved)[-1].get("setting") or saved[-1]["runs"][0]["setting"])
    return tune_dry(model, entry, journal, Evidence(**saved[-1]["evidence"]), current)


def _show_trials(tuned: Tuned, console: Console) -> None:
    name = tuned.question.goal.name
    rows = [
        (
            trial.setting.words(),
            f"{trial.rate:g}",
            trial.role,
            f"{trial.predicted * 1e3:.2f}",
            f"{trial.measured.latency * 1e3:.2f}" if trial.measured.valid else "void",
            f"{trial.measured.low * 1e3:.2f}..{trial.measured.high * 1e3:.2f}" if trial.measured.valid else "",
            f"{trial.error:+.0%}" if trial.measured.valid else "",
        )
        for trial in tuned.answer.trials
    ]
    if rows:
        console.table(("setting", "rate/s", "", f"{name} predicted", "measured ms", "95 %", "error"), rows)


def _show_outlook(tuned: Tuned, console: Console) -> None:
    """Print what the calibration predicts: it recommends nothing, but says what a run would look at."""
    from repogen.tune.search import outlook

    goal = tuned.question.goal
    rows = [
        (row.setting.words(), f"{row.rate:.3g}", f"{row.latency * 1e3:.2f}", f"{row.mean_batch:.1f}", f"{row.load:.0%}")
        for row in outlook(tuned.question, tuned.answer.predictor)
    ]
    console.say(f"{tuned.evidence.model}: predicted from a calibration, not measured")
    console.table(("setting", "rate/s", f"{goal.name} ms", "mean batch", "load"), rows)


def _write_reports(
    found: Sequence[Tuned], pipelines: Sequence[TunedPipeline], html: Path | None, csv: Path | None, console: Console
) -> None:
    from repogen.tune.pipeline_report import section
    from repogen.tune.report import as_csv, as_html

    def page(rows: Sequence[Tuned]) -> str:
        day = pipelines[0].date if pipelines else ""
        return as_html(rows, {tuned.name: section(tuned) for tuned in pipelines}, day)

    for path, make in ((html, page), (csv, as_csv)):
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(make(found), encoding="utf-8")
        except OSError as error:
            raise RepogenError(f"cannot be written: {error.strerror}", where=str(path)) from None
        console.note(f"report: {path}")


def _apply_all(
    manifest: Path,
    found: Sequence[Tuned],
    models: Sequence[ServedModel],
    report: Path | None,
    *,
    force: bool,
    console: Console,
) -> None:
    from repogen.tune.apply import apply, refuse_other_evidence

    checked = [
        (tuned, model, refuse_other_evidence(tuned, model, force=force))
        for tuned, model in zip(found, models, strict=True)
        if tuned.answer.held
    ]
    for tuned, model, differences in checked:
        apply(manifest, model.name, tuned, report=str(report or ""), differences=differences)
        console.say(f"{model.name}: {manifest} has the setting now; `repogen sync` serves it")
