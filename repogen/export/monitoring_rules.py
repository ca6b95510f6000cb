"""Recording rules and alerts, as a table. Pure.

Everything is kept by model: servers come and go, and what people ask is how a model does. The dashboard and the
alerts read recorded series only, so each window and each division stands here and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from repogen.export.watched import Watched, span

RUNBOOK = "https://github.com/repogen/repogen/blob/main/docs/runbook.md"
REJECTED = 'reason="REJECTED"'
FAILED = 'reason!~"REJECTED|CANCELED"'
"""What the server could not do; what it would not do, and what clients took back, is something else."""
_PHASES = ("queue", "compute_input", "compute_infer", "compute_output")
_TOLERATED = 0.01
_WAITING = 0.5
_FULL = 0.95
_CROWDED = 0.8  # of a queue, on average: it was full most of the time


@dataclass(frozen=True)
class Record:
    """A series that is computed at each evaluation."""

    name: str
    expr: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Alert:
    """`wait` is for how many seconds `expr` must hold."""

    name: str
    severity: str  # critical: somebody is paged; warning: today; info: for who looks
    expr: str
    wait: int
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"


@dataclass(frozen=True)
class Group:
    name: str
    records: tuple[Record, ...]
    alerts: tuple[Alert, ...]


def groups(what: Watched) -> tuple[Group, ...]:
    """Return the rules for what there is to watch: no GPU, no rules on GPUs."""
    found = [
        Group("triton-promises", tuple(_promises(what)), ()),
        Group("triton-models", tuple(_records(what)), tuple(_alerts(what))),
        Group("hosts", _HOST_RECORDS, tuple(_host_alerts(what))),
    ]
    if what.gpus:
        found.append(Group("triton-gpus", _GPU_RECORDS, tuple(_gpu_alerts(what))))
    return tuple(found)


def _promises(what: Watched) -> Iterator[Record]:
    """Constants out of the manifest, so that one alert fits all models and the dashboard can draw the line."""
    yield Record("triton:queue_target_seconds", f"vector({what.queue_target:g})")
    for model, quantile, limit in what.objectives:
        yield Record("triton:slo_seconds", f"vector({limit:g})", {"model": model, "quantile": quantile})
    for model, size in what.batched:
        yield Record("triton:max_batch_size", f"vector({size})", {"model": model})
    for model, size in what.bounded:
        yield Record("triton:max_queue_size", f"vector({size})", {"model": model})


def _records(what: Watched) -> Iterator[Record]:
    def rate(metric: str, by: str = "model") -> str:
        return f"sum by ({by}) (rate({metric}[{span(what.timing.window)}]))"

    failures, scrape = "nv_inference_request_failure", what.timing.scrape
    ready = 'up{job="triton-models"}'
    asked = f"({rate('nv_inference_request_success')} + {rate(failures)})"
    yield Record("triton:requests:rate", rate("nv_inference_request_success"))
    yield Record("triton:failures:rate", rate(failures, "model, reason"))
    yield Record("triton:rejection_share", f"{rate(f'{failures}{{{REJECTED}}}')} / {asked}")
    yield Record("triton:failure_share", f"{rate(f'{failures}{{{FAILED}}}')} / {asked}")
    for phase in _PHASES:
        each = f"{rate(f'nv_inference_{phase}_duration_us')} / 1e6 / {rate('nv_inference_request_success')}"
        yield Record("triton:phase_seconds", each, {"phase": phase})
    waited = f"{rate('nv_inference_queue_duration_us')} / {rate('nv_inference_request_duration_us')}"
    yield Record("triton:queue_share", waited)
    yield Record("triton:batch_size", f"{rate('nv_inference_count')} / {rate('nv_inference_exec_count')}")
    if what.batched:
        # 0 where each request runs by itself, 1 where every execution is full, whatever the largest batch is.
        yield Record("triton:batch_fill", "(triton:batch_size - 1) / on (model) (triton:max_batch_size - 1)")
    # Quantiles of several servers cannot be added up: the worst one counts. >= 0 drops NaN, which is "no requests".
    slowest = "max by (model, quantile) (nv_inference_request_summary_us)"
    yield Record("triton:latency_seconds", f"{slowest} / 1e6 >= 0")
    yield Record("triton:pending_requests", "sum by (model) (nv_inference_pending_request_count)")
    if what.bounded:
        waiting = f"avg_over_time(nv_inference_pending_request_count[{span(what.timing.window)}])"
        yield Record("triton:queue_fill", f"max by (model) ({waiting}) / on (model) triton:max_queue_size")
    yield Record("triton:ready", f"min by (model) ({ready})")
    unready = f"max by (model) (count_over_time({ready}[1h]) - sum_over_time({ready}[1h])) * {scrape}"
    yield Record("triton:unready_seconds", unready)
    yield Record("triton:started", f"max by (model) (changes({ready}[{span(what.timing.sustained)}]) > bool 0)")


def _alerts(what: Watched) -> Iterator[Alert]:
    timing = what.timing
    yield Alert(
        "TritonDown", "critical", 'up{job="triton"} == 0 or absent(up{job="triton"})', timing.start,
        "No metrics from Triton{{ with $labels.instance }} at {{ . }}{{ end }}",
        f"Nothing has answered for {span(timing.start)}, longer than a start takes.",
    )  # fmt: skip
    yield Alert(
        "TritonModelNotReady", "critical", 'triton:ready == 0 and on () min(up{job="triton"}) == 1', timing.soon,
        "{{ $labels.model }} does not answer",
        "Its server is up and says that the model is not ready: its requests fail.",
    )  # fmt: skip
    yield Alert(
        "TritonRejecting", "critical", f"triton:rejection_share > {_TOLERATED}", timing.soon,
        "{{ $labels.model }} rejects {{ $value | humanizePercentage }} of its requests",
        "They outlive the time that the queue policy gives them. What finds the queue full comes on top, uncounted.",
    )  # fmt: skip
    if what.bounded:
        yield Alert(
            "TritonQueueFull", "critical", f"triton:queue_fill > {_CROWDED}", timing.soon,
            "The queue of {{ $labels.model }} is full",
            "Requests beyond max_queue_size are turned away, and Triton counts them nowhere.",
        )  # fmt: skip
    yield Alert(
        "TritonFailing", "critical", f"triton:failure_share > {_TOLERATED}", timing.soon,
        "{{ $labels.model }} fails {{ $value | humanizePercentage }} of its requests",
        "The backend or the server could not answer; rejected and cancelled requests are not counted.",
    )  # fmt: skip
    yield from _latency_alerts(what)


def _latency_alerts(what: Watched) -> Iterator[Alert]:
    timing = what.timing
    long_queue = 'triton:phase_seconds{phase="queue"} > on () group_left () triton:queue_target_seconds'
    mostly_waiting = f"on (model) triton:queue_share > {_WAITING}"
    if what.objectives:
        yield Alert(
            "TritonLatencyHigh", "warning",
            "triton:latency_seconds > on (model, quantile) triton:slo_seconds", timing.sustained,
            "{{ $labels.model }} misses its objective: {{ $value | humanizeDuration }} at quantile "
            "{{ $labels.quantile }}",
            "The slowest server's quantile over the last minute is above `tune.slo` of the manifest.",
        )  # fmt: skip
    yield Alert(
        "TritonQueueing", "warning", f"{long_queue} and {mostly_waiting}", timing.sustained,
        "Requests of {{ $labels.model }} wait {{ $value | humanizeDuration }} on average",
        f"More than `deploy.queue_target` ({what.queue_target:g} s) and most of their time: "
        "there are too few servers or instances.",
    )  # fmt: skip
    if what.batched:
        yield Alert(
            "TritonNoBatches", "info", f"triton:batch_fill < 0.25 and {mostly_waiting}", timing.long,
            "Requests of {{ $labels.model }} wait, but few are merged",
            "Executions are {{ $value | humanizePercentage }} full while requests spend most of their time queueing.",
        )  # fmt: skip
    slow = 'triton:latency_seconds{quantile="0.99"} > on (model) 10 * triton:latency_seconds{quantile="0.5"}'
    yield Alert(
        "TritonColdStart", "info", f"{slow} and on (model) triton:started == 1", 0,
        "First requests of {{ $labels.model }} took {{ $value | humanizeDuration }}",
        "It has just become ready, and its slowest requests take ten times as long as the others.",
    )  # fmt: skip


_GPU_RECORDS = (
    Record("triton:gpu_utilization", "max by (instance, gpu_uuid) (nv_gpu_utilization)"),
    Record(
        "triton:gpu_memory_share",
        "max by (instance, gpu_uuid) (nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes)",
    ),
)


def _gpu_alerts(what: Watched) -> Iterator[Alert]:
    timing = what.timing
    yield Alert(
        "TritonGpuMemoryFull", "warning", f"triton:gpu_memory_share > {_FULL}", timing.sustained,
        "{{ $value | humanizePercentage }} of {{ $labels.gpu_uuid }}'s memory is used",
        "The next load of a model may fail: old and new versions are in memory together.",
    )  # fmt: skip
    busy = f"triton:gpu_utilization > {_FULL} and on () max(triton:queue_share) > {_WAITING}"
    yield Alert(
        "TritonGpuSaturated", "warning", busy, timing.long,
        "{{ $labels.gpu_uuid }} is busy all the time, and requests wait",
        "This GPU is the bottleneck; more instances on it will not help.",
    )  # fmt: skip
    absent = 'absent(nv_gpu_utilization) and on () min(up{job="triton"}) == 1'
    yield Alert(
        "TritonGpuUnseen", "warning", absent, timing.sustained,
        "Triton reports no GPU",
        "Models run on none, or the metrics of GPUs are taken by another agent or hidden by MIG.",
    )  # fmt: skip
    error = f"DCGM_FI_DEV_XID_ERRORS > 0 and changes(DCGM_FI_DEV_XID_ERRORS[{span(timing.long)}]) > 0"
    yield Alert(
        "GpuError", "critical", error, 0,
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reports Xid {{ $value }}",
        "The driver saw an error; some need a reset of the GPU.",
    )  # fmt: skip


_HOST_RECORDS = (
    Record("host:memory_available_share", "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes"),
    Record(
        "host:disk_available_share",
        'min by (instance) (node_filesystem_avail_bytes{fstype!~"tmpfs|overlay|squashfs|ramfs"}'
        ' / node_filesystem_size_bytes{fstype!~"tmpfs|overlay|squashfs|ramfs"})',
    ),
)


def _host_alerts(what: Watched) -> Iterator[Alert]:
    yield Alert(
        "HostMemoryLow", "warning", "host:memory_available_share < 0.05", what.timing.sustained,
        "{{ $value | humanizePercentage }} of {{ $labels.instance }}'s memory is free",
        "The kernel will soon end a process, and Triton is the largest.",
    )  # fmt: skip
    yield Alert(
        "HostDiskFull", "warning", "host:disk_available_share < 0.1", what.timing.sustained,
        "{{ $value | humanizePercentage }} of a disk of {{ $labels.instance }} is free",
        "A sync needs room for new and old versions side by side.",
    )  # fmt: skip
