"""The tuner against an exhaustive grid that is measured for real, on the embedded Triton.

    python benchmarks/tuner.py --cache DIR [--only sleeper|text_rec|mlp]

The grid screens (it is cached and goes on where it was interrupted). Then the tuner's choice and the grid's best three
are measured again, interleaved, five times. The sustainable rate of a setting is the highest at which P99 stays within
the objective, found by halving the range of rates with open-loop runs.

JSON on the last line: workloads: [{name, grid_settings, best_rate, chosen_rate, ratio, ratio_low, ratio_high,
measurements, tuner_s, grid_s, p99_error_median, p99_error_worst}].
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

EXAMPLES = Path(__file__).parents[1] / "examples" / "repogen.yaml"
REPEATS, FINALISTS = 5, 3
STEPS = 4
RUNS = 8
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
    """A workload: its model, its objective in milliseconds, the range of rates, and the grid."""

    name: str
    slo: int
    rates: tuple[float, float]
    delays: tuple[int, ...]
    preferred: tuple[tuple[int, ...], ...]
    prepare: Callable[[Path], Path]  # returns the manifest

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
    Case("sleeper", 30, (50, 4000), FIVE, ((), (2,), (4, 8), (8,)), _sleeper),
    Case("text_rec", 400, (1, 100), (0, 2000, 10_000), ((), (4, 8)), lambda _: EXAMPLES),
    Case("mlp", 30, (20, 4000), (0, 1000, 5000), ((), (4, 8)), _mlp),
)


@contextmanager
def serving(case: Case, folder: Path) -> Iterator[tuple[Client, ServedModel]]:
    """Serve the workload's model by its stand-in."""
    _, (model,) = chosen(case.prepare(folder), (case.name,))
    stand_in = embed(model, cpus=os.cpu_count() or 1)
    repository = folder / "embedded"
    repository.mkdir()
    write_model(stand_in, render(stand_in), repository / model.name)
    with server.start(repository) as triton, Client(triton.grpc) as client:
        yield client, model


def sustainable(bench: Bench, setting: Setting, case: Case) -> float:
    """Return the highest rate that was held, of those at which halving the range (by its logarithm) arrives."""
    low, high = case.rates
    held = 0.0
    for _ in range(STEPS + 2):
        rate = float(f"{(low * high) ** 0.5:.3g}")
        seen = bench.measure(setting, rate)
        if seen.latency <= case.slo * 1e-3 and not seen.reason:
            low, held = rate, max(held, rate)
        else:
            high = rate
    return held


def measure_grid(bench: Bench, case: Case, path: Path) -> list[tuple[Setting, float]]:
    """Return the sustainable rate of each setting of the grid; what is in the file is not measured again."""
    known = sleeper.saved(path)
    rows = known.setdefault("grid", [])
    done = {setting_from(row["setting"]) for row in rows}
    for setting in case.grid(setting_of(bench.original)):
        if setting in done:
            continue
        begun = time.monotonic()
        rate = sustainable(bench, setting, case)
        rows.append({"setting": asdict(setting), "rate": rate, "seconds": time.monotonic() - begun})
        print(f"{case.name}: {setting.words()}: {rate:g}/s", flush=True)
        sleeper.save(path, known)
    return [(setting_from(row["setting"]), row["rate"]) for row in rows]


def finals(bench: Bench, case: Case, settings: Sequence[Setting], path: Path) -> dict[Setting, list[float]]:
    """Measure the finalists in turn, five times round."""
    known = sleeper.saved(path)
    rounds = known.setdefault("finals", [])
    for number in range(REPEATS):
        for setting in settings:
            if any(row["round"] == number and setting_from(row["setting"]) == setting for row in rounds):
                continue
            rounds.append({"round": number, "setting": asdict(setting), "rate": sustainable(bench, setting, case)})
            sleeper.save(path, known)
    found: dict[Setting, list[float]] = {}
    for row in rounds:
        found.setdefault(setting_from(row["setting"]), []).append(row["rate"])
    return {setting: found[setting] for setting in settings}


def tuner_run(client: Client, model: ServedModel, case: Case, path: Path) -> Tuned:
    entry = TuneEntry.model_validate({"slo": {"p99": f"{case.slo}ms"}, "rate": "max", "instances": 2})
    return tune_live(client, model, entry, Journal(path), Budget(RUNS), say=lambda text: print(text, flush=True))


def scored(tuned: Tuned) -> list[float]:
    """Return the errors of the predictions that were made before each run, up to 85 % of capacity."""
    predictor = tuned.answer.predictor
    trials = joined([trial for trial in tuned.answer.trials if trial.measured.valid])
    return [abs(t.error) for t in trials if predictor.at(t.setting, t.rate).load <= CAPACITY]


def run(case: Case, cache: Path) -> dict[str, Any]:
    path = cache / f"tuner-{case.name}.json"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(case, folder) as (client, model):
            tuned = tuner_run(client, model, case, cache / f"tuner-{case.name}.jsonl")
            payloads = save_payloads(folder / "requests.npz", pool(model, batch=1, count=16, seed=1))
            with borrowed(client, model.name, Journal(folder / "grid.jsonl")) as original:
                bench = Bench(client, original, payloads, folder / "samples", "poisson", Goal(case.slo * 1e-3))
                grid = measure_grid(bench, case, path)
                best = [setting for setting, _ in sorted(grid, key=lambda row: -row[1])[:FINALISTS]]
                choice = tuned.answer.choice
                if choice is None:
                    return {"name": case.name, "grid_settings": len(grid), "chosen_rate": 0.0}
                settings = list(dict.fromkeys([choice.setting, *best]))
                rates = finals(bench, case, settings, path)
    return {**_result(case, tuned, grid, rates, choice.setting), "grid_s": _seconds(path)}


def _result(
    case: Case,
    tuned: Tuned,
    grid: Sequence[tuple[Setting, float]],
    rates: dict[Setting, list[float]],
    chosen_setting: Setting,
) -> dict[str, Any]:
    others = {s: r for s, r in rates.items() if s != chosen_setting} or rates
    top = max(others, key=lambda s: statistics.median(others[s]))
    mine, theirs = rates[chosen_setting], others[top]
    ratios = sorted(a / b for a in mine for b in theirs if b)
    errors = scored(tuned) or [float("nan")]
    return {
        "name": case.name,
        "grid_settings": len(grid),
        "best_rate": statistics.median(theirs),
        "chosen_rate": statistics.median(mine),
        "ratio": statistics.median(mine) / statistics.median(theirs),
        "ratio_low": ratios[int(0.05 * len(ratios))],
        "ratio_high": ratios[min(int(0.95 * len(ratios)), len(ratios) - 1)],
        "chosen": chosen_setting.words(),
        "best": top.words(),
        "measurements": tuned.calibrations + len(tuned.answer.trials),
        "tuner_s": tuned.seconds,
        "p99_error_median": statistics.median(errors),
        "p99_error_worst": max(errors),
    }


def _seconds(path: Path) -> float:
    return float(sum(row["seconds"] for row in sleeper.saved(path)["grid"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--only", choices=[case.name for case in CASES])
    options = parser.parse_args()
    found = [run(case, options.cache) for case in CASES if options.only in (None, case.name)]
    print(json.dumps({"machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", "workloads": found}))


if __name__ == "__main__":
    main()
