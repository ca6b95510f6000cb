"""The tuner on a real GPU: BERT-base as a TensorRT fp16 plan behind the embedded Triton, one request a sentence.

    python benchmarks/tuner_gpu.py --work DIR --json results.json [--stages tune,points,rates]

DIR is that of `tensorrt_gpu.py --stages make,build --models bert --precisions fp16`: its model and its plan are used.
`tune` runs `repogen tune` for the highest rate with a P99 of 20 ms. `points` measures P99 at 30, 60 and 80 % of the
capacity and predicts it, with constants from the calibration alone. `rates` finds the highest Poisson rate that the
tuned setting, Triton's default and no batching hold for 60 s. `--rehearse` tries it without a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import sleeper  # noqa: E402
import tensorrt_gpu  # noqa: E402

from repogen.desired import chosen  # noqa: E402
from repogen.load.payload import pool  # noqa: E402
from repogen.triton import Client  # noqa: E402
from repogen.tune.arrivals import Arrivals  # noqa: E402
from repogen.tune.batcher import Workload, simulate  # noqa: E402
from repogen.tune.forecast import Predictor  # noqa: E402
from repogen.tune.journal import Journal, run_from, setting_from  # noqa: E402
from repogen.tune.live import Bench, save_payloads  # noqa: E402
from repogen.tune.override import borrowed, setting_of  # noqa: E402
from repogen.tune.service import Calibration, ClosedRun, calibrate  # noqa: E402
from repogen.tune.setting import Setting  # noqa: E402
from repogen.tune.space import triton_default  # noqa: E402
from repogen.tune.trial import Goal  # noqa: E402

MODEL = "bert_fp16"
STAGES = ("tune", "points", "rates")
LOADS, DELAYS = (0.3, 0.6, 0.8), (0, 1000, 5000)
HALVINGS, SECONDS, TRIES = 4, 60.0, 4
ENDS = (0.6, 1.3)  # of the predicted capacity: where the halving begins


class Long(Bench):
    """Runs of one minute."""

    def seconds(self, rate: float) -> float:  # noqa: ARG002 - as Bench has it
        return float(os.environ.get("BENCH_SECONDS", SECONDS))


def manifest(work: Path, slo: int, *, rehearse: bool) -> Path:
    """Write the manifest of the one model that tensorrt_gpu.py built, with what is asked of the tuner."""
    made = tensorrt_gpu.Run(work, "", rehearse, 1, time.monotonic(), ("fp16",), ("bert",))
    text = tensorrt_gpu.manifest(made).read_text().replace("count: 2", "count: 1")
    path = work / "tune.yaml"
    path.write_text(
        text + f"    dynamic_batching: {{}}\n    tune: {{slo: {{p99: {slo}ms}}, rate: max, instances: 2}}\n"
    )
    return path


def tune(work: Path, path: Path, found: dict[str, Any], environment: dict[str, str]) -> None:
    """Run the tuner as a user does, in the server's own command."""
    tuner = [sys.executable, "-m", "repogen", "tune", "-f", str(path), "-m", MODEL, "--json"]
    serve = [sys.executable, "-m", "repogen", "serve", "-q", "-f", str(path), "-m", MODEL, "--"]
    out = work / "tuned.json"
    script = [sys.executable, "-c", _KEEP, str(out), *tuner]
    subprocess.run([*serve, *script], check=True, env=environment)
    found["tuned"] = json.loads(out.read_text())["tuned"][0]


_KEEP = """
import os, pathlib, subprocess, sys
done = subprocess.run([*sys.argv[2:], "--url", os.environ["REPOGEN_URL"]], stdout=subprocess.PIPE, check=False)
pathlib.Path(sys.argv[1]).write_bytes(done.stdout)
sys.exit(0 if done.returncode in (0, 1) else done.returncode)
"""


def calibration(work: Path, *, closed: bool = False) -> Calibration:
    """Return what the tuner's calibration found; `closed`: from the clients that wait alone."""
    (path,) = work.glob(f".repogen/*/tune/{MODEL}.jsonl")
    services = {}
    for entry in Journal(path).entries():
        if entry["kind"] == "calibration":
            runs = [run_from(row) for row in entry["runs"]]
            services[entry["instances"]] = calibrate([r for r in runs if isinstance(r, ClosedRun) or not closed])
    return Calibration(services)


def points(bench: Bench, base: Setting, work: Path) -> list[dict[str, Any]]:
    """Measure P99 where nobody fitted anything, and predict it with the constants of the calibration."""
    both = {"calibrated": calibration(work), "closed loops": calibration(work, closed=True)}
    capacity = Predictor(both["calibrated"]).ceiling(base)
    rows = []
    for delay in DELAYS:
        for load in LOADS:
            setting, rate = replace(base, delay=delay), round(load * capacity)
            seen = bench.measure(setting, rate)
            row = {"setting": setting.words(), "load": load, "rate": rate, "measured": asdict(seen)}
            for name, known in both.items():
                row[name] = predicted(setting, rate, known)
            rows.append(row)
            print(
                f"{setting.words()} at {rate}/s: {seen.latency * 1e3:.2f} ms, {row['calibrated'] * 1e3:.2f} predicted"
            )
    return rows


def predicted(setting: Setting, rate: float, known: Calibration) -> float:
    """Return P99 in seconds, the mean over five seeds."""
    service = known.service(setting.instances).at(rate)
    found = []
    for seed in range(5):
        times = Arrivals().draw(rate, 20_000, seed).tolist()
        outcome = simulate(setting, Workload(times), service.cycles(setting.max_batch), service.jitter(seed))
        found.append(sorted(outcome.latencies + service.gaps(seed, len(times)))[int(0.99 * len(times))])
    return float(sum(found) / len(found))


def sustained(bench: Bench, long: Bench, setting: Setting, slo: float, guess: float) -> dict[str, Any]:
    """Return the highest rate whose P99 stayed within `slo` for a minute: halving by short runs, then whole minutes."""
    low, high = (end * guess for end in ENDS)
    runs = []
    for _ in range(HALVINGS):
        rate = round((low * high) ** 0.5)
        seen = bench.measure(setting, rate)
        runs.append([rate, asdict(seen)])
        low, high = (rate, high) if seen.latency <= slo and seen.rate > 0.97 * rate else (low, rate)
    for step in range(TRIES):
        rate = round(low * 0.96**step)
        seen = long.measure(setting, rate)
        runs.append([rate, asdict(seen)])
        if seen.latency <= slo and seen.rate > 0.97 * rate:
            break
    held = rate if seen.latency <= slo else 0
    print(f"{setting.words()}: {held}/s for {seen.seconds:.0f} s, P99 {seen.latency * 1e3:.2f} ms", flush=True)
    return {"setting": setting.words(), "rate": held, "p99": seen.latency, "mean_batch": seen.mean_batch, "runs": runs}


def inside(stage: str, work: Path, path: Path, slo: float, out: Path) -> None:
    """Measure on the server in whose command this runs."""
    _, (model,) = chosen(path, (MODEL,))
    folder = work / "inside"
    with (
        Client(os.environ["REPOGEN_URL"]) as client,
        borrowed(client, MODEL, Journal(folder / "journal.jsonl")) as config,
    ):
        payloads = save_payloads(folder / "payloads.npz", pool(model, batch=1, count=64, seed=0))
        told = (client, config, payloads, folder / "samples", "poisson", Goal(slo))
        bench, long, base = Bench(*told), Long(*told), triton_default(setting_of(config))
        if stage == "points":
            out.write_text(json.dumps(points(bench, base, work)))
            return
        tuned = setting_from(json.loads((work / "tuned.json").read_text())["tuned"][0]["choice"]["setting"])
        predictor = Predictor(calibration(work))
        alone = replace(base, batching=False)
        rows = {}
        for name, setting in (("tuned", tuned), ("default", base), ("no batching", alone)):
            rows[name] = sustained(bench, long, setting, slo, predictor.capacity(setting, slo, 8000))
            out.write_text(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--slo", type=int, default=20, help="milliseconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    work = asked.work.resolve()
    path = work / "tune.yaml"
    if asked.inside:
        inside(asked.stages, work, path, asked.slo * 1e-3, asked.inside)
        return
    manifest(work, asked.slo, rehearse=asked.rehearse)
    told = tensorrt_gpu.Run(work, "", asked.rehearse, 1, time.monotonic(), ("fp16",), ("bert",))
    environment = tensorrt_gpu.environment(told)
    found = sleeper.saved(work / "tuner_gpu.json")
    for stage in asked.stages.split(","):
        begun = time.monotonic()
        if stage == "tune":
            tune(work, path, found, environment)
        else:
            serve = [sys.executable, "-m", "repogen", "serve", "-q", "-f", str(path), "-m", MODEL, "--"]
            out = work / f"{stage}.json"
            again = [sys.executable, str(HERE / "tuner_gpu.py"), "--work", str(work), "--stages", stage]
            subprocess.run([*serve, *again, "--slo", str(asked.slo), "--inside", str(out)], check=True, env=environment)
            found[stage] = json.loads(out.read_text())
        found.setdefault("seconds", {})[stage] = time.monotonic() - begun
        sleeper.save(work / "tuner_gpu.json", found)
        print(f"{stage}: {time.monotonic() - begun:.0f} s", flush=True)
    report(found, asked.json)


def report(found: dict[str, Any], path: Path | None) -> None:
    if points_ := found.get("points"):
        print("| setting | load | rate/s | P99 ms | predicted | closed loops alone | mean batch |")
        print("|---|---|---|---|---|---|---|")
        for row in points_:
            seen = row["measured"]
            print(
                f"| {row['setting']} | {row['load']:.0%} | {row['rate']} | {seen['latency'] * 1e3:.2f} "
                f"| {row['calibrated'] * 1e3:.2f} | {row['closed loops'] * 1e3:.2f} | {seen['mean_batch']:.1f} |"
            )
    if rates := found.get("rates"):
        print("| | setting | rate/s for 60 s | P99 ms | mean batch |\n|---|---|---|---|---|")
        for name, row in rates.items():
            print(f"| {name} | {row['setting']} | {row['rate']} | {row['p99'] * 1e3:.2f} | {row['mean_batch']:.1f} |")
        if {"tuned", "no batching"} <= rates.keys() and rates["no batching"]["rate"]:
            found["ratio"] = rates["tuned"]["rate"] / rates["no batching"]["rate"]
            print(f"tuned / no batching: {found['ratio']:.2f}")
    if path:
        path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
