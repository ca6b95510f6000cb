"""The fast path of the simulator: requests of one sample and one shape, and no queue policy.

Such requests leave the queue in the order in which they came, so that a payload is a range of their numbers and the
whole state is a few integers. Only what can change the state is an event: an arrival that merely queues is none,
and a scheduled payload that grows with each arrival is brought up to date when somebody looks at it.
"""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import inf

from repogen.tune.setting import Setting

_NEW, _SCHEDULED, _TAKEN = 0, 1, 2


def preferred_tables(setting: Setting) -> tuple[list[int], list[int]]:
    """Return, for each size up to the maximum, the largest preferred size within it and the next one above it.

    Above the largest preferred size the next one is the smallest: Triton's own rule.
    """
    sizes = setting.sizes
    within = [max((s for s in sizes if s <= size), default=0) for size in range(setting.max_batch + 1)]
    above = [min((s for s in sizes if s > size), default=sizes[0]) for size in range(setting.max_batch + 1)]
    return within, above


def run_prefetching(  # noqa: C901, PLR0912, PLR0915 - one loop over local variables: calls would halve its speed
    times: Sequence[float], setting: Setting, cycle: Sequence[float], jitter: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return, for each execution in its order, the number of requests begun until then and when it ends."""
    arrivals = [*times, inf]
    count = len(arrivals) - 1
    max_batch, limit, delay = setting.max_batch, 2 * setting.instances, setting.delay * 1e-6
    largest, free_axes = setting.sizes[-1], setting.free_axes
    within, above = preferred_tables(setting)
    draw = itertools.cycle(jitter).__next__
    ends: list[int] = []
    finishes: list[float] = []
    busy: list[float] = []  # when each running execution ends, sorted
    scheduled: deque[int] = deque()  # the first request of each payload that waits for an instance
    idle = setting.instances
    come = 0  # requests that have arrived
    head = 0  # the first request of the queue; before it, the last scheduled payload ends
    current, saturated, next_preferred = _NEW, False, 0
    growth = 0  # arrivals that the scheduled payload takes, each at once, up to the next preferred size
    timer = inf
    while True:
        done = busy[0] if busy else inf
        if growth:
            waking = head + growth - 1
        elif len(scheduled) >= limit:
            waking = count
        elif next_preferred > 1 and not (free_axes and current == _SCHEDULED):
            waking = max(head + next_preferred - 1, come)
        else:
            waking = come
        arrival = arrivals[waking] if waking < count else inf

        if done <= arrival and done <= timer:
            if done == inf:
                return ends, finishes
            now = done
            come = bisect_left(arrivals, now, come)
            del busy[0]
            if growth:
                head = come
            if scheduled:
                start = scheduled.popleft()
                end = scheduled[0] if scheduled else head
                if delay and scheduled:  # old payloads behind it join, as far as they fit
                    while scheduled and now - arrivals[scheduled[0]] > delay:
                        behind = scheduled[1] if len(scheduled) > 1 else head
                        if behind - start > max_batch:
                            if len(scheduled) == 1 and current == _SCHEDULED:
                                current = _TAKEN  # looked at, so it no longer grows
                            break
                        end = behind
                        scheduled.popleft()
                if not scheduled and current == _SCHEDULED:
                    current = _TAKEN
                finish = now + cycle[end - start] * draw()
                ends.append(end)
                finishes.append(finish)
                insort(busy, finish)
            else:
                idle += 1
        elif arrival <= timer:
            now = arrival
            come = waking + 1
            if growth:
                head = come
                saturated = True
        else:
            now = timer
            come = bisect_right(arrivals, now, come)
        timer = inf
        growth = 0

        while True:  # the batcher's thread, until it sleeps
            if saturated or current == _TAKEN:
                current, saturated, next_preferred = _NEW, False, 0
            queued = come - head
            if not queued or len(scheduled) >= limit:
                break
            begun = head - scheduled[-1] if current == _SCHEDULED else 0
            room = max_batch - begun
            pending = min(room, queued)
            exceeded = delay > 0 and now >= arrivals[head] + delay
            if begun >= largest:
                saturated = True
                best = 1 if queued > 1 and pending else 0
            else:
                best = within[begun + pending] - begun
            if best > 0 and not exceeded:
                take = best
                if not delay:
                    saturated = True
            elif not pending:
                take = 0
            elif queued > pending or begun + pending >= largest:
                saturated = True
                take = pending
            elif exceeded or not delay:
                take = pending
            else:
                next_preferred = above[begun + pending] - begun
                if saturated or not begun or within[begun] == begun:
                    timer = arrivals[head] + delay
                    break
                take = pending
            start = head
            head += take
            if current == _NEW and take:
                if idle:
                    idle -= 1
                    finish = now + cycle[take] * draw()
                    ends.append(head)
                    finishes.append(finish)
                    insort(busy, finish)
                    current = _TAKEN
                else:
                    scheduled.append(start)
                    current = _SCHEDULED

        # Without a delay a scheduled payload takes every arrival. With one it takes the first, and then Triton waits
        # for a whole preferred size: `next_preferred` outlives the choice for which it was set.
        if not delay and current == _SCHEDULED and len(scheduled) < limit:
            growth = above[head - scheduled[-1]] - (head - scheduled[-1])
