"""The simulator against the real Triton, and its speed.

    python benchmarks/batcher.py --cache DIR        29 combinations on the embedded server, resumable
    python benchmarks/batcher.py --recorded DIR     points recorded on a GPU, constants from closed loops only
    python benchmarks/batcher.py --speed            simulated requests a second, of one core's CPU time

`--json FILE` has every request's due time and latency beside the figures.
JSON on the last line: combinations, p99_mae, p99_worst, simulated_per_s.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sleeper
from recorded_points import recorded

from repogen.load import payload
from repogen.load.process import Generator
from repogen.load.spec import Spec
from repogen.triton import Client
from repogen.tune.batcher import Workload, simulate
from repogen.tune.journal import Journal, run_from
from repogen.tune.live import Bench, calibration_setting, folded
from repogen.tune.override import borrowed, put, setting_of
from repogen.tune.service import Service, calibrate
from repogen.tune.setting import QueuePolicy, Setting
from repogen.tune.trial import Goal

GOAL = Goal()
RATES = (200.0, 500.0, 800.0)
SECONDS, ANSWERS = 6.0, 1200
"""A run is so long, and longer where it has so few answers that its P99 says nothing."""
NOISY = 0.4
"""A P99 whose interval is wider than this part of it is measured again."""
STALL = 0.04
"""Seconds without an answer although a request waits: the model sleeps 6 ms at most, so the machine stood still."""
SEED = 4


def combinations() -> list[tuple[Setting, tuple[int, ...], float]]:
    """Return (setting, sizes of requests in turn, rate): delay x preferred x instances, and the special ones."""
    rows = []
    for delay in (0, 1000, 2000, 5000):
        for preferred in ((), (4, 8)):
            for instances in (1, 2):
                rates = RATES if not preferred and instances == 1 else (RATES[1],)
                rows += [(Setting(16, instances, delay, preferred), (1,), rate) for rate in rates]
    policy = QueuePolicy(timeout=500_000)
    rows += [(Setting(16, 1, 2000, policy=policy), (1,), rate) for rate in RATES]
    rows += [(Setting(16, 1, 1000), (1, 2, 3, 4), rate / 2.5) for rate in RATES]
    return rows


def duration(rate: float) -> float:
    return max(SECONDS, ANSWERS / rate)


def simulated(setting: Setting, sizes: Sequence[int], due: Any, service: Service) -> float:
    """Return the P99 in milliseconds of the very arrivals that were sent."""
    service = service.at(len(due) / float(due[-1] - due[0]))
    cycles = service.cycles(setting.max_batch, sum(sizes) / len(sizes))
    p99s = []
    for seed in range(5):
        spread = [sizes[index % len(sizes)] for index in range(len(due))] if tuple(sizes) != (1,) else ()
        workload = Workload(due.tolist(), sizes=spread)
        outcome = simulate(setting, workload, cycles, service.jitter(seed))
        seen = np.sort((outcome.latencies + service.gaps(seed, len(due)))[outcome.execution_of >= 0])
        p99s.append(float(seen[int(0.99 * len(seen))]) * 1e3)
    return sum(p99s) / len(p99s)


def measure(bench: Bench, setting: Setting, sizes: Sequence[int], rate: float, folder: Path) -> dict[str, Any]:
    """Run one combination; return its P99 in milliseconds, and the seconds at which its requests were due."""
    put(bench.client, sleeper.with_policy(bench.original, setting))
    path = folder / f"requests-{len(sizes)}.npz"
    payload.save(path, sleeper.requests(sizes))
    spec = Spec(
        url=bench.client.url,
        model=bench.model,
        folder=str(folder),
        name=f"run-{time.monotonic_ns()}",
        payloads=str(path),
        arrivals="poisson",
        rate=rate,
        warm_up=0.5,
        duration=duration(rate),
        seed=SEED,
    )
    generator = Generator(spec)
    try:
        generator.wait_ready(60)
        samples = generator.finish(duration(rate) + 120)
    finally:
        generator.close()
    seen = folded(samples, GOAL)
    stall = longest_stall(samples.sent, samples.done)
    stood_still = stall > STALL + setting.delay * 1e-6
    noisy = seen.high - seen.low > NOISY * seen.latency
    due = (samples.intended - samples.conditions.begin)[samples.measured] * 1e-9
    taken = (samples.done - samples.intended)[samples.measured] // 1000
    return {
        "p99": seen.latency * 1e3,
        "low": seen.low * 1e3,
        "high": seen.high * 1e3,
        "valid": seen.valid and not stood_still and not noisy,
        "reason": seen.reason
        or (f"nothing was answered for {stall * 1e3:.0f} ms" if stood_still else "")
        or ("the interval is too wide" if noisy else ""),
        "stall": stall,
        "mean_batch": seen.mean_batch,
        "due": [round(float(second), 6) for second in due],
        "latencies_us": taken.tolist(),
        "load": os.getloadavg()[0],
    }


def longest_stall(sent: Any, done: Any) -> float:
    """Return the longest time in seconds without an answer while the next one answered was under way."""
    order = np.argsort(done, kind="stable")
    ends, begins = done[order], sent[order]
    return float((ends[1:] - np.maximum(ends[:-1], begins[1:])).max()) * 1e-9


def against_triton(cache: Path, raw: Path | None) -> dict[str, Any]:
    """Measure what is not in the cache yet, simulate all of it, print the table."""
    known = sleeper.saved(cache / "batcher.json")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sleeper.serving(folder) as triton, Client(triton.grpc) as client:
            path = folder / "requests.npz"
            payload.save(path, sleeper.requests())
            with borrowed(client, sleeper.NAME, Journal(folder / "journal.jsonl")) as original:
                bench = Bench(client, original, path, folder, "poisson", GOAL)
                _fill(bench, known, cache, folder)
    return _score(known, raw)


def _fill(bench: Bench, known: dict[str, Any], cache: Path, folder: Path) -> None:
    from dataclasses import asdict

    base = setting_of(bench.original)
    for instances in (1, 2):
        if f"calibration {instances}" not in known:
            runs = bench.calibrate(calibration_setting(base, instances))
            known[f"calibration {instances}"] = [asdict(run) for run in runs]
            sleeper.save(cache / "batcher.json", known)
    for setting, sizes, rate in combinations():
        key = f"{setting.words()} timeout {setting.policy.timeout} sizes {len(sizes)} {rate:g}/s"
        tries = 0
        while not known.get(key, {}).get("valid") and tries < 3:
            known[key] = measure(bench, setting, sizes, rate, folder)
            sleeper.save(cache / "batcher.json", known)
            tries += 1


def _score(known: dict[str, Any], raw: Path | None = None) -> dict[str, Any]:
    services = {n: calibrate([run_from(row) for row in known[f"calibration {n}"]]) for n in (1, 2)}
    errors, rows = [], []
    print("| setting | requests | rate/s | P99 measured [95 %] ms | simulated ms | error |\n|---|---|---|---|---|---|")
    for setting, sizes, rate in combinations():
        key = f"{setting.words()} timeout {setting.policy.timeout} sizes {len(sizes)} {rate:g}/s"
        seen = known[key]
        predicted = simulated(setting, sizes, np.array(seen["due"]), services[setting.instances])
        error = predicted / seen["p99"] - 1
        void = "" if seen["valid"] else f" (void: {seen['reason']})"
        policy = ", queue policy" if setting.policy.timeout else ""
        print(
            f"| {setting.words()}{policy} | {'1' if len(sizes) == 1 else '1-4'} | {rate:g} "
            f"| {seen['p99']:.2f} [{seen['low']:.2f}, {seen['high']:.2f}]{void} | {predicted:.2f} | {error:+.1%} |"
        )
        rows.append({"setting": key, "simulated": predicted, "error": error, **seen})
        if seen["valid"]:
            errors.append(abs(error))
    if raw:
        calibrations = {n: known[f"calibration {n}"] for n in services}
        raw.write_text(json.dumps({"calibrations": calibrations, "rows": rows}, separators=(",", ":")))
    return {"combinations": len(errors), "p99_mae": float(np.mean(errors)), "p99_worst": float(max(errors))}


def speed() -> float:
    """Return simulated requests a second of CPU time: the slowest of six settings, each the best of three."""
    cycles = [0.0, *(FIXED_CYCLE + 0.00028 * size for size in range(1, 17))]
    rng = np.random.default_rng(0)
    jitter = rng.lognormal(0, 0.05, 4096).tolist()
    slowest = float("inf")
    for setting, rate in (
        (Setting(16), 300.0),
        (Setting(16), 1500.0),
        (Setting(16, 1, 2000), 300.0),
        (Setting(16, 1, 5000, (4, 8)), 1500.0),
        (Setting(16, 2, 2000), 300.0),
        (Setting(16, 2, 0, (4, 8)), 1500.0),
    ):
        workload = Workload(np.cumsum(rng.exponential(1 / rate, 60_000)).tolist())
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            simulate(setting, workload, cycles, jitter)
            best = min(best, time.process_time() - begun)
        print(f"{setting.words()} at {rate:g}/s: {60_000 / best:,.0f} requests/s")
        slowest = min(slowest, 60_000 / best)
    return slowest


FIXED_CYCLE = 0.0022


def against_recorded(folder: Path) -> dict[str, Any]:
    """Print the table of the recorded points; only those up to 80 % of capacity are scored."""
    rows = recorded(folder)
    print("| backend | setting | load | rate/s | P99 measured ms | simulated ms | error | mean batch | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        batches = f"{row.measured_batch:.1f} / {row.predicted_batch:.1f}"
        print(
            f"| {row.backend} | {row.setting} | {row.load:.0%} | {row.rate:.0f} | {row.measured:.2f} "
            f"| {row.predicted:.2f} | {row.error:+.1%} | {batches} | {'scored' if row.scored else ''} |"
        )
    scored = [abs(row.error) for row in rows if row.scored]
    return {"combinations": len(scored), "p99_mae": float(np.mean(scored)), "p99_worst": float(max(scored))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.speed:
        found: dict[str, Any] = {}
    elif options.recorded:
        found = against_recorded(options.recorded)
    else:
        found = against_triton(options.cache, options.json)
    print(json.dumps({**found, "simulated_per_s": round(speed())}))


if __name__ == "__main__":
    main()
