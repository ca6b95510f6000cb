"""Unit tests of the rules, for `promtool test rules`: a world in which all is well, and one for each alert. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repogen.export.monitoring_rules import Alert, Group
from repogen.export.watched import Timing, Watched

Series = dict[str, str]
Asked = tuple[int, str, "str | None"]
"""At which second, which query, and the labels of the one sample with the value 1; None where there is to be none."""

_REASONS = ("REJECTED", "OTHER", "BACKEND", "CANCELED")
_EACH = {"queue": 100, "compute_input": 50, "compute_infer": 1800, "compute_output": 50}  # us of a request
_SLACK = 12  # evaluations, until rates are there and what depends on what is computed


@dataclass(frozen=True)
class Case:
    name: str
    series: tuple[tuple[str, str], ...]
    asked: tuple[Asked, ...]


def cases(what: Watched, groups: Sequence[Group]) -> tuple[Case, ...]:
    """Return one case for each alert in `groups`, after the one in which none fires."""
    alerts = [alert for group in groups for alert in group.alerts]
    well = _well(what)
    end = max(alert.wait for alert in alerts) + _SLACK * what.timing.scrape
    first = Case("nothing fires where all is well", tuple(well.items()), ((end, _firing(""), None),))
    return (first, *(_case(alert, what, well) for alert in alerts))


def _case(alert: Alert, what: Watched, well: Mapping[str, str]) -> Case:
    model, changed = _ill(alert.name, what)
    series = {name: changed.get(name, values) for name, values in well.items()} | changed
    labels = f'{{alertname="{alert.name}"' + (f',model="{model}"}}' if model else "}")
    at = alert.wait + _SLACK * what.timing.scrape
    asked: list[Asked] = [(at, _firing(alert.name), labels)]
    if alert.wait:
        asked.insert(0, (what.timing.scrape, _firing(alert.name), None))  # not at once
    if alert.name == "TritonDown":
        asked.append((at, _firing("TritonModelNotReady"), None))
    present = tuple((name, values) for name, values in series.items() if values)
    return Case(f"{alert.name} fires", present, tuple(asked))


def _firing(name: str) -> str:
    which = f'alertname="{name}",' if name else ""
    return f'max by (alertname, model) (ALERTS{{{which}alertstate="firing"}})'


def _well(what: Watched) -> Series:
    series = {'up{job="triton",instance="triton:8002"}': _steady(1, what.timing)}
    for model in what.models:
        series |= _model(model, what)
    series |= _host(what, memory=0.5, disk=0.5)
    return series | (_gpu(what, memory=0.5, busy=0.5) if what.gpus else {})


def _ill(alert: str, what: Watched) -> tuple[str, Series]:
    """Return whose alert it is, "" where it is not a model's, and what makes it fire."""
    timing, model = what.timing, what.models[0]
    requests = _requests(timing)
    if alert == "TritonLatencyHigh":
        model, quantile, limit = what.objectives[0]
        return model, {_quantile(model, quantile): _steady(2e6 * limit, timing)}
    if alert == "TritonNoBatches":
        return what.batched[0][0], _waiting(what.batched[0][0], what)
    if alert == "TritonQueueFull":
        model, size = what.bounded[0]
        return model, {_metric("pending_request_count", model): _steady(size, timing)}
    by_name: dict[str, tuple[str, Series]] = {
        "TritonDown": (
            "",
            {'up{job="triton",instance="triton:8002"}': _steady(0, timing), _up(model): _steady(0, timing)},
        ),
        "TritonModelNotReady": (model, {_up(model): _steady(0, timing)}),
        "TritonRejecting": (model, {_failure(model, "REJECTED"): _growing(requests / 10, timing)}),
        "TritonFailing": (model, {_failure(model, "BACKEND"): _growing(requests / 10, timing)}),
        "TritonQueueing": (model, _waiting(model, what)),
        "TritonColdStart": (
            model,
            {
                _up(model): f"0x{_SLACK // 2} {_steady(1, timing)}",
                _quantile(model, "0.5"): _steady(2e3, timing),
                _quantile(model, "0.99"): _steady(4e4, timing),
            },
        ),
        "TritonGpuMemoryFull": ("", _gpu(what, memory=0.97, busy=0.5)),
        "TritonGpuSaturated": ("", _gpu(what, memory=0.5, busy=0.99) | _waiting(model, what)),
        "TritonGpuUnseen": ("", dict.fromkeys(_gpu(what, memory=0.5, busy=0.5), "")),
        "GpuError": (
            "",
            {'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="a"}': f"0x{_SLACK // 2} {_steady(79, timing)}"},
        ),
        "HostMemoryLow": ("", _host(what, memory=0.01, disk=0.5)),
        "HostDiskFull": ("", _host(what, memory=0.5, disk=0.05)),
    }
    return by_name[alert]


def _model(model: str, what: Watched) -> Series:
    timing = what.timing
    requests = _requests(timing)
    series = {
        _up(model): _steady(1, timing),
        _metric("request_success", model): _growing(requests, timing),
        _metric("count", model): _growing(requests, timing),
        _metric("exec_count", model): _growing(requests, timing),
        _metric("request_duration_us", model): _growing(requests * sum(_EACH.values()), timing),
        _metric("pending_request_count", model): _steady(0, timing),
    }
    series |= {_failure(model, reason): _steady(0, timing) for reason in _REASONS}
    for phase, each in _EACH.items():
        series[_metric(f"{phase}_duration_us", model)] = _growing(requests * each, timing)
    series |= {_quantile(model, "0.5"): _steady(2e3, timing), _quantile(model, "0.99"): _steady(3e3, timing)}
    kept = {_quantile(name, quantile): limit for name, quantile, limit in what.objectives if name == model}
    return series | {name: _steady(5e5 * limit, timing) for name, limit in kept.items()}


def _waiting(model: str, what: Watched) -> Series:
    """Return a model whose requests wait for twice what is wanted, most of their time."""
    queue = _requests(what.timing) * what.queue_target * 2e6
    return {
        _metric("queue_duration_us", model): _growing(queue, what.timing),
        _metric("request_duration_us", model): _growing(queue * 1.25, what.timing),
    }


def _host(what: Watched, *, memory: float, disk: float) -> Series:
    where = 'instance="node-exporter:9100"'
    place = f'{{{where},mountpoint="/",fstype="ext4"}}'
    return {
        f"node_memory_MemAvailable_bytes{{{where}}}": _steady(memory * 1e9, what.timing),
        f"node_memory_MemTotal_bytes{{{where}}}": _steady(1e9, what.timing),
        f"node_filesystem_avail_bytes{place}": _steady(disk * 1e9, what.timing),
        f"node_filesystem_size_bytes{place}": _steady(1e9, what.timing),
    }


def _gpu(what: Watched, *, memory: float, busy: float) -> Series:
    where = '{instance="triton:8002",gpu_uuid="GPU-0"}'
    return {
        f"nv_gpu_utilization{where}": _steady(busy, what.timing),
        f"nv_gpu_memory_used_bytes{where}": _steady(memory * 8e10, what.timing),
        f"nv_gpu_memory_total_bytes{where}": _steady(8e10, what.timing),
    }


def _up(model: str) -> str:
    return f'up{{job="triton-models",instance="triton:8000",model="{model}"}}'


def _metric(name: str, model: str) -> str:
    return f'nv_inference_{name}{{model="{model}",version="1"}}'


def _failure(model: str, reason: str) -> str:
    return f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}'


def _quantile(model: str, quantile: str) -> str:
    return f'nv_inference_request_summary_us{{model="{model}",version="1",quantile="{quantile}"}}'


def _requests(timing: Timing) -> int:
    """Return how many come between two scrapes: 100 a second."""
    return 100 * timing.scrape


def _steady(value: float, timing: Timing) -> str:
    return f"{value:.10g}x{_steps(timing)}"


def _growing(step: float, timing: Timing) -> str:
    return f"0+{step:.10g}x{_steps(timing)}"


def _steps(timing: Timing) -> int:
    return max(timing.long, timing.start) // timing.scrape + 2 * _SLACK
