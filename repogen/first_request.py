"""What a model's first request costs: without its warm-up, with it, and once it has settled."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repogen.errors import ServerError
from repogen.model import ServedModel
from repogen.triton import LOAD_DEADLINE, Client

_SETTLED = 15  # requests, of which the median counts
_PAUSE = 0.02


@dataclass(frozen=True)
class FirstRequest:
    """Seconds. `warm` is None where the model has no warm-up."""

    model: str
    cold: float
    warm: float | None
    settled: float


def first_requests(client: Client, models: Sequence[ServedModel]) -> tuple[FirstRequest, ...]:
    """Measure models of a server that has just started; each is loaded twice more, and serves as before at the end.

    Sequences, and models that answer more than once, are left out: one request by itself means nothing to them.
    """
    return tuple(_measured(client, model) for model in models if answers_once(client.config(model.name)))


def answers_once(config: Any) -> bool:
    """Return whether one request by itself has one answer."""
    return not config.HasField("sequence_batching") and not config.model_transaction_policy.decoupled


def _measured(client: Client, model: ServedModel) -> FirstRequest:
    from repogen.load.payload import pool

    (request,) = pool(model, batch=1, count=1, seed=0)
    first = timed(client, model.name, request)
    settled = statistics.median(timed(client, model.name, request) for _ in range(_SETTLED))
    config = client.config(model.name)
    if not config.model_warmup:
        return FirstRequest(model.name, first, None, settled)
    config.ClearField("model_warmup")
    try:
        _reload(client, model.name, _json(config))
        cold = timed(client, model.name, request)
    finally:
        _reload(client, model.name, None)  # an unload forgets the override: the files' config serves again
    return FirstRequest(model.name, cold, first, settled)


def timed(client: Client, name: str, request: Any) -> float:
    """Return the seconds that a request takes."""
    started = time.perf_counter()
    client.infer(name, request)
    return time.perf_counter() - started


def _reload(client: Client, name: str, config: str | None) -> None:
    client.unload(name)
    await_unloaded(client, name)
    client.load(name, config)


def await_unloaded(client: Client, name: str, seconds: float = LOAD_DEADLINE) -> None:
    """Wait until a server has let go of a model: `unload` returns before. Raises ServerError."""
    end = time.monotonic() + seconds
    while any(model == name and state not in ("UNAVAILABLE", "") for model, _, state, _ in client.models()):
        if time.monotonic() > end:
            raise ServerError(f"{client.url} has not let go of {name} after {seconds:g} s")
        time.sleep(_PAUSE)


def _json(config: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(config, preserving_proto_field_name=True))
