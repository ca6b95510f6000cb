"""The Locust side of a load test; the only module that imports locust (which patches its whole process).

Locust's users decide how much is asked; a generator process of its own asks, since a patched process keeps no
schedule. What it measured comes back in batches and becomes Locust's request events.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import secrets
import socket
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import gevent
import locust.stats
import numpy as np
from locust import User, constant, events
from locust.exception import StopUser
from locust.runners import STATE_STOPPED, STATE_STOPPING, LocalRunner, MasterRunner, WorkerRunner

from repogen.errors import RepogenError
from repogen.load import arrivals, intervals
from repogen.load.process import Generator
from repogen.load.spec import Spec

_LOG = logging.getLogger(__name__)
_PUMP = 0.25
_START = 60.0
_CHECK = 8
"""Batches of samples between two looks at how sure the percentile is."""
_SAMPLES = "repogen-samples"
_ENDED = "repogen-ended"
_RUNS = count(1)
_CODES = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
    8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE", 16: "UNAUTHENTICATED",
}  # fmt: skip


class RequestFailed(Exception):
    """What Triton, or the way to it, answered instead of a result."""


class TritonUser(User):  # type: ignore[misc]  # locust ships no types that hold under strict
    """One request under way at a time, or its share of the rate. `host` is a gRPC address."""

    abstract = True
    host = "127.0.0.1:8001"
    wait_time = constant(1)

    def on_start(self) -> None:
        self.session: Session | None = getattr(self.environment, "repogen", None)
        if self.session is not None:
            self.session.change_users(1)

    def on_stop(self) -> None:
        if self.session is not None:
            self.session.change_users(-1)

    def be_there(self) -> None:
        """A user's existence is what counts: the generator does its asking."""
        if self.session is None:  # the reason is in the log; the test is about to end
            raise StopUser

    tasks: ClassVar[list[Any]] = [be_there]


class Session:
    """One process's part in a load test: its generator, and the way of samples back to Locust."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._options = environment.parsed_options
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._users = 0
        self._closing = False
        self._failures: dict[int, RequestFailed] = {}
        self._worker = isinstance(environment.runner, WorkerRunner)
        self.fresh: list[bytes] = []  # latencies for the master, which alone sees all of them
        self.watch = Watch("" if self._worker else self._options.until)
        self.generator = Generator(self._spec())
        self.generator.wait_ready(_START)
        self._pump = gevent.spawn(self._run)

    def change_users(self, by: int) -> None:
        """Tell the generator how many users there are now, or what rate they have together."""
        self._users += by
        options = self._options
        if options.rate or options.user_rate:
            total = options.total_users or options.num_users
            share = self._users / max(total or self._users, self._users, 1) / (1 if total else options.sharers)
            self.generator.say(f"rate {options.user_rate * self._users or options.rate * share}")
        self.generator.say(f"users {self._users}")

    def finish(self) -> Path:
        """Stop the generator, take the rest of what it measured, and return where it lies."""
        self._closing = True
        self.generator.say("stop")
        samples = self.generator.finish(self._options.deadline + 10)
        self._pump.kill()
        while self._take():
            pass
        if samples.conditions.ended == "killed":
            _LOG.error("the generator was killed: %s has what it had written down", self.generator.spec.log)
        path = self.generator.spec.path
        return path if path.exists() else self.generator.spec.log

    def close(self) -> None:
        self.generator.close()
        if self._temporary:
            self._temporary.cleanup()

    def _spec(self) -> Spec:
        options = self._options
        folder = options.samples
        if not folder or self._worker:
            self._temporary = tempfile.TemporaryDirectory(prefix="repogen-load-")  # the master keeps what workers send
            folder = self._temporary.name
        if not options.model:
            raise RepogenError("no model to ask", where="--model", hint="--model NAME, or REPOGEN_MODEL")
        how = options.arrivals or ("poisson" if options.rate or options.user_rate else arrivals.CLOSED)
        scheduled = arrivals.parse(how)
        index = getattr(self._environment.runner, "worker_index", 0)
        if scheduled.kind == "trace" and index > 0:
            raise RepogenError("a trace is replayed by one process", where="--arrivals", hint="start one worker")
        return Spec(
            url=_address(self._environment.host or TritonUser.host),
            model=options.model,
            folder=str(Path(folder).absolute()),
            name=f"samples-{socket.gethostname()}-{os.getpid()}-{next(_RUNS)}",
            run=options.run_id,
            payloads=str(Path(options.payloads).absolute()) if options.payloads else "",
            shapes=tuple(options.shape),
            batch=str(options.batch_size),
            arrivals=how,
            users=0,  # until Locust has started some
            warm_up=options.warm_up,
            duration=options.duration,
            deadline=options.deadline,
            seed=options.seed + 1000 * max(index, 0),
            workers=options.sharers,
            metrics=options.metrics,
        )

    def _run(self) -> None:
        looks = 0
        while not self.generator.ended:
            gevent.sleep(_PUMP)
            self._take()
            looks += 1
            if looks % _CHECK == 0 and self.watch.is_sure():
                break
        if not self._closing:  # else Locust is ending already, and would end before its last samples are there
            _end(self._environment)

    def _take(self) -> bool:
        """Give Locust what was answered since the last time; return whether there was anything."""
        columns = self.generator.rows()
        began = self.generator.began
        measured = columns[:, columns[0] >= began] if began else columns[:, :0]
        answered = measured[:, measured[4] == 0]
        self.watch.add(answered[3] - answered[0])
        if self._worker and self._options.until:
            self.fresh.append((answered[3] - answered[0]).tobytes())
        fire, name = self._environment.events.request.fire, self._options.model
        taken = ((measured[3] - measured[0]) / 1e6).tolist()
        context: dict[str, Any] = {}
        for latency, code, size in zip(taken, measured[4].tolist(), measured[5].tolist(), strict=True):
            fire(
                request_type="grpc",
                name=name,
                response_time=latency,
                response_length=size,
                exception=self._failure(code) if code else None,
                context=context,
            )
        return bool(columns.size)

    def _failure(self, code: int) -> RequestFailed:
        if code not in self._failures:
            self._failures[code] = RequestFailed(_CODES.get(code, f"gRPC status {code}"))
        return self._failures[code]


class Watch:
    """Looks at the pooled latencies of all processes until their percentile is known well enough."""

    def __init__(self, until: str) -> None:
        self._goal = intervals.parse_goal(until) if until else None
        self._pieces: list[np.ndarray[Any, Any]] = []

    def add(self, latencies: np.ndarray[Any, Any]) -> None:
        if self._goal:
            self._pieces.append(latencies)

    def is_sure(self) -> bool:
        return bool(self._goal and self._pieces and intervals.is_reached(self._goal, np.concatenate(self._pieces)))


def _address(host: str) -> str:
    return host.removeprefix("http://")  # Locust's web page wants a scheme


def _end(environment: Any, error: RepogenError | None = None) -> None:
    """End the test: the run is over, sure enough, or impossible."""
    runner = environment.runner
    if error:
        _LOG.error("%s", error)
        environment.process_exit_code = error.exit_code
    if isinstance(runner, WorkerRunner):
        runner.send_message(_ENDED, {"error": str(error or ""), "code": error.exit_code if error else 0})
        return
    # Not at once: Locust may be in the middle of starting, and would go on with it.
    gevent.spawn_later(0.1, runner.quit if environment.parsed_options.headless else runner.stop)


def _add_options(parser: Any) -> None:
    option = parser.add_argument
    option("--model", env_var="REPOGEN_MODEL", default="", help="Model to ask")
    option("--rate", type=float, env_var="REPOGEN_RATE", default=0.0, help="Requests a second, of all users together")
    option("--user-rate", type=float, env_var="REPOGEN_USER_RATE", default=0.0, help="Or: requests a second, each user")
    option(
        "--arrivals",
        env_var="REPOGEN_ARRIVALS",
        default="",
        help="closed (each user waits for its answer), or with a rate: poisson (the default), constant, "
        "burst(ON, OFF), ramp(PART, SECONDS); trace:FILE needs none",
    )
    option("--warm-up", type=float, env_var="REPOGEN_WARM_UP", default=1.0, help="Seconds that do not count")
    option("--duration", type=float, env_var="REPOGEN_DURATION", default=0.0, help="Seconds that count; 0: no end")
    option("--until", env_var="REPOGEN_UNTIL", default="", help="End when sure: p99±5%%")
    option("--batch-size", env_var="REPOGEN_BATCH_SIZE", default="1", help="Samples a request, or a distribution")
    option("--deadline", type=float, env_var="REPOGEN_DEADLINE", default=30.0, help="Seconds an answer may take")
    option("--seed", type=int, env_var="REPOGEN_SEED", default=0, help="Of arrivals and made-up inputs")
    hidden = {"include_in_web_ui": False}  # paths of this machine have no place in a web form
    option(
        "--payloads", env_var="REPOGEN_PAYLOADS", default="", metavar="FILE", help="Requests to send (.npz)", **hidden
    )
    option(
        "--shape",
        action="append",
        env_var="REPOGEN_SHAPE",
        default=[],
        metavar="NAME:2,3",
        help="Sizes of an input, batch axis left out, or of an axis: 'x.1: lognormal(320, 80)'; may be repeated",
        **hidden,
    )
    option(
        "--samples", env_var="REPOGEN_SAMPLES", default="", metavar="DIR", help="Keep the raw samples here", **hidden
    )
    option("--metrics", env_var="REPOGEN_METRICS", default="", metavar="HOST:PORT", help="Triton's metrics", **hidden)
    option("--run-id", env_var="REPOGEN_RUN_ID", default="", help=argparse.SUPPRESS, **hidden)
    # What only the master knows; Locust hands it on with the options.
    option("--sharers", type=int, default=1, help=argparse.SUPPRESS, **hidden)
    option("--total-users", type=int, default=0, help=argparse.SUPPRESS, **hidden)


def _settle(environment: Any, **_: Any) -> None:
    # Locust inspects its stack when it stops a test; the first time, that holds up everything for 40 ms.
    inspect.stack()
    # Locust's own percentiles are whole milliseconds; three digits tell 0.2 from 0.9.
    locust.stats.bucket_response_time = lambda milliseconds: float(f"{milliseconds:.3g}")
    if environment.parsed_options and not environment.parsed_options.run_id:
        environment.parsed_options.run_id = secrets.token_hex(4)
    if isinstance(environment.runner, MasterRunner):
        Master(environment)
    if isinstance(environment.runner, LocalRunner) and environment.parsed_options.headless:
        _open_early(environment)
    if isinstance(environment.runner, WorkerRunner):
        environment.events.report_to_master.add_listener(partial(_report, environment))
    # gevent counts from when its loop last looked: --run-time would include what was done before.
    gevent.get_hub().loop.update_now()


def _report(environment: Any, client_id: str, data: dict[str, Any]) -> None:
    del client_id
    session: Session | None = getattr(environment, "repogen", None)
    if session is not None and session.fresh:
        data["repogen"], session.fresh = session.fresh, []


class Master:
    """Where the samples of all workers come together, as they are: percentiles are never merged."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._ended: set[str] = set()
        self._watch = Watch("")
        environment.runner.register_message(_SAMPLES, self._keep)
        environment.runner.register_message(_ENDED, self._one_ended)
        environment.events.test_start.add_listener(self._start)
        environment.events.worker_report.add_listener(self._report)

    def _start(self, **_: Any) -> None:
        self._ended = set()
        options, runner = self._environment.parsed_options, self._environment.runner
        self._watch = Watch(options.until)
        options.sharers = runner.worker_count
        options.total_users = 0 if self._environment.shape_class else runner.target_user_count

    def _keep(self, environment: Any, msg: Any, **_: Any) -> None:
        if folder := environment.parsed_options.samples:
            path = Path(folder) / Path(msg.data["name"]).name
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(msg.data["content"])
            part.replace(path)

    def _one_ended(self, environment: Any, msg: Any, **_: Any) -> None:
        self._ended.add(msg.node_id)
        if msg.data["error"]:
            _LOG.error("%s", msg.data["error"])
            environment.process_exit_code = msg.data["code"]
            _end(environment)
        elif len(self._ended) == 1:
            gevent.spawn(self._wait_for_rest, self._ended)

    def _wait_for_rest(self, ended: set[str]) -> None:
        """End the test once all have ended; one that was killed never says so, but Locust misses it after a while."""
        clients = self._environment.runner.clients
        while not {one.id for one in (*clients.ready, *clients.spawning, *clients.running)} <= ended:
            gevent.sleep(_PUMP)
        if ended is self._ended:  # no other test has begun
            _end(self._environment)

    def _report(self, client_id: str, data: dict[str, Any]) -> None:
        del client_id
        for latencies in data.get("repogen", ()):
            self._watch.add(np.frombuffer(latencies, dtype=np.int64))
        if data.get("repogen") and self._watch.is_sure():
            _end(self._environment)


def _open(environment: Any, **_: Any) -> None:
    """Make this process ready before its first user starts."""
    environment.repogen = None
    if isinstance(environment.runner, MasterRunner):
        return
    try:
        session = environment.__dict__.pop("repogen_early", None) or Session(environment)
        environment.process_exit_code = None
    except RepogenError as error:
        _end(environment, error)
        return
    if environment.runner.state in (STATE_STOPPING, STATE_STOPPED):  # it took too long for somebody
        session.close()
        return
    environment.repogen = session


def _open_early(environment: Any) -> None:
    """Make a run without a web page ready before its clock runs: --run-time counts from the runner's start."""
    try:
        environment.repogen_early = Session(environment)
    except RepogenError:
        return  # it is met again, and said, at the start


def _close(environment: Any, **_: Any) -> None:
    session: Session | None = getattr(environment, "repogen", None)
    if session is None:
        return
    environment.repogen = None
    try:
        path = session.finish()
        if isinstance(environment.runner, WorkerRunner):
            environment.runner.send_message(_SAMPLES, {"name": path.name, "content": path.read_bytes()})
    except RepogenError as error:
        _LOG.error("%s", error)
        environment.process_exit_code = error.exit_code
    finally:
        session.close()


def _hurry(environment: Any, **_: Any) -> None:
    """End what counts before Locust stops its users one by one."""
    session: Session | None = getattr(environment, "repogen", None)
    if session is not None:
        session.generator.say("stop")


events.init_command_line_parser.add_listener(_add_options)
events.init.add_listener(_settle)
events.test_start.add_listener(_open)
events.test_stopping.add_listener(_hurry)
events.test_stop.add_listener(_close)
