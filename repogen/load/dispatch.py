"""When the next request goes out: after an answer (closed loop), or on a schedule kept by a thread of its own."""

from __future__ import annotations

import ctypes
import heapq
import threading
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from repogen.load import arrivals
from repogen.load.calls import Calls
from repogen.load.recorder import Recorder
from repogen.load.spec import Spec

_RETRY = 50_000_000
"""Nanoseconds before a user whose request failed sends again: a dead server refuses in microseconds."""
_MARGIN = 250_000
"""Nanoseconds before a request is due at which the thread stops sleeping and looks at the clock only."""
_NAP = 0.1
_MOST = 20_000
"""Requests under way, beyond which more would only fill memory: they fail at once."""
_EXHAUSTED = 8
_S = 1_000_000_000
_PR_SET_TIMERSLACK = 29


class Dispatch(Protocol):
    """Sends requests until it is stopped."""

    spun: int  # nanoseconds of looking at the clock, which is no work

    def start(self, calls: Calls, at: int) -> None: ...

    def users(self, count: int) -> None: ...

    def rate(self, rate: float) -> None: ...

    def tick(self) -> None: ...

    def stop(self) -> None: ...

    def answered(self, number: int, first: int, done: int, code: int, size: int, words: str) -> None: ...


class ClosedLoop:
    """Each user sends its next request as soon as the last one was answered."""

    spun = 0

    def __init__(self, spec: Spec, requests: list[bytes], batches: list[int], recorder: Recorder) -> None:
        self._requests = requests
        self._batches = batches
        self._recorder = recorder
        self._wanted = spec.users
        self._lanes = 0  # users at work; below `_wanted` they are started, above it they end
        self._paused: list[int] = []  # when each user whose request failed goes on
        self._lock = threading.Lock()
        self._calls: Calls | None = None

    def start(self, calls: Calls, at: int) -> None:
        del at
        self._calls = calls
        self.tick()

    def users(self, count: int) -> None:
        self._wanted = count
        self.tick()

    def rate(self, rate: float) -> None:
        """Users in a closed loop have no rate."""

    def tick(self) -> None:
        now = perf_counter_ns()
        with self._lock:
            due = 0
            while self._paused and self._paused[0] <= now:
                heapq.heappop(self._paused)
                due += 1
            self._lanes -= due
            fresh = max(self._wanted - self._lanes - len(self._paused), 0) if self._calls else 0
            self._lanes += fresh
        for _ in range(fresh):
            self._next()

    def stop(self) -> None:
        self._wanted = 0

    def answered(self, number: int, first: int, done: int, code: int, size: int, words: str) -> None:
        self._recorder.answer(number, first, done, code, size, words)
        if code == 0 and self._lanes <= self._wanted:
            self._next()
            return
        with self._lock:
            if code and self._lanes <= self._wanted:
                heapq.heappush(self._paused, perf_counter_ns() + _RETRY)
            else:
                self._lanes -= 1

    def _next(self) -> None:
        number = self._recorder.claim()
        if number >= self._recorder.capacity:
            self._wanted = 0
            return
        place = number % len(self._requests)
        self._recorder.batch[number] = self._batches[place]
        now = perf_counter_ns()
        self._recorder.intended[number] = now
        self._recorder.sent[number] = now
        assert self._calls is not None
        self._calls.send(number, self._requests[place])


class OpenLoop:
    """Requests go out when they are due, whatever has become of those before."""

    def __init__(self, spec: Spec, requests: list[bytes], batches: list[int], recorder: Recorder) -> None:
        self.spun = 0
        self._requests = requests
        self._batches = batches
        self._recorder = recorder
        self._rate = spec.rate
        self._blocks = arrivals.schedule(arrivals.parse(spec.arrivals), lambda: self._rate, spec.seed)
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, calls: Calls, at: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(calls.send, at), daemon=True, name="dispatcher")
        self._thread.start()

    def users(self, count: int) -> None:
        """Users of an open loop only lend it their rates."""

    def rate(self, rate: float) -> None:
        self._rate = rate

    def tick(self) -> None:
        """The thread needs no help."""

    def stop(self) -> None:
        self._stopped = True
        if self._thread:
            self._thread.join(5)

    def answered(self, number: int, first: int, done: int, code: int, size: int, words: str) -> None:
        self._recorder.answer(number, first, done, code, size, words)

    def _run(self, send: Callable[[int, bytes], None], at: int) -> None:
        # Linux wakes a sleeper up to 50 us late on purpose, to save power.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1_000, 0, 0, 0)
        for block in self._blocks:
            chosen = None if block.payload is None else block.payload.tolist()
            full = self._recorder.underway() > _MOST
            for place, due in enumerate((block.due + at).tolist()):
                if not self._wait(due):
                    return
                number = self._recorder.claim()
                if number >= self._recorder.capacity:
                    return
                self._send(number, due, number if chosen is None else chosen[place], send, full=full)
            if not self._wait(block.end + at - _MARGIN):
                return

    def _send(self, number: int, due: int, which: int, send: Callable[[int, bytes], None], *, full: bool) -> None:
        recorder = self._recorder
        place = which % len(self._requests)
        recorder.batch[number] = self._batches[place]
        recorder.intended[number] = due
        now = perf_counter_ns()
        recorder.sent[number] = now
        if full:
            recorder.answer(number, now, now, _EXHAUSTED, 0, f"not sent: {_MOST} requests were under way")
        else:
            send(number, self._requests[place])

    def _wait(self, due: int) -> bool:
        """Return at `due`, or False as soon as the run has been stopped."""
        while not self._stopped:
            left = due - perf_counter_ns() - _MARGIN
            if left <= 0:
                break
            time.sleep(min(left / _S, _NAP))
        begun = now = perf_counter_ns()
        while now < due:
            now = perf_counter_ns()
        self.spun += now - begun
        return not self._stopped
