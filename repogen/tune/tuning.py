"""One model's tuning from end to end: calibrate what is not calibrated yet, search, restore."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repogen.errors import Refused
from repogen.model import ServedModel
from repogen.triton import Client
from repogen.tune.arrivals import Arrivals
from repogen.tune.forecast import Predictor
from repogen.tune.journal import Evidence, Journal
from repogen.tune.live import Bench, calibration_setting, save_payloads
from repogen.tune.override import borrowed, setting_of
from repogen.tune.search import Answer, Budget, Question, conclude, search
from repogen.tune.service import Calibration, ClosedRun, OpenRun, calibrate
from repogen.tune.setting import Setting
from repogen.tune.space import candidates, triton_default
from repogen.tune.trial import Goal, Trial
from repogen.tune_schema import PERCENTILES, TuneEntry

_POOL = 32
_RUNS_OF_A_CALIBRATION = 2  # clients that wait, and a schedule
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """What came of one model's tuning; `calibrations` counts the runs that found the service times."""

    question: Question
    answer: Answer
    evidence: Evidence
    arrivals: str
    calibrations: int
    seconds: float
    machine: str
    date: str


def goal_of(entry: TuneEntry) -> Goal:
    rate = None if entry.rate in (None, "max") else float(entry.rate)
    if not entry.slo:
        return Goal(None, rate, PERCENTILES[entry.percentile])
    (name, limit), *_ = entry.slo.items()
    return Goal(limit * 1e-6, rate, PERCENTILES[name])


def evidence_of(model: ServedModel, config: Any, server: str) -> Evidence:
    """Return of what trials on a live server are evidence: its backend and device, and the files of the model."""
    kinds = {0: "auto", 1: "GPU", 2: "CPU", 3: "model"}
    device = ", ".join(sorted({kinds.get(group.kind, "?") for group in config.instance_group}))
    return Evidence(model.name, backend_of(config), device, build_digest(model), server)


def backend_of(config: Any) -> str:
    return str(config.backend or config.platform).removesuffix("_plan").removesuffix("_onnxv1")


def build_digest(model: ServedModel) -> str:
    """Return the sha256 over the names and contents of what is served, the config left out."""
    rows = sorted((file.name, file.sha256) for file in model.files) or [(p.name, p.key) for p in model.pending]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def tune_live(
    client: Client, model: ServedModel, entry: TuneEntry, journal: Journal, budget: Budget, *, say: Say
) -> Tuned:
    """Tune a model on a live server; its config is what it was when this returns or raises."""
    from repogen.load.payload import pool

    begun = time.monotonic()
    goal = goal_of(entry)
    with tempfile.TemporaryDirectory(prefix="repogen-tune-") as name, borrowed(client, model.name, journal) as original:
        evidence = evidence_of(model, original, client.server_version())
        requests = pool(model, batch=1, count=_POOL, seed=0)
        payloads = save_payloads(Path(name) / "payloads.npz", requests)
        bench = Bench(client, original, payloads, Path(name) / "samples", entry.arrivals, goal)
        current = setting_of(original)
        journal.add("served", evidence=evidence, setting=current)
        calibration, runs = _calibration(bench, current, entry, journal, evidence, say)
        question = question_of(goal, current, calibration, entry)
        done = journal.trials(evidence, goal, entry.arrivals)
        if done:
            say(f"{len(done)} trials of an earlier run count")
        answer = search(
            question,
            bench.measure,
            Budget(max(budget.runs - runs, 1), budget.seconds - (time.monotonic() - begun)),
            done=done,
            clock=time.monotonic,
            note=lambda trial: _keep(trial, journal, evidence, goal, entry.arrivals, say),
        )
    return Tuned(question, answer, evidence, entry.arrivals, runs, time.monotonic() - begun, machine(), date())


def tune_dry(model: ServedModel, entry: TuneEntry, journal: Journal, evidence: Evidence, current: Setting) -> Tuned:
    """Answer from a saved calibration and earlier trials alone; nothing is measured."""
    goal = goal_of(entry)
    saved = journal.runs(evidence)
    if not saved:
        raise Refused(
            f"there is no saved calibration of {model.name}", where=str(journal.path), hint="run tune on a server once"
        )
    calibration = Calibration({count: calibrate(runs) for count, runs in saved.items()})
    question = question_of(goal, current, calibration, entry)
    answer = conclude(question, journal.trials(evidence, goal, entry.arrivals))
    runs = _RUNS_OF_A_CALIBRATION * len(saved)
    return Tuned(question, answer, evidence, entry.arrivals, runs, 0.0, machine(), date())


def question_of(goal: Goal, current: Setting, calibration: Calibration, entry: TuneEntry) -> Question:
    settings = candidates(current, instances=entry.limits, slo=goal.slo)
    predictor = Predictor(calibration, Arrivals(entry.arrivals), goal.percentile)
    known = tuple(setting for setting in settings if calibration.covers(setting.instances))
    return Question(goal, known, predictor, current, triton_default(current))


def _calibration(
    bench: Bench, current: Setting, entry: TuneEntry, journal: Journal, evidence: Evidence, say: Say
) -> tuple[Calibration, int]:
    """Return the services at both ends of the range of instances, and those of the references; run what is missing."""
    saved: dict[int, list[ClosedRun | OpenRun]] = journal.runs(evidence)
    wanted = {*entry.limits, current.instances, 1}
    low, high = min(wanted), max(wanted)
    for count in (low, high):
        if count not in saved:
            say(f"calibrating {count} instance{'s' * (count > 1)}")
            saved[count] = bench.calibrate(calibration_setting(current, count))
            journal.add("calibration", evidence=evidence, instances=count, runs=saved[count])
    calibration = Calibration({count: calibrate(runs) for count, runs in saved.items()})
    return calibration, _RUNS_OF_A_CALIBRATION * len(saved)


def _keep(trial: Trial, journal: Journal, evidence: Evidence, goal: Goal, arrivals: str, say: Say) -> None:
    journal.add("trial", evidence=evidence, goal=goal, arrivals=arrivals, trial=trial)
    seen = trial.measured
    words = f"predicted {trial.predicted * 1e3:.2f} ms, measured {seen.latency * 1e3:.2f} ms"
    if not seen.valid:
        words = f"void: {seen.reason}"
    say(f"{trial.role}: {trial.setting.words()} at {trial.rate:g}/s: {words}")


def machine() -> str:
    import os
    import platform

    return f"{platform.node()}, {os.cpu_count()} cores, {platform.machine()}"


def date() -> str:
    return time.strftime("%Y-%m-%d")
