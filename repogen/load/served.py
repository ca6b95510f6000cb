"""What the server did over the measured window, by its own count, and why no batches formed where none did; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from repogen.load.arrivals import CLOSED
from repogen.load.observe import Batching, Gauge, Observation
from repogen.triton import Statistics
from repogen.units import duration_text

_MS = 1e-6  # of a nanosecond
_MERGED = 1.1
"""Mean executions above this many requests count as batching."""
_US = 1e6


@dataclass(frozen=True)
class Served:
    """Mean milliseconds a request, batches formed, and how busy its machine was.

    `total` is from a request's arrival at the server to its answer. `members` are the models that an ensemble calls.
    """

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
    total: float = 0.0
    members: Mapping[str, Served] = field(default_factory=dict)

    @property
    def compute(self) -> float:
        return self.compute_input + self.compute_infer + self.compute_output

    def share(self, member: Served) -> float:
        """Return which part of the members' time, and of what is between them, one of them had."""
        parts = [(one.queue + one.compute) * one.requests for one in self.members.values()]
        whole = max(self.total * self.requests, sum(parts))  # a step ends a little after the next one began
        return (member.queue + member.compute) * member.requests / whole if whole else 0.0

    @property
    def between(self) -> float:
        """Milliseconds a request that an ensemble's steps do not account for; below 0 where they run side by side."""
        spent = sum(member.total * member.requests for member in self.members.values())
        return self.total - spent / max(self.requests, 1)


def serve(observation: Observation, *, arrivals: str, users: int, rate: float, shapes: int) -> Served:
    """Fold the server's counters; `shapes` is how many different shapes the requests had."""
    statistics = observation.statistics
    if statistics is None:
        return Served(gauges=observation.gauges, note=observation.problem)
    did = _counted(statistics)
    asked = statistics.inferences / max(statistics.requests, 1)
    # An ensemble is no queue of its own: its members say below what they merged.
    merged = not did.executions or did.mean_batch > _MERGED * asked or bool(observation.members)
    why = "" if merged else _why(observation.batching, arrivals, users, rate, shapes, asked, did.queue)
    return replace(
        did,
        gauges=observation.gauges,
        note=f"no batches formed: {why}" if why else observation.problem,
        members={name: _counted(one) for name, one in observation.members.items()},
    )


def _counted(statistics: Statistics) -> Served:
    requests, executions = max(statistics.requests, 1), statistics.executions
    return Served(
        requests=statistics.requests,
        failures=statistics.failures,
        executions=executions,
        inferences=statistics.inferences,
        queue=statistics.queue_ns / requests * _MS,
        compute_input=statistics.compute_input_ns / requests * _MS,
        compute_infer=statistics.compute_infer_ns / requests * _MS,
        compute_output=statistics.compute_output_ns / requests * _MS,
        mean_batch=statistics.inferences / executions if executions else 0.0,
        batches=tuple((row.size, row.count) for row in statistics.batches),
        total=statistics.total_ns / requests * _MS,
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
