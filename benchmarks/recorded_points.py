"""Predict open-loop latencies that were recorded on a GPU, with constants fitted on the closed-loop runs alone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repogen.tune.arrivals import Arrivals
from repogen.tune.batcher import Workload, simulate
from repogen.tune.service import ClosedRun, Latencies, Service, calibrate
from repogen.tune.setting import Setting

MAX_BATCH = 32
REQUESTS = 20_000
SEEDS = 5
UP_TO = 0.8
"""Of the capacity: above it a few per cent of capacity decide everything, and nothing can be predicted."""


@dataclass(frozen=True)
class Row:
    """One open-loop point: the load as a part of capacity, and P99 in milliseconds."""

    backend: str
    setting: str
    load: float
    rate: float
    measured: float
    predicted: float
    measured_batch: float
    predicted_batch: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def scored(self) -> bool:
        return self.load <= UP_TO


def recorded(folder: Path) -> list[Row]:
    """Return a row for every open-loop point of a folder with closed1.json, open.json and the native backend's."""
    native = _points(folder / "native_tensorrt_backend.json")
    python = [*_points(folder / "closed1.json"), *_points(folder / "open.json")]
    return [row for name, points in (("python", python), ("tensorrt", native)) for row in _rows(name, points)]


def _points(path: Path) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads(path.read_text())["points"]
    return points


def _rows(backend: str, points: Sequence[dict[str, Any]]) -> list[Row]:
    mine = [(setting, point) for point in points if (setting := _setting(point["model"])) and setting.instances == 1]
    runs = [_closed(setting, point) for setting, point in mine if point["mode"] == "closed"]
    service = calibrate(runs)
    print(
        f"{backend}: {service.per_request * 1e3:.4f} ms a request, {service.per_batch * 1e3:.4f} ms a batch, "
        f"spread {service.spread:.2f}, from {len(runs)} closed-loop runs"
    )
    single = max(run.samples / run.seconds for run in runs if not run.setting.batching)
    return [_row(backend, setting, point, service, single) for setting, point in mine if point["mode"] == "open"]


def _setting(name: str) -> Setting | None:
    """Return the setting of d1000_i1 (a delay of 1000 us) or n_i1 (no batching); None for other experiments."""
    what, _, instances = name.partition("_i")
    if what == "n":
        return Setting(MAX_BATCH, int(instances), batching=False)
    return Setting(MAX_BATCH, int(instances), int(what[1:])) if what[:1] == "d" and what[1:].isdigit() else None


def _closed(setting: Setting, point: dict[str, Any]) -> ClosedRun:
    return ClosedRun(
        setting,
        point["conc"],
        point["dur"],
        tuple((int(size), count, ms * 1e-3) for size, (count, ms) in point["hist"].items()),
        Latencies(*(point[key] * 1e-3 for key in ("mean", "p50", "p90", "p99", "max"))),
    )


def _row(backend: str, setting: Setting, point: dict[str, Any], service: Service, single: float) -> Row:
    rate = point["n"] / point["dur"]
    latencies, batches = [], []
    for seed in range(SEEDS):
        times = Arrivals().draw(rate, REQUESTS, seed).tolist()
        outcome = simulate(setting, Workload(times), service.cycles(MAX_BATCH), service.jitter(seed))
        seen = sorted(outcome.latencies + service.gaps(seed, REQUESTS))
        latencies.append(seen[int(0.99 * REQUESTS)])
        batches.append(outcome.mean_batch)
    load = point.get("frac") or round(rate / single, 2)
    return Row(
        backend,
        setting.words(),
        load,
        rate,
        point["p99"],
        sum(latencies) / SEEDS * 1e3,
        point["mean_batch"],
        sum(batches) / SEEDS,
    )
