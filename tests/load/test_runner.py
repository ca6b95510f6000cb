"""The real locustfile under a real Locust, against a scripted Triton."""

import os
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from repogen.assets import LOADTESTS
from repogen.errors import MissingExtra, Refused, RepogenError, ServerError
from repogen.load import runner, samples
from repogen.load.metrics import summarise
from repogen.triton import Client
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config

REQUESTS = [{"x": np.full((1, 4), number, dtype=np.float32)} for number in range(3)]


def children():
    """Process ids of our Locust children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and b"locust" in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:  # noqa: PERF203 - it ended meanwhile
            continue
    return found


def measure(fake, **options):
    with Client(fake.url) as client:
        settings = {"users": 2, "duration": 2, "deadline": 5.0, **options}
        return runner.measure(client, "echo", REQUESTS, **settings)


@pytest.fixture
def fake():
    with FakeTriton(FakeModel(identity_config("echo"))) as server:
        yield server


def slowly(request):
    time.sleep(0.02)
    return echo(request)


def test_a_run_and_its_figures(fake):
    fake.models["echo"].infer = slowly
    measured, statistics = measure(fake, users=4)
    seen = summarise(measured)
    assert seen.errors == 0
    assert statistics.requests == seen.requests > 100  # the warm-up is in neither
    assert 20 <= seen.p50 <= seen.p99 <= seen.max
    assert 1.8 < seen.seconds < 2.5
    values = {r.raw_input_contents[0] for name, r in fake.calls if name == "ModelInfer"}
    assert len(values) == 3
    assert not children()


def test_failures_are_counted_and_lend_no_latency(fake):
    numbers = iter(range(10**9))

    def every_other(request):
        number = next(numbers)
        if number >= runner._WARM_UP and number % 2:
            raise Refusal("RESOURCE_EXHAUSTED", "out of memory for echo")
        return slowly(request)

    fake.models["echo"].infer = every_other
    measured, statistics = measure(fake)
    seen = summarise(measured)
    assert seen.errors == statistics.failures > 5
    assert seen.p50 >= 20
    [(message, count)] = seen.failures
    assert "out of memory for echo" in message
    assert count == seen.errors


def test_every_request_fails(fake):
    numbers = iter(range(10**9))

    def after_warm_up(request):
        if next(numbers) < runner._WARM_UP:
            return echo(request)
        raise Refusal("INTERNAL", "plan is broken")

    fake.models["echo"].infer = after_warm_up
    with pytest.raises(Refused, match=r"echo: all \d+ requests failed, the first with: .*plan is broken"):
        measure(fake, duration=1)


def test_a_model_that_refuses_the_warm_up_is_not_loaded(fake):
    def refuse(_):
        raise Refusal("INVALID_ARGUMENT", "unexpected shape")

    fake.models["echo"].infer = refuse
    with pytest.raises(Refused, match=r"echo: warm-up request 1 of 3 failed: .*unexpected shape"):
        measure(fake)


def test_the_server_goes_away(fake):
    fake.models["echo"].infer = slowly
    timer = threading.Timer(3, fake.kill)
    timer.start()
    start = time.monotonic()
    with pytest.raises(ServerError, match=r"echo: the server was lost .* \d+ of \d+ requests failed"):
        measure(fake, duration=4, deadline=1.0)
    assert time.monotonic() - start < 4 + 1 + 6
    timer.join()
    assert not children()


def test_a_server_that_hangs_ends_within_the_deadline(fake):
    free = threading.Event()
    numbers = iter(range(10**9))

    def hang(request):
        if next(numbers) > 10:
            free.wait(10)
        return echo(request)

    fake.models["echo"].infer = hang
    start = time.monotonic()
    measured, _ = measure(fake, duration=1, deadline=0.5)
    assert time.monotonic() - start < 1 + 0.5 + 6
    free.set()
    seen = summarise(measured)
    assert seen.errors >= 2
    assert "within 0.5 s" in seen.failures[0][0]


def test_an_interrupt_leaves_no_locust_behind(fake, monkeypatch):
    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout and timeout > 10:
                assert children()
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(runner.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(fake)
    assert not children()


def test_locust_that_cannot_start_says_why(fake, monkeypatch, tmp_path):
    (tmp_path / "locustfile.py").write_text("raise RuntimeError('no such thing')\n")
    monkeypatch.setattr(runner, "LOADTESTS", tmp_path)
    with pytest.raises(RepogenError, match="no such thing"):
        measure(fake)


def test_without_locust(fake, monkeypatch):
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'repogen\[load\]'"):
        measure(fake)


def locust(*options):
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(LOADTESTS / "locustfile.py"), *options],
        env=runner._environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_locust_by_itself(fake, tmp_path):
    fake.models["echo"].config.input[0].dims[:] = [-1, -1]
    process = locust(
        *("--headless", "--host", f"grpc://{fake.url}", "--model", "echo", "--run-time", "1", "-u", "2"),
        *("--batch-size", "2", "--shape", "x:3,5", "--samples", str(tmp_path)),
    )
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert len(samples.load_all(tmp_path)[0].sent) > 10
    asked = next(r for name, r in fake.calls if name == "ModelInfer")
    assert list(asked.inputs[0].shape) == [2, 3, 5]


def test_locust_by_itself_with_nothing_to_ask(fake):
    process = locust("--headless", "--host", fake.url, "--run-time", "20")
    output, _ = process.communicate(timeout=15)
    assert process.returncode == 2
    assert "--model: no model to ask" in output
    assert "Traceback" not in output


def test_the_web_page_starts_and_stops_a_test(fake, tmp_path):
    port = free_port()
    options = ("--web-host", "127.0.0.1", "--web-port", str(port), "--samples", str(tmp_path))
    process = locust("--host", fake.url, "--model", "echo", *options)
    try:
        page = f"http://127.0.0.1:{port}"
        wait_for(lambda: urllib.request.urlopen(page, timeout=2).status == 200)
        form = {"user_count": 2, "spawn_rate": 2, "host": fake.url, "model": "echo", "batch_size": 3, "deadline": 5}
        urllib.request.urlopen(f"{page}/swarm", urllib.parse.urlencode(form).encode(), timeout=5).close()
        wait_for(lambda: sum(name == "ModelInfer" for name, _ in fake.calls) > 20)
        urllib.request.urlopen(f"{page}/stop", b"", timeout=10).close()
        wait_for(lambda: samples.load_all(tmp_path))
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=10)
    asked = [r for name, r in fake.calls if name == "ModelInfer"]
    assert list(asked[-1].inputs[0].shape) == [3, 4]
    assert "Traceback" not in output


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")
