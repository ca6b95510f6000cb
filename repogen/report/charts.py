"""The charts of a load test: which figures of a run go where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from repogen.load.intervals import percentile
from repogen.load.metrics import Result, latencies
from repogen.load.samples import Samples
from repogen.report import svg

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_MS = 1e-6
_S = 1e-9
_SLICES = 100
_LEAST = 100
"""Requests that a stretch of time has at least."""
_MARKS = (("P0", 0.0), ("P50", 50.0), ("P90", 90.0), ("P99", 99.0), ("P99.9", 99.9), ("P99.99", 99.99))
_STEPS = 24
_BIN_LIMIT = 40


def over_time(samples: Sequence[Samples]) -> str:
    """Return P50, P99 and the slowest request of each stretch of the run."""
    import numpy as np

    begin = min(part.conditions.epoch + part.conditions.begin for part in samples)
    due, taken = _by_time(samples)
    if not len(taken):
        return ""
    seconds = (due - begin) * _S
    slices = max(min(_SLICES, len(taken) // _LEAST), 1)
    edges = np.linspace(seconds.min(), seconds.max() + 1e-9, slices + 1)
    cuts = np.searchsorted(seconds, edges)
    series: dict[str, list[tuple[float, float]]] = {"slowest": [], "P99": [], "P50": []}
    for low, high, middle in zip(cuts[:-1], cuts[1:], (edges[:-1] + edges[1:]) / 2, strict=True):
        if high > low:
            piece = np.sort(taken[low:high])
            for name, percent in (("slowest", 100), ("P99", 99), ("P50", 50)):
                series[name].append((float(middle), percentile(piece, percent) * _MS))
    most = max(value for _, value in series["slowest"])
    x = svg.linear(float(seconds.max()), "seconds")
    kept = [svg.Line(name, points, colour) for colour, (name, points) in zip((3, 2, 1), series.items(), strict=True)]
    return svg.lines(kept, x, svg.linear(most, "ms"), "Latency over time")


def distribution(samples: Sequence[Samples]) -> str:
    """Return the latency below which each part of the requests lies, the rare ones drawn apart."""
    import numpy as np

    ordered = np.sort(latencies(samples))
    if not len(ordered):
        return ""
    rarest = min(1e4, max(len(ordered), 2))
    points = []
    for step in range(_STEPS * 4 + 1):
        rarity = 10 ** (step / _STEPS)
        if rarity <= rarest:
            points.append((rarity, percentile(ordered, f"{100 - 100 / rarity:.6f}") * _MS))
    ticks = tuple((100 / (100 - percent), name) for name, percent in _MARKS)
    x = svg.Axis(1, 1e4, "percentile (each tenth as rare)", ticks, log=True)
    line = svg.Line("latency", points, 1)
    return svg.lines([line], x, svg.linear(points[-1][1], "ms"), "Distribution of latency")


def against_rate(results: Sequence[Result]) -> str:
    """Return P50 and P99 of several runs over the rate that was answered."""
    ordered = sorted((one for one in results if one.summary.p50 is not None), key=lambda one: one.summary.rate)
    if len(ordered) < 2:  # noqa: PLR2004 - one point is no line
        return ""
    series, most = [], 0.0
    for name, colour in (("P99", 2), ("P50", 1)):
        chosen = [(one.summary, getattr(one.summary, name.lower())) for one in ordered]
        known = [(seen, value) for seen, value in chosen if value is not None]
        spans = [_span(seen) if name == "P99" else None for seen, _ in known]
        most = max([most, *(value for _, value in known), *(span[1] for span in spans if span)])
        points = [(seen.rate, value) for seen, value in known]
        series.append(svg.Line(name, points, colour, whiskers=spans, dots=True))
    x = svg.linear(ordered[-1].summary.rate, "answers a second")
    return svg.lines(series, x, svg.linear(most, "ms"), "Latency against rate")


def batches(result: Result) -> str:
    """Return how many executions had each batch size."""
    rows = result.served.batches
    if not rows or result.served.members:  # an ensemble merges nothing: its steps do
        return ""
    total = sum(count for _, count in rows)
    groups = _grouped(rows)
    values = [(name, count / total * 100, f"batch {name}: {count:,} executions") for name, count in groups]
    y = svg.linear(max(value for _, value, _ in values), "% of executions")
    return svg.bars(values, y, "batch size", "Batch sizes")


def phases(result: Result) -> str:
    """Return where the server's time went."""
    did = result.served
    parts = (
        ("queue", did.queue),
        ("input", did.compute_input),
        ("infer", did.compute_infer),
        ("output", did.compute_output),
    )
    return svg.stacked(parts, "ms", "Queue and compute") if did.requests else ""


def steps(result: Result) -> str:
    """Return where the time went in each step of an ensemble."""
    did = result.served
    rows = [
        (f"{name} {did.share(one):.0%}", (("queue", one.queue), ("compute", one.compute)))
        for name, one in did.members.items()
    ]
    if did.between > 0:
        rows.append((f"between them {did.between / did.total:.0%}", (("queue", 0.0), ("compute", did.between))))
    return svg.rows(rows, "ms a request", "Steps of the pipeline") if rows else ""


def _by_time(samples: Sequence[Samples]) -> tuple[Array, Array]:
    import numpy as np

    chosen = [(part, part.measured & (part.status == 0)) for part in samples]
    due = np.concatenate([part.intended[keep] + part.conditions.epoch for part, keep in chosen])
    taken = np.concatenate([(part.done - part.intended)[keep] for part, keep in chosen])
    order = np.argsort(due, kind="stable")
    return due[order], taken[order]


def _span(seen: Any) -> tuple[float, float] | None:
    return None if seen.p99_low is None else (seen.p99_low, seen.p99_high)


def _grouped(rows: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return every size up to the largest, those without executions included; ranges where there are too many."""
    found = dict(rows)
    largest = max(found)
    wide = -(-largest // _BIN_LIMIT)
    groups = []
    for low in range(1, largest + 1, wide):
        high = min(low + wide - 1, largest)
        count = sum(found.get(size, 0) for size in range(low, high + 1))
        groups.append((str(low) if low == high else f"{low}-{high}", count))
    return groups
