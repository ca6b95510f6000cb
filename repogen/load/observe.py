"""What the server says of itself over the measured window: statistics, config, and its metrics once a second."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from repogen.errors import RepogenError, ServerError
from repogen.triton import BatchStatistics, Client, Statistics

_EVERY = 1.0
_BESIDE = 1
"""Metrics are by default on port 8002 where gRPC is on 8001."""
_GAUGES = {
    "nv_gpu_utilization": "gpu_use",
    "nv_gpu_memory_used_bytes": "gpu_memory",
    "nv_gpu_power_usage": "gpu_power",
    "nv_cpu_utilization": "cpu_use",
    "nv_cpu_memory_used_bytes": "cpu_memory",
}
_LINE = re.compile(r"^(nv_[a-z_]+)(\{[^}]*\})? ([-+0-9.eE]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Batching:
    """What of a live config decides whether requests are merged."""

    max_batch_size: int = 0
    dynamic: bool = False
    delay: int = 0  # microseconds
    preferred: tuple[int, ...] = ()
    instances: int = 1
    ragged: bool = True  # requests of any shape may be merged, or there is but one shape


@dataclass(frozen=True)
class Gauge:
    """A metric's mean and most over the window; of several GPUs, the sum of bytes and watts, the mean of use."""

    mean: float
    most: float


@dataclass(frozen=True)
class Observation:
    """The server over the measured window. `problem` says why there are no statistics.

    `members` has those of the models that an ensemble calls, in the order of its steps.
    """

    statistics: Statistics | None = None
    batching: Batching = field(default_factory=Batching)
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    problem: str = ""
    restarted: bool = False
    members: Mapping[str, Statistics] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(told: Mapping[str, Any]) -> Observation:
    """Return the observation that `to_json` gave; an empty one for {}."""
    if not told:
        return Observation(problem="the run was killed before the server was asked")
    statistics = _statistics(told["statistics"]) if told["statistics"] else None
    members = {name: _statistics(row) for name, row in told.get("members", {}).items()}
    batching = {**told["batching"], "preferred": tuple(told["batching"]["preferred"])}
    gauges = {name: Gauge(**gauge) for name, gauge in told["gauges"].items()}
    return Observation(statistics, Batching(**batching), gauges, told["problem"], told["restarted"], members)


def _statistics(told: Mapping[str, Any]) -> Statistics:
    batches = tuple(BatchStatistics(**row) for row in told["batches"])
    return Statistics(**{**told, "batches": batches})


class Observer:
    """Asks the server at the beginning and at the end of the window, and for its metrics in between."""

    def __init__(self, client: Client, model: str, *, batching: Batching, metrics: str = "") -> None:
        self._client = client
        self._model = model
        self._batching = batching
        self._metrics = metrics
        self._members = members_of(client, model)
        self._before: Mapping[str, Statistics] = {}
        self._pages: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="metrics")

    def begin(self) -> None:
        self._before = self._counters()
        if self._metrics:
            self._thread.start()

    def end(self) -> Observation:
        """Return what happened since `begin`; a server that is gone is a problem, not an error."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)
        gauges = summarise(self._pages)
        if not self._before:
            return Observation(None, self._batching, gauges, "the run ended before its warm-up did")
        try:
            after = self._counters()
        except ServerError as error:
            return Observation(None, self._batching, gauges, f"the server was lost: {error.message}")
        spent = {name: _difference(after.get(name), before) for name, before in self._before.items()}
        over = next((name for name, between in spent.items() if between is None), None)
        if over is not None:
            whose = "its" if over == self._model else f"{over}'s"
            problem = f"{whose} statistics started over: reloaded, or restarted"
            return Observation(spent[self._model], self._batching, gauges, problem, restarted=True)
        members = {name: between for name, between in spent.items() if between and name != self._model}
        return Observation(spent[self._model], self._batching, gauges, members=members)

    def _counters(self) -> Mapping[str, Statistics]:
        """Return the counters of the model, and of those that it calls as they were at the same moment."""
        if not self._members:
            return {self._model: self._client.statistics(self._model)}
        return self._client.statistics_of((self._model, *self._members))

    def _watch(self) -> None:
        while not self._stop.is_set():
            page = _page(self._metrics)
            ours = page is not None and f'model="{self._model}"' in page
            if not ours and not self._pages:
                return  # no metrics here, or another server's
            self._pages.append(page or "")
            self._stop.wait(_EVERY)


def metrics_address(url: str) -> str:
    """Return where metrics are by default: one port above gRPC's."""
    host, colon, port = url.rpartition("://")[2].rpartition(":")
    return f"{host}:{int(port) + _BESIDE}" if colon and port.isdecimal() else ""


def batching_of(config: Any) -> Batching:
    """Return what a live `ModelConfig` says of batching."""
    dynamic = config.HasField("dynamic_batching")
    free = any(-1 in tensor.dims for tensor in config.input)
    ragged = all(tensor.allow_ragged_batch for tensor in config.input if -1 in tensor.dims)
    return Batching(
        max_batch_size=config.max_batch_size,
        dynamic=dynamic,
        delay=config.dynamic_batching.max_queue_delay_microseconds,
        preferred=tuple(config.dynamic_batching.preferred_batch_size),
        instances=sum(group.count * max(len(group.gpus), 1) for group in config.instance_group) or 1,
        ragged=ragged or not free,
    )


def members_of(client: Client, model: str) -> tuple[str, ...]:
    """Return the models that an ensemble calls, each once and in the order of its steps; none of any other model.

    In the place of an ensemble that it calls are those that this one calls: they do the work.
    """
    steps = client.config(model).ensemble_scheduling.step
    found = (name for step in steps for name in members_of(client, step.model_name) or (step.model_name,))
    return tuple(dict.fromkeys(found))


def summarise(pages: list[str]) -> dict[str, Gauge]:
    """Fold pages of metrics into the gauges that people look at."""
    seen: dict[str, list[float]] = {}
    for page in pages:
        values: dict[str, list[float]] = {}
        for name, _, value in _LINE.findall(page):
            if name in _GAUGES:
                values.setdefault(name, []).append(float(value))
        for name, numbers in values.items():
            total = sum(numbers) / (len(numbers) if name.endswith("utilization") else 1)
            seen.setdefault(_GAUGES[name], []).append(total)
    return {name: Gauge(sum(numbers) / len(numbers), max(numbers)) for name, numbers in seen.items()}


def _difference(after: Statistics | None, before: Statistics) -> Statistics | None:
    try:
        return after - before if after else None
    except RepogenError:
        return None


def _page(address: str) -> str | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=1) as answer:
            return str(answer.read().decode(errors="replace"))
    except (OSError, ValueError):
        return None
