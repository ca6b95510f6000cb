"""The whole of Triton's batcher, request by request: priorities, timeouts, shapes, batches, clients that wait.

It is several times slower than `prefetch`, and answers the same where both apply.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from repogen.tune.setting import QueuePolicy, Setting

_NEW, _SCHEDULED, _TAKEN = 0, 1, 2
_LOOK = 0.5  # seconds after which the batcher looks at its queue even if nothing wakes it
_TOO_EARLY = 1 / 3
"""How often the batcher, without prefetching, looks before the instance that woke it waits for work, and sleeps on.

Counted on Triton 2.51 by the requests that were answered only after the next one had come. Later releases mended it.
"""
_TICK = 1e-6  # Triton's timers have microseconds: it wakes just after a request has expired


@dataclass(frozen=True)
class Request:
    """A request: its number, when it came, how many samples it has, its shape and its priority level."""

    number: int
    time: float
    size: int = 1
    shape: int = 0
    priority: int = 0


@dataclass
class _Payload:
    """Requests that will be executed together. `closed`: one of another shape came, so it is never merged."""

    requests: list[Request] = field(default_factory=list)
    size: int = 0
    state: int = _NEW
    closed: bool = False
    oldest: float = inf


@dataclass
class _Level:
    """The queue of one priority level; `delayed` holds what expired and is served after the others."""

    policy: QueuePolicy
    waiting: list[Request] = field(default_factory=list)
    delayed: list[Request] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)

    def deadline(self, request: Request) -> float:
        return request.time + self.policy.timeout * 1e-6 if self.policy.timeout else inf


class Scheduler:
    """One model under one setting. `next_request` says what a client sends once it has its answer, if anything."""

    def __init__(
        self,
        setting: Setting,
        cycles: Sequence[Sequence[float]],
        jitter: Sequence[float],
        next_request: Callable[[Request, float], Request | None] | None = None,
    ) -> None:
        self._setting = setting
        self._cycles = cycles
        self._draw = itertools.cycle(jitter).__next__
        self._next_request = next_request
        self._delay = setting.delay * 1e-6
        self._levels: dict[int, _Level] = {}
        self._current = _Payload()
        self._saturated = False
        self._next_preferred = 0
        self._scheduled: deque[_Payload] = deque()
        self._queued = 0  # samples that wait
        self._idle = setting.instances
        self._busy: list[tuple[float, int, _Payload]] = []
        self._timer = inf
        self._asleep = 0.0
        self._luck = random.Random(0).random  # a simulation: the same one each time
        self._future: list[tuple[float, int, Request]] = []
        self.executions: list[tuple[float, float, list[Request]]] = []
        self.rejected: list[Request] = []

    def run(self, requests: Sequence[Request]) -> None:
        """Simulate until every request is answered or rejected."""
        self._future = [(request.time, request.number, request) for request in requests]
        heapq.heapify(self._future)
        while True:
            done = self._busy[0][0] if self._busy else inf
            arrival = self._future[0][0] if self._future else inf
            now = min(done, arrival, self._timer)
            if now == inf:
                return
            if done == now:
                self._finish(now)
            elif arrival == now:
                self._enqueue(heapq.heappop(self._future)[2], now)
            else:
                self._batch(now)

    def _finish(self, now: float) -> None:
        _, _, payload = heapq.heappop(self._busy)
        kept_waiting = not self._slot() and self._queued
        self._idle += 1
        for request in payload.requests:
            self._answered(request, now)
        self._pop(now)
        if kept_waiting and not self._setting.prefetches and self._luck() < _TOO_EARLY:
            self._timer = now + _LOOK  # unless a request comes
        else:
            self._batch(now)

    def _answered(self, request: Request, now: float) -> None:
        following = self._next_request(request, now) if self._next_request else None
        if following is not None:
            heapq.heappush(self._future, (following.time, following.number, following))

    def _reject(self, request: Request, now: float) -> None:
        self.rejected.append(request)
        self._answered(request, now)

    def _enqueue(self, request: Request, now: float) -> None:
        if not self._setting.batching:
            self._schedule(_Payload([request], request.size, oldest=request.time), now)
            return
        level = self._level(request.priority)
        if level.policy.max_size and len(level) >= level.policy.max_size:
            self._reject(request, now)
            return
        level.waiting.append(request)
        self._queued += request.size
        enough = self._queued >= self._next_preferred or self._setting.free_axes
        if self._slot() and (self._saturated or self._current.state == _TAKEN or enough):
            self._batch(now)
        elif self._timer == inf and self._current.state == _NEW:
            # All that the batcher waited with has expired, and what it waited for still stands: this arrival
            # does not wake it, its regular look at the queue does.
            self._timer = self._asleep + math.ceil((now - self._asleep) / _LOOK) * _LOOK

    def _level(self, priority: int) -> _Level:
        if priority not in self._levels:
            policies = dict(self._setting.level_policies)
            self._levels[priority] = _Level(policies.get(priority, self._setting.policy))
            self._levels = dict(sorted(self._levels.items()))
        return self._levels[priority]

    def _slot(self) -> bool:
        if self._setting.prefetches:
            return len(self._scheduled) < 2 * self._setting.instances
        return self._idle > 0

    def _schedule(self, payload: _Payload, now: float) -> None:
        payload.state = _SCHEDULED
        self._scheduled.append(payload)
        self._pop(now)

    def _pop(self, now: float) -> None:
        """Give scheduled payloads to idle instances; old ones join the one in front of them."""
        while self._idle and self._scheduled:
            payload = self._scheduled.popleft()
            payload.state = _TAKEN
            while self._delay and self._scheduled and not payload.closed:
                behind = self._scheduled[0]
                if behind.closed or now - behind.oldest <= self._delay:
                    break
                behind.state = _TAKEN  # even where it then does not fit: it no longer grows
                same = behind.requests[0].shape == payload.requests[0].shape
                if payload.size + behind.size > self._setting.max_batch or not same:
                    break
                payload.requests += behind.requests
                payload.size += behind.size
                self._scheduled.popleft()
            self._idle -= 1
            finish = now + self._cycles[payload.requests[0].shape][payload.size] * self._draw()
            heapq.heappush(self._busy, (finish, len(self.executions), payload))
            self.executions.append((now, finish, payload.requests))

    def _batch(self, now: float) -> None:
        """The batcher's thread: it runs until it has nothing to do or something to wait for."""
        self._timer = inf
        while True:
            if self._saturated or self._current.state == _TAKEN:
                self._current, self._saturated, self._next_preferred = _Payload(), False, 0
            if not self._queued or not self._slot():
                self._asleep = now
                return
            taken, wake = self._choose(now)
            self._timer = wake
            if not taken and not self._saturated and self._queued:
                return  # until the timer; without one, until an instance takes the current payload
            self._move(taken, now)

    def _move(self, taken: Sequence[Request], now: float) -> None:
        for request in taken:
            level = self._levels[request.priority]
            (level.waiting or level.delayed).pop(0)
            self._queued -= request.size
            self._current.requests.append(request)
            self._current.size += request.size
            self._current.oldest = min(self._current.oldest, request.time)
        if taken and self._current.state == _NEW:
            self._schedule(self._current, now)

    def _choose(self, now: float) -> tuple[Sequence[Request], float]:  # noqa: C901 - Triton's rules, in its order
        """Return the requests to send now, or none and when to look again."""
        setting, sizes = self._setting, self._setting.sizes
        begun = self._current.size
        pending: list[Request] = []
        size = best = mark = 0
        full = False
        deadline = inf
        for request, expires in self._candidates(now):
            if begun + size:
                if begun + size + request.size > sizes[-1] and not best:
                    best, mark = size, len(pending)
                    self._saturated = True
                if begun + size + request.size > setting.max_batch:
                    full = True
                    break
                first = self._current.requests[0] if begun else pending[0]
                if first.shape != request.shape:
                    self._current.closed = full = True
                    break
            pending.append(request)
            size += request.size
            deadline = min(deadline, expires)
            if begun + size in sizes:
                best, mark = size, len(pending)
        oldest = min((request.time for request in pending), default=-inf)
        exceeded = self._delay > 0 and now >= oldest + self._delay
        if best and not exceeded:
            self._saturated |= not self._delay
            return pending[:mark], inf
        if pending and (full or begun + size >= sizes[-1]):
            self._saturated = True
            return pending, inf
        if not pending or exceeded or not self._delay:
            return pending, inf
        self._next_preferred = min((s for s in sizes if s > begun + size), default=sizes[0]) - begun
        if not self._saturated and begun and begun not in sizes:
            return pending, inf
        return (), min(oldest + self._delay, deadline + _TICK)

    def _candidates(self, now: float) -> Iterator[tuple[Request, float]]:
        """Yield what may be sent, in order, and drop what has expired on the way."""
        for level in list(self._levels.values()):
            place = 0
            while True:
                while place < len(level.waiting) and now > level.deadline(level.waiting[place]):
                    self._expire(level, level.waiting.pop(place), now)
                if place < len(level.waiting):
                    yield level.waiting[place], level.deadline(level.waiting[place])
                elif place < len(level):
                    yield level.delayed[place - len(level.waiting)], inf
                else:
                    break
                place += 1

    def _expire(self, level: _Level, request: Request, now: float) -> None:
        if level.policy.action == "delay":
            level.delayed.append(request)
        else:
            self._queued -= request.size
            self._reject(request, now)
