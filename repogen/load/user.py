"""The Locust side of a load test; the only module that imports locust (which patches its whole process).

Requests are serialized before the test, sent as bytes, and their answers not parsed: the client's own cost
stays out of the latency as far as it can.
"""

import argparse
import inspect
import logging
import os
import socket
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count, cycle
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ClassVar

import gevent
import grpc
import numpy as np
from grpc.experimental.gevent import init_gevent
from locust import User, constant, events
from locust.exception import StopUser
from locust.runners import MasterRunner
from tritonclient.grpc import service_pb2 as _imported_before_the_clock_starts  # noqa: F401

from repogen import triton
from repogen.errors import RepogenError
from repogen.load import payload
from repogen.load.samples import Samples, save

_LOG = logging.getLogger(__name__)
_POOL = 32
_DEADLINE = 30.0
_PAUSE = 0.05
_RUNS = count(1)


class TritonUser(User):  # type: ignore[misc]  # locust ships no types that hold under strict
    """A client that sends the next request as soon as the last one is answered. `host` is a gRPC address."""

    abstract = True
    host = "127.0.0.1:8001"
    wait_time = constant(0)

    def on_start(self) -> None:
        self.session: Session | None = getattr(self.environment, "repogen", None)

    def ask(self) -> None:
        """Send one request and report it to Locust."""
        if self.session is None:  # the reason is in the log; the test is about to end
            raise StopUser
        started, done, failure, size = self.session.ask()
        self.environment.events.request.fire(
            request_type="grpc",
            name=self.session.model,
            response_time=(done - started) / 1e6,
            response_length=size,
            exception=failure,
            context=self.context(),
        )
        if failure is not None:
            # A dead server refuses in microseconds: without a pause its refusals would fill memory.
            gevent.sleep(_PAUSE)

    tasks: ClassVar[list[Any]] = [ask]


class RequestFailed(Exception):
    """What Triton, or the way to it, answered instead of a result."""


class Session:
    """One process's connection, its requests ready to send, and the raw samples it gathers."""

    def __init__(self, *, url: str, model: str, requests: Iterable[bytes], deadline: float) -> None:
        self.url = url
        self.model = model
        self._deadline = deadline
        self._next = cycle(requests).__next__
        self._channel = triton.channel(url)
        self._send = self._channel.unary_unary(triton.INFER, request_serializer=None, response_deserializer=None)
        self._sent, self._done, self._status = array("q"), array("q"), array("q")
        self._failures: Counter[str] = Counter()

    def connect(self) -> None:
        """Ask whether the server lives: what the first call on a connection costs is in no sample then."""
        try:
            self._channel.unary_unary(triton.LIVE)(b"", timeout=triton.DEADLINE)
        except grpc.RpcError as error:
            raise triton.explain(error, self.url, triton.DEADLINE) from None

    def ask(self) -> tuple[int, int, RequestFailed | None, int]:
        """Send one request; return when it was sent and done (ns), what failed, and the answer's size."""
        request = self._next()
        failure, status, size = None, 0, 0
        sent = perf_counter_ns()
        try:
            answer = self._send(request, timeout=self._deadline)
            done = perf_counter_ns()
            size = len(answer)
        except grpc.RpcError as error:
            done = perf_counter_ns()
            status = error.code().value[0]
            failure = RequestFailed(triton.explain(error, self.url, self._deadline).message)
            self._failures[str(failure)] += 1
        self._sent.append(sent)
        self._done.append(done)
        self._status.append(status)
        return sent, done, failure, size

    def close(self) -> Samples:
        self._channel.close()
        sent, done, status = (np.array(c, dtype=np.int64) for c in (self._sent, self._done, self._status))
        return Samples(sent, done, status, self._failures)


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes that `NAME:2,3` texts give; one text may hold several, separated by blanks."""
    shapes = {}
    for text in " ".join(texts).split():
        name, found, sizes = text.rpartition(":")  # a tensor may be called input:0
        parts = sizes.split(",") if sizes else []
        if not found or not name or not all(part.isdecimal() for part in parts):
            raise RepogenError(f"{text!r} is no shape", where="--shape", hint="write NAME:2,3")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def _add_options(parser: Any) -> None:
    parser.add_argument("--model", env_var="REPOGEN_MODEL", default="", help="Model to ask")
    parser.add_argument(
        "--batch-size", type=int, env_var="REPOGEN_BATCH_SIZE", default=1, help="Samples in each request"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        env_var="REPOGEN_DEADLINE",
        default=_DEADLINE,
        help="Seconds after which a request has failed",
    )
    # Paths of this machine have no place in a web form.
    parser.add_argument(
        "--payloads",
        env_var="REPOGEN_PAYLOADS",
        default="",
        metavar="FILE",
        include_in_web_ui=False,
        help="Requests to send (.npz); made from the server's config where absent",
    )
    parser.add_argument(
        "--shape",
        action="append",
        env_var="REPOGEN_SHAPE",
        default=[],
        metavar="NAME:2,3",
        include_in_web_ui=False,
        help="Sizes of an input that has free axes, batch axis left out; may be repeated",
    )
    parser.add_argument(
        "--samples",
        env_var="REPOGEN_SAMPLES",
        default="",
        metavar="DIR",
        include_in_web_ui=False,
        help="Folder for the raw samples, one .npz for each process",
    )


def _settle(**_: Any) -> None:
    # Locust inspects its stack when it stops a test; the first time, that holds up every answer for 40 ms.
    inspect.stack()
    # gevent counts from when its loop last looked: --run-time would include the imports before.
    gevent.get_hub().loop.update_now()


def _open(environment: Any, **_: Any) -> None:
    """Make this process ready before its first user starts."""
    environment.repogen = None
    if isinstance(environment.runner, MasterRunner):
        return
    init_gevent()  # before any channel, or the first call blocks every user
    options = environment.parsed_options
    try:
        url = triton.address(environment.host or TritonUser.host)
        session = Session(url=url, model=options.model, requests=_requests(url, options), deadline=options.deadline)
        session.connect()
    except RepogenError as error:
        _LOG.error("%s", error)
        environment.process_exit_code = error.exit_code
        # Not at once: Locust is in the middle of starting, and would go on with it.
        end = environment.runner.quit if options.headless else environment.runner.stop
        gevent.spawn_later(0.1, end)
        return
    environment.repogen, environment.process_exit_code = session, None


def _requests(url: str, options: argparse.Namespace) -> list[bytes]:
    if not options.model:
        raise RepogenError("no model to ask", where="--model", hint="--model NAME, or REPOGEN_MODEL")
    if options.payloads:
        arrays = payload.load(Path(options.payloads))
    else:
        arrays = _from_server(url, options.model, options.batch_size, parse_shapes(options.shape))
    return [triton.encode(options.model, request) for request in arrays]


def _from_server(url: str, model: str, batch: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Any]:
    with triton.Client(url) as client:
        served = payload.from_config(client.config(model), shapes)
    for tensor in served.inputs:
        if -1 in tensor.dims:
            _LOG.warning(
                "input %s has dims %s: its free axes get a small size; --shape %s:... says which",
                tensor.name,
                list(tensor.dims),
                tensor.name,
            )
    return payload.pool(served, batch=batch, count=_POOL, seed=0)


def _close(environment: Any, **_: Any) -> None:
    session = getattr(environment, "repogen", None)
    if session is None:
        return
    samples, environment.repogen = session.close(), None
    folder = environment.parsed_options.samples
    if folder:
        save(Path(folder) / f"samples-{socket.gethostname()}-{os.getpid()}-{next(_RUNS)}.npz", samples)


events.init_command_line_parser.add_listener(_add_options)
events.init.add_listener(_settle)
events.test_start.add_listener(_open)
events.test_stop.add_listener(_close)
