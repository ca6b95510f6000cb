"""What the server did over the measured window, by its own count, and why no batches formed where none did; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from repogen.load.arrivals import CLOSED
from repogen.load.observe import Batching, Gauge, Observation
from repogen.units import duration_text

_MS = 1e-6  # of a nanosecond
_MERGED = 1.1
"""Mean executions above this many requests count as batching."""
_US = 1e6


@dataclass(frozen=True)
class Served:
    """Mean milliseconds a request, batches formed, and how busy its machine was."""

    requests: int = 0
    failures: int = 0
    executions: int = 0
    inferences: int = 0
    queue: float = 0.0
    compute_input: float = 0.0
    compute_infer: float = 0.0
    compute_output: float = 0.0
    mean_batch: float = 0.0
    batches: tuple[tuple[int, int], ...] = ()
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    note: str = ""


def serve(observation: Observation, *, arrivals: str, users: int, rate: float, shapes: int) -> Served:
    """Fold the server's counters; `shapes` is how many different shapes the requests had."""
    statistics = observation.statistics
    if statistics is None:
        return Served(gauges=observation.gauges, note=observation.problem)
    requests, executions = max(statistics.requests, 1), statistics.executions
    mean_batch = statistics.inferences / executions if executions else 0.0
    asked = statistics.inferences / requests
    queue = statistics.queue_ns / requests * _MS
    merged = not executions or mean_batch > _MERGED * asked
    why = "" if merged else _why(observation.batching, arrivals, users, rate, shapes, asked, queue)
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
        gauges=observation.gauges,
        note=f"no batches formed: {why}" if why else "",
    )


def _too_few(told: Batching, users: int, asked: float) -> str:
    """Say why so many users in a closed loop never have requests that meet, "" where they might."""
    if users == 1:
        return "one user sends a request only after the last answer, so there is never another to merge with"
    if users <= told.instances:
        return f"{users} users find one of {told.instances} instances idle, so no request waits for another"
    if told.preferred and told.delay and users * asked < min(told.preferred):
        return f"{users} users never fill the smallest preferred_batch_size, {min(told.preferred)}"
    return ""


def _why(  # noqa: PLR0911 - one for each reason
    told: Batching, arrivals: str, users: int, rate: float, shapes: int, asked: float, queue: float
) -> str:
    """Return the first reason that applies, the surest ones first."""
    if told.max_batch_size == 0:
        return "max_batch_size is 0, so Triton never merges requests of this model"
    if 2 * asked > told.max_batch_size:
        return f"two requests of batch {asked:g} exceed max_batch_size {told.max_batch_size}"
    if not told.dynamic:
        return "dynamic_batching is off, so each request runs by itself"
    if shapes > 1 and not told.ragged:
        return f"the requests have {shapes} different shapes, and only equal ones are merged"
    if arrivals == CLOSED and (few := _too_few(told, users, asked)):
        return few
    meeting = rate * told.delay / _US
    if told.delay and meeting < 1:
        delay = duration_text(told.delay)
        return f"max_queue_delay of {delay} is too short: at {rate:.0f} requests/s {meeting:.2f} arrive meanwhile"
    return f"requests rarely met in the queue ({queue:.2f} ms there on average; max_queue_delay is {told.delay} us)"
