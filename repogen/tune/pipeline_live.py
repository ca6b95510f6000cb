"""Runs of a whole ensemble on a live server, each step with its setting, and what Triton says of every step."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError
from repogen.load import observe
from repogen.load.metrics import latencies
from repogen.load.process import Generator
from repogen.load.samples import Samples
from repogen.load.spec import Spec
from repogen.triton import Client, Statistics
from repogen.tune.override import put, setting_of_step, with_setting_of_step
from repogen.tune.pipeline import Stage, Traffic
from repogen.tune.pipeline_service import Batches, Seen
from repogen.tune.service import Latencies
from repogen.tune.setting import Setting

if TYPE_CHECKING:
    import numpy as np

    Request = Mapping[str, np.ndarray[Any, Any]]

_S = 1e-9
_READY = 60.0
_DEADLINE = 30.0
_WARM_UP = 1.0
_TIMES = 5  # that each request of the pool is sent alone


def walked(client: Client, stages: Sequence[Stage], request: Request) -> list[dict[str, Any]]:
    """Return what each step gets of one request: the answers of those before it, asked of the server one by one."""
    tensors = dict(request)
    given = []
    for stage in stages:
        given.append({inner: tensors[name] for inner, name in stage.inputs.items()})
        answers = client.infer(stage.model, given[-1])
        tensors |= {name: answers[inner] for inner, name in stage.outputs.items() if inner in answers}
    return given


def traffic(
    client: Client, ensemble: str, stages: Sequence[Stage], batched: Sequence[bool], pool: Sequence[Request]
) -> tuple[Traffic, ...]:
    """Return what the requests of a pool are to each step: they are sent alone, and the server says what each took.

    `batched`: whether the first axis of what a step gets is its batch.
    """
    models = [stage.model for stage in stages]
    rows = [walked(client, stages, request) for request in pool]
    taken: list[list[float]] = []
    for request in pool:
        tries = []
        for _ in range(_TIMES):
            before = client.statistics_of(models)
            client.infer(ensemble, request)
            after = client.statistics_of(models)
            tries.append([_seconds(after[model] - before[model]) for model in models])
        # One try may have met whatever else the machine does, and every prediction would carry it.
        taken.append([statistics.median(column) for column in zip(*tries, strict=True)])
    return tuple(
        _traffic([row[number] for row in rows], [row[number] for row in taken], batched=batched[number])
        for number in range(len(stages))
    )


def _traffic(given: Sequence[Mapping[str, Any]], seconds: Sequence[float], *, batched: bool) -> Traffic:
    """Fold what one step got of each request, and what that took."""
    sizes = tuple(next(iter(one.values())).shape[0] if batched else 1 for one in given)
    kinds = [tuple(array.shape[1 if batched else 0 :] for array in one.values()) for one in given]
    known = list(dict.fromkeys(kinds))
    usual = {size: _mean([took for took, of in zip(seconds, sizes, strict=True) if of == size]) for size in set(sizes)}
    parts = [took / usual[size] for took, size in zip(seconds, sizes, strict=True)]
    weights = [_mean([part for part, of in zip(parts, kinds, strict=True) if of == kind]) for kind in known]
    return Traffic(sizes, tuple(known.index(kind) for kind in kinds), tuple(weights))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _seconds(spent: Statistics) -> float:
    total = spent.compute_input_ns + spent.compute_infer_ns + spent.compute_output_ns
    return total / max(spent.requests, 1) * _S


@dataclass(frozen=True)
class Whole:
    """A borrowed ensemble on a server: its steps' configs as they were, and what is sent to it."""

    client: Client
    ensemble: str
    stages: tuple[Stage, ...]
    originals: tuple[Any, ...]  # a ModelConfig for each step
    payloads: Path
    folder: Path

    def apply(self, settings: Sequence[Setting]) -> None:
        """Let each step run its setting, if it does not yet."""
        for original, setting in zip(self.originals, settings, strict=True):
            if setting_of_step(self.client.config(original.name)) != setting:
                put(self.client, with_setting_of_step(original, setting))

    def run(self, settings: Sequence[Setting], seconds: float, **load: Any) -> Samples:
        """Make one run: `users`, or `arrivals` and `rate`."""
        self.apply(settings)
        spec = Spec(
            url=self.client.url,
            model=self.ensemble,
            folder=str(self.folder),
            name=f"run-{secrets.token_hex(4)}",
            payloads=str(self.payloads),
            warm_up=_WARM_UP,
            duration=seconds,
            deadline=_DEADLINE,
            **{"seed": secrets.randbits(31), **load},
        )
        generator = Generator(spec)
        try:
            generator.wait_ready(_READY)
            return generator.finish(spec.warm_up + spec.duration + spec.deadline + _READY)
        finally:
            generator.close()


def seen(samples: Samples, stages: Sequence[Stage], settings: Sequence[Setting]) -> Seen:
    """Return what a run says of the steps and of the whole."""
    observation = observe.from_json(samples.server)
    if observation.problem or len(observation.members) < len(stages):
        raise RepogenError(f"a run of the pipeline is void: {observation.problem or 'a step has no statistics'}")
    batches = tuple(_batches(observation.members[stage.model]) for stage in stages)
    told = samples.conditions
    clients = told.users if told.arrivals == "closed" else 0
    keep = samples.measured & (samples.status == 0)
    due = () if clients else tuple(float(one) for one in (samples.intended[keep] - told.begin) * _S)
    first = int(keep.argmax())  # samples are in the order of sending, and requests are sent in turn
    return Seen(tuple(settings), batches, _latencies(latencies([samples])), clients, due, first)


def _batches(spent: Statistics) -> Batches:
    return tuple(
        (row.size, row.count, (row.compute_input_ns + row.compute_infer_ns + row.compute_output_ns) / row.count * _S)
        for row in spent.batches
    )


def _latencies(nanoseconds: Any) -> Latencies:
    import numpy as np

    if not len(nanoseconds):
        raise RepogenError("no request of a run was answered", hint="is the server alive? see its log")
    taken = np.sort(nanoseconds) * _S
    p50, p90, p99 = (float(taken[min(int(part * len(taken)), len(taken) - 1)]) for part in (0.5, 0.9, 0.99))
    return Latencies(float(taken.mean()), p50, p90, p99, float(taken[-1]))
