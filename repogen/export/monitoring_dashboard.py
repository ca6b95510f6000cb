"""Grafana's dashboard: one for the repository, a row for each model. Pure.

Every query reads what the recording rules made, so that no window or division is written a second time.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from repogen.export.watched import Watched, span

_SCHEMA = 39  # of Grafana 10 to 12; newer ones migrate it by themselves
_WIDTH = 24
_HEIGHT = 7
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """`queries` are (PromQL, legend)."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False
    says: str = ""


def dashboard(what: Watched) -> dict[str, Any]:
    """Return the dashboard as Grafana's JSON."""
    return {
        "uid": what.name,
        "title": f"Triton: {what.name}",
        "tags": ["triton", "repogen"],
        "schemaVersion": _SCHEMA,
        "editable": False,
        "graphTooltip": 1,  # one cross hair over all panels
        "refresh": span(what.timing.scrape),
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_variable()]},
        "annotations": {"list": [_annotation()]},
        "panels": list(_laid_out(_rows(what))),
    }


def _rows(what: Watched) -> Iterator[tuple[str, Sequence[Panel]]]:
    yield "All models", _OVERVIEW
    for model in what.models:
        yield model, tuple(_of_model(model, what))
    if what.gpus:
        yield "GPUs", _GPUS
    yield "Hosts", _HOSTS


_OVERVIEW = (
    Panel("Ready", (("sum(triton:ready)", "ready"), ("count(triton:ready)", "models")), kind="stat"),
    Panel("Alerts firing", (('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),), kind="stat"),
    Panel("Requests", (("triton:requests:rate", "{{model}}"),), "reqps"),
    Panel("P99", (('triton:latency_seconds{quantile="0.99"}', "{{model}}"),), "s"),
    Panel(
        "Not answered",
        (("triton:rejection_share", "{{model}} rejected"), ("triton:failure_share", "{{model}} failed")),
        "percentunit",
    ),
    Panel("Share of time in the queue", (("triton:queue_share", "{{model}}"),), "percentunit"),
)
_GPUS = (
    Panel("Utilisation", (("triton:gpu_utilization", "{{instance}} {{gpu_uuid}}"),), "percentunit"),
    Panel("Memory", (("triton:gpu_memory_share", "{{instance}} {{gpu_uuid}}"),), "percentunit"),
    Panel("Power", (("nv_gpu_power_usage", "{{instance}} {{gpu_uuid}}"),), "watt"),
)
_HOSTS = (
    Panel("Memory free", (("host:memory_available_share", "{{instance}}"),), "percentunit"),
    Panel("Disk free", (("host:disk_available_share", "{{instance}}"),), "percentunit"),
)


def _of_model(model: str, what: Watched) -> Iterator[Panel]:
    which = f"model={json.dumps(model)}"
    objective = ((f"triton:slo_seconds{{{which}}}", "objective"),) if _promised(model, what) else ()
    largest = ((f"triton:max_batch_size{{{which}}}", "largest"),) if model in dict(what.batched) else ()
    bound = ((f"triton:max_queue_size{{{which}}}", "largest queue of one"),) if model in dict(what.bounded) else ()
    yield Panel(
        "Requests and failures",
        ((f"triton:requests:rate{{{which}}}", "answered"), (f"triton:failures:rate{{{which}}}", "{{reason}}")),
        "reqps",
    )
    yield Panel(
        "Latency",
        ((f"triton:latency_seconds{{{which}}}", "quantile {{quantile}}"), *objective),
        "s",
        says="Of the slowest server, over the last minute, as Triton's own summaries have it.",
    )
    yield Panel("Where the time goes", ((f"triton:phase_seconds{{{which}}}", "{{phase}}"),), "s", stacked=True)
    yield Panel(
        "Inferences an execution",
        ((f"triton:batch_size{{{which}}}", "mean"), *largest),
        says="1 where nothing was merged.",
    )
    yield Panel("Waiting requests", ((f"triton:pending_requests{{{which}}}", "on all servers"), *bound))
    yield Panel(
        "Starts",
        ((f"triton:ready{{{which}}}", "ready"), (f"triton:unready_seconds{{{which}}}", "seconds not ready, last hour")),
        says="A start or a reload that takes the model away shows as seconds not ready.",
    )


def _promised(model: str, what: Watched) -> bool:
    return any(name == model for name, _, _ in what.objectives)


def _laid_out(rows: Iterator[tuple[str, Sequence[Panel]]]) -> Iterator[dict[str, Any]]:
    """Return rows and panels with their places, three panels side by side."""
    numbers, y, across = count(1), 0, 3
    for title, panels in rows:
        yield {
            "id": next(numbers), "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }  # fmt: skip
        y += 1
        for index, panel in enumerate(panels):
            x, line = index % across * (_WIDTH // across), index // across
            place = {"x": x, "y": y + line * _HEIGHT, "w": _WIDTH // across, "h": _HEIGHT}
            yield {"id": next(numbers), "gridPos": place, **_panel(panel)}
        y += -(-len(panels) // across) * _HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    custom = {"custom": {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}} if panel.stacked else {}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **custom}, "overrides": []},
    }


def _variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _annotation() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertstate="firing"}',
    }
