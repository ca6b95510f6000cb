r"""Load shapes: how many users there are over time. SHAPE names one, Steps where it is not set:

    SHAPE=Spike locust -f loadtests/locustfile.py,loadtests/shapes.py --headless \\
        --host 127.0.0.1:8001 --model text_rec

In a closed loop that many requests are under way; with --user-rate R the users' rates add up instead, so a shape
of users becomes a shape of requests a second.
"""

import math
import os
from typing import ClassVar

from locust import LoadTestShape


class Steps(LoadTestShape):
    """Twice as many users every 30 seconds: where does latency begin to climb."""

    seconds = 30
    users: ClassVar = (1, 2, 4, 8, 16, 32, 64)

    def tick(self) -> tuple[int, int] | None:
        step = int(self.get_run_time() // self.seconds)
        return (self.users[step], self.users[step]) if step < len(self.users) else None


class Spike(LoadTestShape):
    """Quiet, four times as much for 20 seconds, quiet again: how long does it take to recover."""

    base, spike = 8, 32
    begin, end, stop = 40, 60, 120

    def tick(self) -> tuple[int, int] | None:
        now = self.get_run_time()
        if now >= self.stop:
            return None
        users = self.spike if self.begin <= now < self.end else self.base
        return users, users


class Day(LoadTestShape):
    """A day in ten minutes: a sine between 10 % and all of the users."""

    users, seconds = 40, 600

    def tick(self) -> tuple[int, int] | None:
        now = self.get_run_time()
        if now >= self.seconds:
            return None
        part = 0.55 - 0.45 * math.cos(2 * math.pi * now / self.seconds)
        return max(round(self.users * part), 1), self.users


for shape in (Steps, Spike, Day):
    shape.abstract = shape.__name__ != os.environ.get("SHAPE", "Steps")
