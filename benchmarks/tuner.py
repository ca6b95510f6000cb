"""The tuner against an exhaustive grid that is measured for real, on the embedded Triton.

    python benchmarks/tuner.py --cache DIR [--only sleeper|text_rec|mlp] [--stages tune,grid,finals] [--part 1/4]
    python benchmarks/tuner.py --cache DIR --stages "" --json FILE       the table, of what is in the cache

The grid screens (it is cached and goes on where it was interrupted). Then the tuner's choice and the grid's best three
are measured again, interleaved, five times. The sustainable rate of a setting is the highest at which P99 stays within
the objective, found by halving the range of rates with open-loop runs.

`--part 1/4` measures each fourth setting of the grid, or of the five rounds of finals: parts may run side by side, each
on two cores of its own (`taskset -c 0,1 …`); their files in the cache are told apart by the part.

JSON on the last line: workloads: [{name, grid_settings, best_rate, chosen_rate, ratio, ratio_low, ratio_high,
measurements, tuner_s, grid_s, errors, p99_error_median, p99_error_worst}].
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import sleeper

from repogen import server
from repogen.desired import chosen
from repogen.embedded import embed
from repogen.load.payload import pool
from repogen.model import ServedModel
from repogen.publish import write_model
from repogen.render import render
from repogen.triton import Client
from repogen.tune.journal import Journal, setting_from
from repogen.tune.live import Bench, save_payloads
from repogen.tune.override import borrowed, setting_of
from repogen.tune.search import Budget, joined
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal
from repogen.tune.tuning import Tuned, tune_live
from repogen.tune_schema import TuneEntry

EXAMPLES = Path(__file__).parents[1] / "examples"
REPEATS, FINALISTS = 5, 3
AROUND, FINE_STEPS = 1.3, 4
"""The finals look from a rate this much lower than the screened one to one as much higher, by so many halvings."""
FINAL = 4.0  # seconds of their runs at the least
ENOUGH = 4000  # answers of a run: 40 beyond P99
ANSWERED = 0.97
"""The part of the rate that was asked for which must be answered in time."""
RUNS = 8
STAGES = ("tune", "grid", "finals")
CAPACITY = 0.85
"""Predictions are scored up to this part of what full batches could serve."""
SLEEPER = """\
triton: "26.08"
repository: models
models:
  sleeper:
    source: sleeper.py
    backend: python
    max_batch_size: 16
    instances: [{kind: cpu}]
    inputs: {x: {dtype: FP32, dims: [4]}}
    outputs: {y: {dtype: FP32, dims: [4]}}
    dynamic_batching: {max_queue_delay: 5ms}
"""
TEXT_REC = f"""\
triton: "26.08"
repository: models
models:
  text_rec:
    source: {EXAMPLES}/models/text_rec.onnx
    max_batch_size: 8
    shapes:
      x.2: {{min: 48, opt: 48, max: 48}}
      p2o.DynamicDimension.1: {{min: 32, opt: 64, max: 320}}
    instances: [{{kind: cpu}}]
    dynamic_batching: {{max_queue_delay: 5ms}}
"""
MLP = """\
triton: "26.08"
repository: models
models:
  mlp:
    source: mlp.onnx
    max_batch_size: 16
    instances: [{kind: cpu}]
    dynamic_batching: {max_queue_delay: 5ms}
"""


@dataclass(frozen=True)
class Case:
    """A workload: its model, its objective in milliseconds, the range of rates and its halvings, and the grid."""

    name: str
    slo: int
    rates: tuple[float, float]
    steps: int
    delays: tuple[int, ...]
    preferred: tuple[tuple[int, ...], ...]
    prepare: Callable[[Path], Path]  # returns the manifest
    shortest: float = 6.0  # seconds of a screening run

    def grid(self, base: Setting) -> list[Setting]:
        return [
            replace(base, instances=instances, delay=delay, preferred=preferred)
            for instances in (1, 2)
            for delay in self.delays
            for preferred in self.preferred
        ]


def _sleeper(folder: Path) -> Path:
    (folder / "sleeper.py").write_text(sleeper.MODEL)
    return _manifest(folder, SLEEPER)


def _mlp(folder: Path) -> Path:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    sizes = (256, 1024, 1024, 256)
    nodes, constants, last = [], [], "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = rng.standard_normal((rows, columns), dtype=np.float32) / rows**0.5
        constants.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"]),
            helper.make_node("Relu", [f"m{index}"], [f"r{index}"]),
        ]
        last = f"r{index}"
    nodes[-1].output[0] = "y"
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 256]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "mlp", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "mlp.onnx")
    return _manifest(folder, MLP)


def _manifest(folder: Path, text: str) -> Path:
    path = folder / "repogen.yaml"
    path.write_text(text)
    return path


FIVE = (0, 500, 1000, 2000, 5000)
CASES = (
    Case("sleeper", 30, (300, 8000), 6, FIVE, ((), (2,), (4, 8), (8,)), _sleeper, 4.0),
    Case("text_rec", 100, (40, 800), 7, (0, 2000, 10_000), ((), (4, 8)), lambda folder: _manifest(folder, TEXT_REC)),
    Case("mlp", 30, (200, 8000), 8, (0, 1000, 5000), ((), (4, 8)), _mlp),
)


@dataclass(frozen=True)
class Part:
    """One of several processes that share a stage's work, and the files that all of them write into `cache`."""

    cache: Path
    name: str
    index: int = 0
    count: int = 1

    @property
    def path(self) -> Path:
        return self.cache / f"tuner-{self.name}-{self.index + 1}of{self.count}.json"

    @property
    def tuned(self) -> Path:
        return self.cache / f"tuner-{self.name}-tuned.json"

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return what all parts have measured."""
        files = sorted(self.cache.glob(f"tuner-{self.name}-*of*.json"))
        return [row for file in files for row in sleeper.saved(file).get(kind, [])]

    def add(self, kind: str, row: dict[str, Any]) -> None:
        known = sleeper.saved(self.path)
        known.setdefault(kind, []).append(row)
        sleeper.save(self.path, known)


@contextmanager
def serving(case: Case, folder: Path) -> Iterator[tuple[Client, ServedModel]]:
    """Serve the workload's model by its stand-in."""
    _, (model,) = chosen(case.prepare(folder), (case.name,))
    stand_in = embed(model, cpus=len(os.sched_getaffinity(0)))
    repository = folder / "embedded"
    repository.mkdir()
    write_model(stand_in, render(stand_in), repository / model.name)
    with server.start(repository) as triton, Client(triton.grpc) as client:
        yield client, model


@dataclass(frozen=True)
class Screen(Bench):
    """Runs that may be shorter than the tuner's where there are many to make."""

    shortest: float = 6.0

    def seconds(self, rate: float) -> float:
        return max(super().seconds(rate) if rate < ENOUGH / self.shortest else 0.0, self.shortest)


def sustainable(bench: Bench, setting: Setting, case: Case, rates: tuple[float, float], steps: int) -> dict[str, Any]:
    """Return the highest rate that was held, of those at which halving the range (by its logarithm) arrives."""
    low, high = rates
    held, runs = 0.0, []
    begun = time.monotonic()
    for _ in range(steps):
        rate = float(f"{(low * high) ** 0.5:.3g}")
        seen = bench.measure(setting, rate)
        if not seen.valid:  # once more: the sender was late, or the machine stood still
            seen = bench.measure(setting, rate)
        runs.append([rate, seen.latency, seen.low, seen.high, seen.requests, seen.reason])
        if seen.latency <= case.slo * 1e-3 and seen.rate >= ANSWERED * rate:
            low, held = rate, max(held, rate)
        else:
            high = rate
    return {"setting": asdict(setting), "rate": held, "seconds": time.monotonic() - begun, "runs": runs}


def measure_grid(bench: Bench, case: Case, part: Part) -> None:
    """Screen this part's settings; what is in the cache is not measured again."""
    done = {setting_from(row["setting"]) for row in part.rows("grid")}
    for setting in case.grid(setting_of(bench.original))[part.index :: part.count]:
        if setting not in done:
            row = sustainable(bench, setting, case, case.rates, case.steps)
            part.add("grid", row)
            print(f"{case.name}: {setting.words()}: {row['rate']:g}/s", flush=True)


def finalists(part: Part) -> list[tuple[Setting, float]]:
    """Return the tuner's choice and the best of the grid, each with the rate around which it is measured again."""
    screened = {setting_from(row["setting"]): row["rate"] for row in part.rows("grid")}
    best = sorted(screened, key=lambda setting: -screened[setting])[:FINALISTS]
    tuned = sleeper.saved(part.tuned)
    choice = setting_from(tuned["setting"])
    return [(choice, tuned["rate"]), *((s, screened[s]) for s in best if s != choice)]


def measure_finals(bench: Bench, case: Case, part: Part) -> None:
    """Measure the finalists in turn, this part's rounds of five."""
    for number in range(part.index, REPEATS, part.count):
        for setting, rate in finalists(part):
            mine = (row for row in part.rows("finals") if setting_from(row["setting"]) == setting)
            if not any(row["round"] == number for row in mine):
                around = (rate / AROUND, rate * AROUND)
                row = sustainable(bench, setting, case, around, FINE_STEPS)
                part.add("finals", row | {"round": number})
                print(f"{case.name}, round {number + 1}: {setting.words()}: {row['rate']:g}/s", flush=True)


def tune(client: Client, model: ServedModel, case: Case, part: Part) -> None:
    """Let the tuner answer, and keep what it said."""
    if part.tuned.exists():
        return
    entry = TuneEntry.model_validate({"slo": {"p99": f"{case.slo}ms"}, "rate": "max", "instances": 2})
    journal = Journal(part.cache / f"tuner-{case.name}.jsonl")
    tuned = tune_live(client, model, entry, journal, Budget(RUNS), say=lambda text: print(text, flush=True))
    choice = tuned.answer.choice
    if choice is None:
        raise SystemExit(f"{case.name}: the tuner recommends nothing")
    told = {
        "setting": asdict(choice.setting),
        "rate": choice.rate,
        "measurements": tuned.calibrations + len(tuned.answer.trials),
        "seconds": tuned.seconds,
        "errors": scored(tuned),
        "trials": [asdict(trial) for trial in tuned.answer.trials],
    }
    sleeper.save(part.tuned, told)


def scored(tuned: Tuned) -> list[float]:
    """Return the errors of the predictions that were made before each run, up to 85 % of capacity."""
    predictor = tuned.answer.predictor
    trials = joined([trial for trial in tuned.answer.trials if trial.measured.valid])
    return [t.error for t in trials if predictor.at(t.setting, t.rate).load <= CAPACITY]


def run(case: Case, part: Part, stages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(case, folder) as (client, model):
            if "tune" in stages:
                tune(client, model, case, part)
            payloads = save_payloads(folder / "requests.npz", pool(model, batch=1, count=16, seed=1))
            with borrowed(client, model.name, Journal(folder / "grid.jsonl")) as original:
                told = (client, original, payloads, folder / "samples", "poisson", Goal(case.slo * 1e-3))
                if "grid" in stages:
                    measure_grid(Screen(*told, case.shortest), case, part)
                if "finals" in stages:
                    measure_finals(Screen(*told, FINAL), case, part)


def result(part: Part) -> dict[str, Any]:
    """Return the figures of what is in the cache."""
    tuned, grid = sleeper.saved(part.tuned), part.rows("grid")
    chosen_setting = setting_from(tuned["setting"])
    rates: dict[Setting, list[float]] = {}
    for row in part.rows("finals"):
        rates.setdefault(setting_from(row["setting"]), []).append(row["rate"])
    others = {setting: found for setting, found in rates.items() if setting != chosen_setting}
    top = max(others, key=lambda setting: statistics.median(others[setting]))
    mine, theirs = rates[chosen_setting], others[top]
    low, high = resampled(mine, theirs)
    errors = [abs(error) for error in tuned["errors"]] or [float("nan")]
    return {
        "name": part.name,
        "grid_settings": len(grid),
        "best": top.words(),
        "best_rate": statistics.median(theirs),
        "chosen": chosen_setting.words(),
        "chosen_rate": statistics.median(mine),
        "ratio": statistics.median(mine) / statistics.median(theirs),
        "ratio_low": low,
        "ratio_high": high,
        "rounds": min(len(mine), len(theirs)),
        "measurements": tuned["measurements"],
        "tuner_s": tuned["seconds"],
        "grid_s": sum(row["seconds"] for row in grid),
        "errors": tuned["errors"],
        "p99_error_median": statistics.median(errors),
        "p99_error_worst": max(errors),
    }


def resampled(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the ratio of medians, by drawing the rounds again."""
    import random

    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(mine, k=len(mine))) / statistics.median(draw.choices(theirs, k=len(theirs)))
        for _ in range(2000)
    )
    return ratios[100], ratios[-100]


def table(rows: Sequence[dict[str, Any]]) -> None:
    print("| workload | grid | best of it | /s | chosen | /s | ratio [90 %] | measurements | time / grid | P99 error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        errors = f"median {row['p99_error_median']:.1%}, worst {row['p99_error_worst']:.1%} of {len(row['errors'])}"
        print(
            f"| {row['name']} | {row['grid_settings']} | {row['best']} | {row['best_rate']:g} "
            f"| {row['chosen']} | {row['chosen_rate']:g} "
            f"| {row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}] | {row['measurements']} "
            f"| {row['tuner_s']:.0f} / {row['grid_s']:.0f} s | {errors} |"
        )


def raw(part: Part) -> dict[str, Any]:
    return {"tuned": sleeper.saved(part.tuned), "grid": part.rows("grid"), "finals": part.rows("finals")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--only", choices=[case.name for case in CASES])
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--json", type=Path, help="the figures with every run")
    options = parser.parse_args()
    index, count = map(int, options.part.split("/"))
    cases = [case for case in CASES if options.only in (None, case.name)]
    parts = {case.name: Part(options.cache, case.name, index - 1, count) for case in cases}
    for case in cases:
        if options.stages:
            run(case, parts[case.name], options.stages.split(","))
    whole = [part for part in parts.values() if part.rows("finals") and part.tuned.exists()]
    found = {"machine": f"{len(os.sched_getaffinity(0))} cores", "workloads": [result(part) for part in whole]}
    table(found["workloads"])
    if options.json:
        options.json.write_text(json.dumps(found | {"raw": {part.name: raw(part) for part in whole}}, indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
