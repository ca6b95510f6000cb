"""One process that loads one model: `python -m repogen.load.generator SPEC`, the spec being JSON or a file of it.

It says what it does as JSON lines on stdout (`ready`, `began`, `ended` or `error`) and obeys lines on stdin:
`users N`, `rate R`, `stop`. When stdin closes, whoever started it is gone, and it stops.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from repogen import triton
from repogen.errors import Refused, RepogenError
from repogen.load import arrivals, calls, observe, payload, samples
from repogen.load.dispatch import ClosedLoop, Dispatch, OpenLoop
from repogen.load.distribution import parse
from repogen.load.recorder import Recorder
from repogen.load.spec import Spec, read_spec

_TICK = 0.05
_FLUSH = 250_000_000
_LEAD = 2_000_000
_S = 1_000_000_000
_PATIENCE = 2.0
"""Seconds that the server may take at least to say something of itself."""
_HURRY = 2.0
"""Seconds that answers under way are waited for once somebody has interrupted the run."""
_SWITCH = 5e-5
"""Seconds after which a thread that looks at the clock lets the one go on that takes answers."""


@dataclass(frozen=True)
class Target:
    """What is asked of the server: serialized requests, how many samples each has, and how it is asked."""

    requests: list[bytes]
    batches: list[int]
    stream: bool
    batching: observe.Batching
    shapes: int  # different ones


class Run:
    """The course of one load test: warm-up, measurement, waiting for the last answers."""

    def __init__(self, spec: Spec, target: Target, client: triton.Client, *, first: bool = False) -> None:
        self._spec = spec
        self._conditions = replace(_conditions(spec, target), first=first)
        self._recorder = Recorder(spec.log, self._conditions)
        loop = ClosedLoop if spec.arrivals == arrivals.CLOSED else OpenLoop
        self._dispatch: Dispatch = loop(spec, target.requests, target.batches, self._recorder)
        self._calls = calls.open_calls(
            client.url, deadline=spec.deadline, stream=target.stream, answered=self._dispatch.answered
        )
        metrics = spec.metrics or observe.metrics_address(spec.url)
        self._observer = observe.Observer(client, spec.model, batching=target.batching, metrics=metrics)
        self._control = Control()
        self._users = spec.users
        self._rate = spec.rate
        self._ended = ""
        self._flushed = 0
        self._spent = (0, 0)  # CPU time and spinning, when the measurement began

    def run(self) -> samples.Samples:
        """Go through all of it and return what was measured."""
        _tell(ready=True)
        while not self._users and not self._ended:
            self._turn(_TICK)
        if not self._spec.warm_up:
            self._measure()
        start = perf_counter_ns() + _LEAD
        self._dispatch.start(self._calls, start)
        if self._spec.warm_up:
            self._until(start + round(self._spec.warm_up * _S))
            self._measure()
        self._until(self._conditions.begin + round(self._spec.duration * _S) if self._spec.duration else 2**62)
        self._ended = self._ended or "time"
        return self._finish()

    def _measure(self) -> None:
        """Begin what counts, unless it is over already."""
        if self._ended:
            return
        self._observer.begin()
        self._spent = (time.process_time_ns(), self._dispatch.spun)
        now = perf_counter_ns()
        self._conditions = replace(self._conditions, begin=now, users=self._users, rate=self._rate)
        self._recorder.mark(now)
        _tell(began=now)

    def _finish(self) -> samples.Samples:
        told = self._conditions
        now = perf_counter_ns()
        end = told.begin + round(self._spec.duration * _S) if self._ended == "time" else now
        spent = time.process_time_ns() - self._spent[0] - (self._dispatch.spun - self._spent[1])
        cpu = max(spent, 0) / max(now - told.begin, 1) if told.begin else 0.0
        self._dispatch.stop()
        limit = _HURRY if self._ended == "interrupted" else self._spec.deadline + 1
        self._wait_for_answers(min(limit, self._spec.deadline + 1))
        observation = self._observer.end()
        columns = dict(zip(samples.COLUMNS, self._recorder.finish(perf_counter_ns()), strict=True))
        begin = told.begin or now  # the warm-up was all there was
        conditions = replace(told, begin=begin, end=end, ended=self._ended, cpu=cpu)
        return samples.Samples(
            **columns, failures=dict(self._recorder.failures), conditions=conditions, server=observation.to_json()
        )

    def close(self) -> None:
        self._calls.close()

    def _until(self, instant: int) -> None:
        """Keep things going until `instant`, or until the run is ended otherwise."""
        while not self._ended:
            left = (instant - perf_counter_ns()) / _S
            if left <= 0:
                return
            self._turn(min(left, _TICK))

    def _turn(self, seconds: float) -> None:
        for line in self._control.lines(seconds):
            self._obey(line)
        self._dispatch.tick()
        if self._recorder.is_full():
            self._ended = self._ended or "full"
        if (now := perf_counter_ns()) - self._flushed > _FLUSH:
            self._recorder.flush()
            self._flushed = now
        self._ended = self._ended or self._control.ended

    def _obey(self, line: str) -> None:
        word, _, value = line.partition(" ")
        if word == "users":
            self._users = int(value)
            self._dispatch.users(self._users)
        elif word == "rate":
            self._rate = float(value)
            self._dispatch.rate(self._rate)
        elif word == "stop":
            self._ended = self._ended or "stopped"

    def _wait_for_answers(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._recorder.underway() and time.monotonic() < end and not self._control.hurried:
            time.sleep(0.01)
            self._recorder.flush()


class Control:
    """What is said to this process: lines on stdin, and signals."""

    def __init__(self) -> None:
        self.ended = ""
        self.hurried = False
        self._buffer = b""
        self._open = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)

    def lines(self, seconds: float) -> list[str]:
        """Wait for at most `seconds`; return what was said meanwhile."""
        if not self._open:
            time.sleep(seconds)
            return []
        try:
            readable, _, _ = select.select([0], [], [], seconds)
        except InterruptedError:
            return []
        if not readable:
            return []
        piece = os.read(0, 4096)
        if not piece:
            self._open = False
            self.ended = self.ended or "interrupted"
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        return [line.decode() for line in lines]

    def _interrupted(self, *_: object) -> None:
        self.hurried = bool(self.ended)
        self.ended = "interrupted"


def prepare(spec: Spec, client: triton.Client) -> Target:
    """Make the requests ready, and try one: what is wrong with all of them is said before anything is measured."""
    config = client.config(spec.model)
    if spec.payloads:
        arrays = payload.load(Path(spec.payloads))
        batches = [next(iter(one.values())).shape[0] if config.max_batch_size else 1 for one in arrays]
    else:
        plain = payload.from_config(config, {})
        shapes, spread = payload.split_sizes(plain, spec.shapes)
        model = payload.with_shapes(plain, shapes)
        batch = parse(spec.batch, "--batch-size")
        arrays = payload.pool(model, count=spec.pool, seed=spec.seed, batch=batch, sizes=spread)
        batches = [payload.batch_of(model, one) for one in arrays]
    requests = [triton.encode(spec.model, one) for one in arrays]
    stream = bool(config.model_transaction_policy.decoupled)
    if words := calls.try_one(client.url, requests[0], deadline=spec.deadline, stream=stream):
        raise Refused(f"the first request failed: {words}", where=spec.model)
    skipped = 1 if config.max_batch_size else 0  # the batch axis may differ
    different = {tuple(array.shape[skipped:] for array in one.values()) for one in arrays}
    return Target(requests, batches, stream, observe.batching_of(config), len(different))


def _conditions(spec: Spec, target: Target) -> samples.Conditions:
    import grpc

    return samples.Conditions(
        model=spec.model,
        url=spec.url,
        run=spec.run,
        host=socket.gethostname(),
        pid=os.getpid(),
        arrivals=spec.arrivals,
        rate=spec.rate,
        users=spec.users,
        workers=spec.workers,
        batch=spec.batch,
        seed=spec.seed,
        warm_up=spec.warm_up,
        deadline=spec.deadline,
        stream=target.stream,
        shapes=target.shapes,
        epoch=time.time_ns() - perf_counter_ns(),
        software=f"Python {platform.python_version()}, grpcio {grpc.__version__}, {os.cpu_count()} cores",
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _precedence() -> bool:
    """Let this process go before others on a busy machine, where the system permits it.

    Only a schedule is worth that: it asks for little at a time. A closed loop would starve a server beside it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        return False
    return True


def _tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - stdout is how this process answers


def main() -> None:
    try:
        spec = read_spec(sys.argv[1])
        first = spec.arrivals != arrivals.CLOSED and _precedence()  # every thread from here on inherits it
        patience = min(max(spec.deadline, _PATIENCE), triton.DEADLINE)
        with triton.Client(spec.url, deadline=patience) as client:
            target = prepare(spec, client)
            run = Run(spec, target, client, first=first)
            sys.setswitchinterval(_SWITCH)
            # Nothing here is in a cycle, and a pause to look for some would be in somebody's latency.
            gc.collect()
            gc.freeze()
            gc.disable()
            measured = run.run()
        samples.save(spec.path, measured)
        spec.log.unlink()
        _tell(ended=measured.conditions.ended, file=str(spec.path))
        run.close()
        os._exit(0)  # calls that never ended would hold up gRPC's own end
    except RepogenError as error:
        _tell(error=str(error), code=error.exit_code)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
