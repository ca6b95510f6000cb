"""Results of load tests as CSV: one run a line."""

import csv
from collections.abc import Sequence
from typing import TextIO

from repogen.load.metrics import Result

_SEEN = [
    "requests",
    "errors",
    "seconds",
    "rate",
    "inferences",
    "mean",
    "p50",
    "p90",
    "p95",
    "p99",
    "p99_low",
    "p99_high",
    "p999",
    "p9999",
    "max",
    "first_p50",
    "first_p99",
    "lateness_p50",
    "lateness_p99",
]
_DID = ["queue", "compute_input", "compute_infer", "compute_output", "executions", "mean_batch"]


def as_csv(results: Sequence[Result], stream: TextIO) -> None:
    """Write a header and a line for each run; milliseconds, and nothing where a figure is not known."""
    writer = csv.writer(stream, lineterminator="\n")
    head = ["model", "arrivals", "target_rate", "users", "batch", *_SEEN]
    writer.writerow([*head, *(f"server_{name}" for name in _DID), "server_batches", "valid", "reasons"])
    for one in results:
        seen = [_plain(getattr(one.summary, name)) for name in _SEEN]
        did = [_plain(getattr(one.served, name)) for name in _DID]
        batches = " ".join(f"{size}x{count}" for size, count in one.served.batches)
        told = [one.model, one.arrivals, _plain(one.target_rate), one.users, one.batch]
        writer.writerow([*told, *seen, *did, batches, one.verdict.valid, "; ".join(one.verdict.reasons)])


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
