"""What `repogen tune` does with an ensemble: the settings of its steps, that the whole may hold a P99."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repogen.console import Console

if TYPE_CHECKING:
    from repogen.manifest import Manifest
    from repogen.model import ServedModel
    from repogen.tune.pipeline_tuning import TunedPipeline
    from repogen.tune.search import Budget


def tune_one(
    said: Manifest,
    model: ServedModel,
    members: Mapping[str, ServedModel],
    *,
    spend: Budget,
    url: str | None,
    state: Path,
    console: Console,
) -> TunedPipeline:
    """Tune one ensemble on a live server, and say what came of it."""
    from repogen.endpoint import find_url
    from repogen.lock import writer
    from repogen.triton import Client
    from repogen.tune import pipeline_report
    from repogen.tune.journal import Journal
    from repogen.tune.pipeline_tuning import tune_pipeline

    entry = said.models[model.name].tune
    assert entry is not None
    journals = {name: Journal(state / "tune" / f"{name}.jsonl") for name in members}
    with writer(state), Client(find_url(url, state)) as client:
        tuned = tune_pipeline(client, model, members, entry, journals, spend, say=console.note)
    console.say(f"{model.name}: {pipeline_report.verdict(tuned)}")
    console.table(pipeline_report.header(tuned), pipeline_report.rows(tuned))
    console.say(pipeline_report.where(tuned))
    return tuned


def apply_steps(
    manifest: Path,
    found: Sequence[TunedPipeline],
    models: Mapping[str, ServedModel],
    report: Path | None,
    *,
    force: bool,
    console: Console,
) -> None:
    """Write the settings of the steps that change, all of them or none."""
    from repogen.tune.apply import apply, refuse_other_evidence
    from repogen.tune.pipeline_report import of_step

    rows = [
        (tuned.name, model, step, refuse_other_evidence(step, models[model], force=force))
        for tuned in found
        if tuned.held
        for model, _, _ in tuned.changes()
        for step in (of_step(tuned, model),)
    ]
    for name, model, step, differences in rows:
        apply(manifest, model, step, report=str(report or ""), differences=differences, pipeline=name)
        console.say(f"{model}: {manifest} has the setting now; `repogen sync` serves it")
    for tuned in found:
        if tuned.held and not tuned.changes():
            console.say(f"{tuned.name}: nothing is to be changed: it is what is served already")
