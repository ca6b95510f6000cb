"""One ensemble's tuning from end to end: its steps are calibrated in place, the whole is predicted, then confirmed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repogen.errors import Refused
from repogen.load import observe
from repogen.load.metrics import result
from repogen.model import ServedModel
from repogen.triton import Client
from repogen.tune import pipeline_live
from repogen.tune.arrivals import Arrivals
from repogen.tune.journal import Evidence, Journal
from repogen.tune.live import folded, save_payloads
from repogen.tune.override import all_borrowed, setting_of_step
from repogen.tune.pipeline import Pipeline, Stage, stages_of
from repogen.tune.pipeline_live import Whole, traffic, walked
from repogen.tune.pipeline_search import PipelineQuestion, PipelineTrial, Settings, chosen, to_measure
from repogen.tune.pipeline_service import calibrated, with_instances
from repogen.tune.search import Budget
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal
from repogen.tune.tuning import date, evidence_of, goal_of, machine
from repogen.tune_schema import TuneEntry

_POOL = 32
_USERS = (1, 8)
_CLOSED = 6.0  # seconds of a run with clients that wait
_ALONE = 4.0  # and of one of a step by itself
_PARTS = (0.25, 0.5, 0.7)  # of what many clients reach: the rates of the calibration
_OPEN_REQUESTS, _OPEN_SECONDS = 500, (6.0, 20.0)
_WORTH = 0.1  # of the time that all steps take: a step that has less is left as it is
_TAIL = 40  # requests that are expected beyond the percentile in a run
_SHORTEST, _LONGEST = 8.0, 60.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class TunedPipeline:
    """What came of one pipeline's tuning."""

    name: str
    question: PipelineQuestion
    trials: tuple[PipelineTrial, ...]
    choice: PipelineTrial | None
    held: bool
    shares: tuple[float, ...]  # of the time, for each step
    evidence: Mapping[str, Evidence]
    arrivals: str
    calibrations: int
    seconds: float
    machine: str
    date: str

    @property
    def goal(self) -> Goal:
        return self.question.goal

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.question.pipeline.stages

    def changes(self) -> list[tuple[str, Setting, Setting]]:
        """Return (model, as it is served, as it was chosen) of each step that is to change."""
        if self.choice is None:
            return []
        rows = zip(self.stages, self.question.current, self.choice.settings, strict=True)
        return [(stage.model, now, new) for stage, now, new in rows if now != new]


def tune_pipeline(
    client: Client,
    model: ServedModel,
    members: Mapping[str, ServedModel],
    entry: TuneEntry,
    journals: Mapping[str, Journal],
    budget: Budget,
    *,
    say: Say,
) -> TunedPipeline:
    """Tune an ensemble on a live server; the configs of its steps are what they were when this returns or raises."""
    begun = time.monotonic()
    goal = goal_of(entry)
    if not goal.rate:
        raise Refused(f"{model.name} is a pipeline: it is tuned at a rate", hint="tune: {slo: {p99: 50ms}, rate: 40/s}")
    stages = stages_of(client.config(model.name))
    with (
        tempfile.TemporaryDirectory(prefix="repogen-tune-") as scratch,
        all_borrowed(client, {stage.model: journals[stage.model] for stage in stages}) as originals,
    ):
        lab = _Lab(client, model, stages, originals, Path(scratch), say)
        pipeline, shares, runs = lab.calibrate(entry.limits)
        tuned = sorted((n for n, share in enumerate(shares) if share >= _WORTH), key=lambda n: -shares[n])
        question = PipelineQuestion(goal, pipeline, lab.current, tuple(tuned), entry.limits, Arrivals(entry.arrivals))
        left = Budget(max(budget.runs - 1, 1), budget.seconds - (time.monotonic() - begun))
        trials = lab.confirm(question, entry.arrivals, left)
        version = client.server_version()
        evidence = {name: evidence_of(members[name], config, version) for name, config in originals.items()}
    choice, held = chosen(goal, trials)
    return TunedPipeline(
        model.name, question, tuple(trials), choice, held, shares, evidence, entry.arrivals, runs,
        time.monotonic() - begun, machine(), date(),
    )  # fmt: skip


class _Lab:
    """The borrowed pipeline and all that is sent to it."""

    def __init__(
        self,
        client: Client,
        model: ServedModel,
        stages: tuple[Stage, ...],
        originals: Mapping[str, Any],
        scratch: Path,
        say: Say,
    ) -> None:
        from repogen.load.payload import pool

        self.pool = pool(model, batch=1, count=_POOL, seed=0)
        self.scratch, self.say = scratch, say
        configs = tuple(originals[stage.model] for stage in stages)
        payloads = save_payloads(scratch / "payloads.npz", self.pool)
        self.whole = Whole(client, model.name, stages, configs, payloads, scratch / "samples")
        self.current: Settings = tuple(setting_of_step(config) for config in configs)

    def calibrate(self, limits: tuple[int, int]) -> tuple[Pipeline, tuple[float, ...], int]:
        """Return what is known of the pipeline, each step's part of the time, and how many runs that took."""
        whole, current = self.whole, self.current
        self.say(f"calibrating {len(whole.stages)} steps in place: {len(self.pool)} requests, one by one")
        batched = [bool(config.max_batch_size) for config in whole.originals]
        parts = traffic(whole.client, whole.ensemble, whole.stages, batched, self.pool)
        closed = [whole.run(current, _CLOSED, users=users) for users in _USERS]
        most = result([closed[-1]]).summary.rate
        self.say(f"{_USERS[-1]} clients reach {most:.3g}/s")
        loads = []
        for part in _PARTS:
            seconds = min(max(_OPEN_REQUESTS / (part * most), _OPEN_SECONDS[0]), _OPEN_SECONDS[1])
            loads.append(whole.run(current, seconds, arrivals="poisson", rate=part * most))
        runs = [pipeline_live.seen(one, whole.stages, current) for one in (*closed, *loads)]
        pipeline = calibrated(whole.stages, parts, runs)
        shares = _shares(closed[0], whole.stages)
        for number, share in enumerate(shares):
            if share >= _WORTH:
                pipeline = self._by_itself(pipeline, number, limits)
        return pipeline, shares, len(runs)

    def _by_itself(self, pipeline: Pipeline, number: int, limits: tuple[int, int]) -> Pipeline:
        """Add how a step behaves with more instances: asked directly, with what earlier steps made of the pool."""
        stage, setting = self.whole.stages[number], self.current[number]
        counts = sorted({setting.instances, *limits})
        if len(counts) == 1:
            return pipeline
        self.say(f"{stage.model} by itself, {counts[0]} to {counts[-1]} instances")
        given = [walked(self.whole.client, self.whole.stages[: number + 1], one)[number] for one in self.pool]
        payloads = save_payloads(self.scratch / f"{stage.model}.npz", given)
        alone = replace(self.whole, ensemble=stage.model, payloads=payloads)
        found = {}
        for count in counts:
            settings = tuple(
                replace(one, instances=count) if n == number else one for n, one in enumerate(self.current)
            )
            spent = observe.from_json(alone.run(settings, _ALONE, users=2 * counts[-1]).server).statistics
            if spent is None or not spent.requests:
                raise Refused(f"{stage.model} by itself answered nothing", hint="see the server's log")
            found[count] = (spent.compute_input_ns + spent.compute_infer_ns + spent.compute_output_ns) / spent.requests
        return with_instances(pipeline, number, setting.instances, found)

    def confirm(self, question: PipelineQuestion, arrivals: str, budget: Budget) -> list[PipelineTrial]:
        """Measure the best by prediction, what is served and the default, as far as the budget goes."""
        begun = time.monotonic()
        trials: list[PipelineTrial] = []
        goal = question.goal
        rate = goal.rate or 0.0
        seconds = min(max(_TAIL * 100 / (100 - goal.percentile) / rate, _SHORTEST), _LONGEST)
        for role, settings in to_measure(question, budget.runs):
            if trials and time.monotonic() - begun > budget.seconds:
                break
            samples = self.whole.run(settings, seconds, arrivals=arrivals, rate=rate)
            trials.append(PipelineTrial(settings, rate, role, question.predicted(settings), folded(samples, goal)))
            self.say(f"{role}: {words(question, trials[-1])}")
        return trials


def words(question: PipelineQuestion, trial: PipelineTrial) -> str:
    """Return a trial in words."""
    seen = trial.measured
    took = f"{seen.latency * 1e3:.1f} ms" if seen.valid else f"void ({seen.reason})"
    predicted = f"{trial.predicted * 1e3:.1f} predicted"
    return f"{settings_words(question, trial.settings)}: {question.goal.name} {took}, {predicted}"


def settings_words(question: PipelineQuestion, settings: Settings) -> str:
    """Return what differs from what is served, step by step."""
    rows = zip(question.pipeline.stages, question.current, settings, strict=True)
    changed = [f"{stage.model}: {new.words()}" for stage, now, new in rows if now != new]
    return "; ".join(changed) or "as served"


def _shares(samples: Any, stages: Sequence[Stage]) -> tuple[float, ...]:
    did = result([samples]).served
    return tuple(did.share(did.members[stage.model]) for stage in stages)
