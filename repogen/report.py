"""Results of load tests as text for people."""

from collections.abc import Sequence
from typing import TextIO

from repogen.load.metrics import Result

_PIPE_WIDTH = 160
"""Columns where there is no terminal to ask."""


def as_text(results: Sequence[Result], stream: TextIO) -> None:
    """Write what the clients saw, what the server did, and what is to be known of either."""
    from rich.console import Console

    width = None if stream.isatty() else _PIPE_WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False)
    for title, header, rows in (_clients(results), _server(results)):
        console.print(_table(title, header, rows))
    for line in _remarks(results):
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
        "users",
        "batch",
        "rate/s",
        "mean",
        "P50",
        "P90",
        "P95",
        "P99",
        "max",
        "requests",
        "errors",
    ]
    rows = []
    for result in results:
        seen = result.summary
        latencies = (seen.mean, seen.p50, seen.p90, seen.p95, seen.p99, seen.max)
        rows.append(
            [
                result.model,
                str(result.users),
                str(result.batch),
                f"{seen.rate:.1f}",
                *map(_ms, latencies),
                str(seen.requests),
                str(seen.errors),
            ]
        )
    return "Clients (latency in ms)", header, rows


def _server(results: Sequence[Result]) -> tuple[str, list[str], _Rows]:
    header = [
        "model",
        "queue",
        "input",
        "infer",
        "output",
        "executions",
        "mean batch",
        "batch size x executions",
    ]
    rows = []
    for result in results:
        did = result.served
        phases = (did.queue, did.compute_input, did.compute_infer, did.compute_output)
        sizes = "  ".join(f"{size}x{count}" for size, count in did.batches)
        rows.append([result.model, *map(_ms, phases), str(did.executions), f"{did.mean_batch:.2f}", sizes])
    return "Server (mean ms a request, by Triton's statistics)", header, rows


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _remarks(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        failed = [f"{count} failed: {message}" for message, count in result.summary.failures]
        said = [*failed, *result.summary.notes, result.served.note]
        lines += [f"{result.model}: {text}" for text in said if text]
    return lines
