"""Raw samples and server statistics folded into the figures that people read; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from repogen.load.samples import Samples
from repogen.model import ServedModel
from repogen.triton import Statistics

if TYPE_CHECKING:
    import numpy as np

_MS = 1e-6  # of a nanosecond
_S = 1e-9
_MERGED = 1.1
"""Mean executions above this many requests count as batching."""


@dataclass(frozen=True)
class Summary:
    """What the clients saw. Latencies are in milliseconds and those of answered requests only.

    A percentile that the number of samples cannot carry is None (see `enough`).
    """

    requests: int
    errors: int
    seconds: float
    rate: float
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    failures: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """What the server did meanwhile, by its own count: mean milliseconds a request, batches formed."""

    requests: int
    failures: int
    executions: int
    inferences: int
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    mean_batch: float
    batches: tuple[tuple[int, int], ...]
    note: str = ""


@dataclass(frozen=True)
class Result:
    """One model under one load."""

    model: str
    users: int
    batch: int
    summary: Summary
    served: Served


def percentile(ordered: Sequence[int] | np.ndarray[Any, Any], percent: Fraction | int | str) -> int:
    """Return the nearest-rank percentile: the smallest sample that `percent` of all samples do not exceed."""
    rank = ceil(Fraction(percent) * len(ordered) / 100)
    return int(ordered[max(rank, 1) - 1])


def enough(percent: Fraction | int | str) -> int:
    """Return how many samples a percentile needs before a single one of them is expected above it."""
    return ceil(100 / (100 - Fraction(percent)))


def summarise(samples: Sequence[Samples]) -> Summary:
    """Fold the samples of one run; failed requests are counted, and lend their latency to no figure."""
    import numpy as np

    requests = sum(len(part.sent) for part in samples)
    spans = [int(part.done.max() - part.sent.min()) for part in samples if len(part.sent)]
    seconds = max(spans, default=0) * _S  # each process has its own clock
    none = np.array([], dtype=np.int64)
    latencies = np.sort(np.concatenate([none, *((p.done - p.sent)[p.status == 0] for p in samples)]))
    ok = len(latencies)
    failures: Counter[str] = Counter()
    for part in samples:
        failures.update(part.failures)
    return Summary(
        requests=requests,
        errors=requests - ok,
        seconds=seconds,
        rate=ok / seconds if seconds else 0.0,
        mean=float(latencies.mean()) * _MS if ok else None,
        **{f"p{p}": percentile(latencies, p) * _MS if ok >= enough(p) else None for p in (50, 90, 95, 99)},
        max=int(latencies[-1]) * _MS if ok else None,
        failures=tuple(failures.most_common()),
        notes=_notes(ok),
    )


def serve(statistics: Statistics, *, model: ServedModel, users: int, batch: int) -> Served:
    """Fold the server's counters of exactly the run, and say why no batches formed where none did."""
    requests = max(statistics.requests, 1)
    executions = statistics.executions
    mean_batch = statistics.inferences / executions if executions else 0.0
    queue = statistics.queue_ns / requests * _MS
    merged = not executions or mean_batch > _MERGED * batch
    return Served(
        requests=statistics.requests,
        failures=statistics.failures,
        executions=executions,
        inferences=statistics.inferences,
        queue=queue,
        compute_input=statistics.compute_input_ns / requests * _MS,
        compute_infer=statistics.compute_infer_ns / requests * _MS,
        compute_output=statistics.compute_output_ns / requests * _MS,
        mean_batch=mean_batch,
        batches=tuple((row.size, row.count) for row in statistics.batches),
        note="" if merged else f"no batches formed: {_why(model, users=users, batch=batch, queue=queue)}",
    )


def _why(model: ServedModel, *, users: int, batch: int, queue: float) -> str:
    instances = sum(group.count * max(len(group.gpus), 1) for group in model.instances)
    if model.max_batch_size == 0:
        return "max_batch_size is 0, so Triton never merges requests of this model"
    if 2 * batch > model.max_batch_size:
        return f"two requests of batch {batch} exceed max_batch_size {model.max_batch_size}"
    if model.dynamic_batching is None:
        return "dynamic_batching is off, so each request runs by itself"
    if users == 1:
        return "one user sends a request only after the last answer, so there is never another to merge with"
    if users <= instances:
        return f"{users} users find one of {instances} instances idle, so no request waits for another"
    delay = model.dynamic_batching.max_queue_delay
    return f"requests rarely met in the queue ({queue:.2f} ms there on average; max_queue_delay is {delay} us)"


def _notes(ok: int) -> tuple[str, ...]:
    missing = [p for p in (50, 90, 95, 99) if ok < enough(p)]
    return tuple(f"no P{p}: it needs {enough(p)} answered requests, there were {ok}" for p in missing)
