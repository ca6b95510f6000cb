"""Results of load tests as text for people."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from repogen.load.metrics import Result
from repogen.load.observe import Gauge
from repogen.units import size_text

_PIPE_WIDTH = 180
"""Columns where there is no terminal to ask."""
_MS_IN_US = 1000


def as_text(results: Sequence[Result], stream: TextIO) -> None:
    """Write what the clients saw, what the server did, whether it holds, and what is to be known of either."""
    from rich.console import Console

    width = None if stream.isatty() else _PIPE_WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False)
    steps = [step_table(result) for result in results if result.served.members]
    for title, header, rows in (_clients(results), _server(results), *steps):
        console.print(_table(title, header, rows))
    for line in remarks(results):
        console.print(line)


_Rows = list[list[str]]


def _table(title: str, header: Sequence[str], rows: _Rows) -> object:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _clients(results: Sequence[Result]) -> tuple[str, list[str], _Rows]:
    header = [
        "model",
        "load",
        "batch",
        "rate/s",
        "mean",
        "P50",
        "P90",
        "P95",
        "P99",
        "P99.9",
        "max",
        "late",
        "requests",
        "errors",
        "verdict",
    ]
    rows = []
    for result in results:
        seen = result.summary
        latencies = (seen.mean, seen.p50, seen.p90, seen.p95)
        rows.append(
            [
                result.model,
                result.load,
                result.batch,
                f"{seen.rate:.1f}",
                *map(milliseconds, latencies),
                with_interval(seen.p99, seen.p99_low, seen.p99_high),
                *map(milliseconds, (seen.p999, seen.max)),
                milliseconds(seen.lateness_p99),
                str(seen.requests),
                str(seen.errors),
                "valid" if result.verdict.valid else "void",
            ]
        )
    return "Clients (latency in ms, from the instant a request was due; late: P99 of sending)", header, rows


def _server(results: Sequence[Result]) -> tuple[str, list[str], _Rows]:
    header = ["model", "queue", "input", "infer", "output", "executions", "mean batch", "batch size x executions"]
    rows = []
    for result in results:
        did = result.served
        phases = (did.queue, did.compute_input, did.compute_infer, did.compute_output)
        sizes = "  ".join(f"{size}x{count}" for size, count in did.batches)
        rows.append([result.model, *map(milliseconds, phases), str(did.executions), f"{did.mean_batch:.2f}", sizes])
    return "Server (mean ms a request, by Triton's statistics)", header, rows


def step_table(result: Result) -> tuple[str, list[str], _Rows]:
    """Return title, header and rows of what each step of an ensemble did."""
    header = ["step", "queue", "compute", "of all", "requests", "executions", "mean batch", "batch size x executions"]
    rows = [
        [
            name,
            milliseconds(did.queue),
            milliseconds(did.compute),
            f"{result.served.share(did):.0%}",
            str(did.requests),
            str(did.executions),
            f"{did.mean_batch:.2f}",
            "  ".join(f"{size}x{count}" for size, count in did.batches),
        ]
        for name, did in result.served.members.items()
    ]
    did = result.served
    if did.between > 0:
        rows.append(["between them", "", milliseconds(did.between), f"{did.between / did.total:.0%}", "", "", "", ""])
    return f"Steps of {result.model}, {result.load} (mean ms a request, of {milliseconds(did.total)})", header, rows


def milliseconds(value: float | None) -> str:
    """Write milliseconds with as many digits as mean something: 0.457, 20.00, 1049."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < _MS_IN_US else f"{value:.0f}"


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a percentile and where it lies at 95 %."""
    if value is None or low is None or high is None:
        return milliseconds(value)
    return f"{milliseconds(value)} [{milliseconds(low)}..{milliseconds(high)}]"


def gauge_words(gauges: Mapping[str, Gauge]) -> list[str]:
    """Say how busy the server's machine was."""
    names = {"gpu_use": "GPU", "cpu_use": "CPU"}
    said = [f"{names[key]} {one.mean:.0%} busy (most {one.most:.0%})" for key, one in gauges.items() if key in names]
    memories = {"gpu_memory": "GPU memory", "cpu_memory": "memory"}
    said += [f"{memories[key]} {size_text(int(one.most))}" for key, one in gauges.items() if key in memories]
    return said + [f"{one.mean:.0f} W" for key, one in gauges.items() if key == "gpu_power"]


def remarks(results: Sequence[Result]) -> list[str]:
    """Return what is to be known beside the figures, a line each."""
    lines = []
    for result in results:
        seen = result.summary
        failed = [f"{count} failed: {message}" for message, count in seen.failures]
        void = [] if result.verdict.valid else [str(result.verdict)]
        first = [f"first answer P50 {milliseconds(seen.first_p50)} ms"] if seen.first_p50 is not None else []
        machine = gauge_words(result.served.gauges)
        said = [*void, *failed, *seen.notes, *first, result.served.note, ", ".join(machine)]
        lines += [f"{result.model}: {text}" for text in said if text]
    return lines
