"""Start generators and scripted servers for tests; stop them by their own ids."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np

from repogen.load import payload, samples
from repogen.load.process import Generator
from repogen.load.spec import Spec
from tests.conftest import ROOT

REQUESTS = [{"x": np.full((1, 4), number, dtype=np.float32)} for number in range(3)]


def spec(url, folder, **changes):
    (made := folder / "made").mkdir(exist_ok=True)
    payload.save(made / "payloads.npz", REQUESTS)
    plain = {"url": url, "model": "echo", "folder": str(folder), "name": "s", "payloads": str(made / "payloads.npz")}
    return Spec(**{**plain, "warm_up": 0.0, "duration": 1.0, "deadline": 5.0, **changes})


@contextmanager
def generator(url, folder, **changes):
    child = Generator(spec(url, folder, **changes))
    try:
        child.wait_ready(30)
        yield child
    finally:
        child.close()


def generate(url, folder, **changes) -> samples.Samples:
    """Run one generator to its end."""
    with generator(url, folder, **changes) as child:
        return child.finish(child.spec.warm_up + child.spec.duration + child.spec.deadline + 20)


@contextmanager
def oracle(low, high, count):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.load.oracle", str(low), str(high), str(count)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def truth(process):
    """Ask an oracle what its answers really took, in nanoseconds and in order."""
    process.stdin.close()
    return np.sort(np.array(json.loads(process.stdout.readline())) * 1e9)


def wait_for(condition, seconds=15):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")
