"""The real locustfile under a real Locust, against a scripted Triton."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from repogen.assets import LOADTESTS
from repogen.errors import MissingExtra, Refused, RepogenError
from repogen.load import runner, samples
from repogen.load.intervals import percentile
from repogen.load.metrics import result, summarise
from repogen.load.process import environment
from repogen.load.runner import Load
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config
from tests.load.drive import REQUESTS, wait_for
from tests.load.made import samples_of


def family():
    """Command lines of our Locusts and generators, wherever they hang."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            text = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"REPOGEN_TLS_TEST={os.getpid()}".encode() in text and ("locust" in line or "repogen.load" in line):
            found.append(line)
    return found


@pytest.fixture(autouse=True)
def _marked(monkeypatch):
    monkeypatch.setenv("REPOGEN_TLS_TEST", str(os.getpid()))  # a variable that children keep
    yield
    wait_for(lambda: not family(), 5)


def slowly(request):
    time.sleep(0.02)
    return echo(request)


@pytest.fixture
def fake():
    with FakeTriton(FakeModel(identity_config("echo"), slowly)) as server:
        yield server


def measure(fake, folder=None, **changes):
    load = Load(**{"users": 2, "duration": 1.0, "warm_up": 0.0, "deadline": 5.0, **changes})
    return runner.measure(fake.url, "echo", REQUESTS, load, folder=folder)


def test_a_run_and_its_figures(fake):
    measured = measure(fake, users=4, duration=1.5)
    seen = summarise(measured)
    assert seen.errors == 0
    assert measured[0].server["statistics"]["requests"] == seen.requests > 100
    assert 20 <= seen.p50 <= seen.max
    assert seen.seconds == pytest.approx(1.5, abs=0.01)
    values = {r.raw_input_contents[0] for name, r in fake.calls if name == "ModelInfer"}
    assert len(values) == 3
    assert not family()


def test_two_processes_pool_their_samples(fake, tmp_path):
    measured = measure(fake, tmp_path, users=4, workers=2, rate=600.0, arrivals="constant", duration=2.0, warm_up=0.3)
    assert len(measured) == 2
    assert {part.conditions.rate for part in measured} == {300.0}
    assert {part.conditions.run for part in measured} == {measured[0].conditions.run}
    one = result(measured)
    assert (one.users, one.target_rate) == (4, 600.0)
    pooled = np.sort(np.concatenate([(p.done - p.intended)[p.measured & (p.status == 0)] for p in measured]))
    assert len(pooled) == pytest.approx(1200, abs=6)
    assert one.summary.p99 == percentile(pooled, 99) * 1e-6
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{p.stem}.npz" for p in tmp_path.glob("*.npz"))


@pytest.mark.slow
def test_it_ends_when_it_is_sure(fake):
    begun = time.monotonic()
    fake.models["echo"].infer = echo
    measured = measure(fake, users=1, rate=500.0, arrivals="constant", duration=60.0, until="p50±40%")
    assert time.monotonic() - begun < 30
    assert measured[0].conditions.ended == "stopped"


@contextmanager
def workers_of(port, count=2):
    """Workers as they run on other machines: all that they are told is where the master is."""
    options = ("--worker", "--master-host", "127.0.0.1", "--master-port", str(port))
    started = [locust(*options) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
            process.communicate(timeout=20)


def test_a_master_pools_the_samples_of_workers_elsewhere(fake, tmp_path):
    port = free_port()
    with workers_of(port):
        measured = measure(
            fake, tmp_path, users=4, workers=2, master=f"127.0.0.1:{port}",
            rate=600.0, arrivals="constant", duration=2.0, warm_up=0.3,
        )  # fmt: skip
    assert [part.conditions.workers for part in measured] == [2, 2]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".npz", ".npz"]
    pooled = np.sort(np.concatenate([(p.done - p.intended)[p.measured & (p.status == 0)] for p in measured]))
    assert len(pooled) == pytest.approx(1200, abs=6)
    assert result(measured).summary.p99 == percentile(pooled, 99) * 1e-6


@pytest.mark.slow
def test_a_worker_that_is_killed_holds_nobody_up(fake, tmp_path):
    """It dies so late that Locust has not missed it yet when the other one ends."""
    port = free_port()
    with workers_of(port) as workers, ThreadPoolExecutor() as pool:
        running = pool.submit(
            measure, fake, tmp_path, users=2, workers=2, master=f"127.0.0.1:{port}", duration=5.0, deadline=60.0
        )
        wait_for(lambda: sum(name == "ModelInfer" for name, _ in fake.calls) > 200, 30)
        time.sleep(2)
        workers[0].kill()
        measured = running.result(timeout=60)  # Locust's own limit is 75 s
    assert "1 of 2 workers were lost" in str(result(measured).verdict)
    assert len(measured) == 1


def test_every_request_fails():
    part = samples_of([5] * 3, [13] * 3, failures={"plan is broken": 3})
    with pytest.raises(Refused, match=r"echo: all 3 requests failed, the first with: plan is broken"):
        runner._refuse_only_failures("echo", [part], 3)


def test_a_model_that_refuses_its_first_request_is_not_loaded(fake):
    def refuse(_):
        raise Refusal("INVALID_ARGUMENT", "unexpected shape")

    fake.models["echo"].infer = refuse
    with pytest.raises(Refused, match=r"echo: the first request failed: unexpected shape"):
        measure(fake)


@pytest.mark.slow
def test_the_server_goes_away(fake):
    answers = iter(range(10**9))

    def dying(request):
        if next(answers) == 30:
            threading.Thread(target=fake.kill).start()
        return slowly(request)

    fake.models["echo"].infer = dying
    start = time.monotonic()
    one = result(measure(fake, duration=3.0, deadline=1.0))
    assert time.monotonic() - start < 3 + 1 + 15
    assert not one.verdict.valid
    assert "the server was lost" in one.verdict.reasons[0]
    assert "requests failed" in one.verdict.reasons[1]


def test_an_interrupt_leaves_no_process_behind(fake, monkeypatch):
    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout == runner._LOOK and any(name == "ModelInfer" for name, _ in fake.calls[5:]):
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(runner.subprocess, "Popen", Interrupted)
    one = result(measure(fake, duration=60.0))
    assert 0 < one.summary.requests < 1000
    assert "interrupted" in str(one.verdict) or one.conditions[0].ended == "stopped"


def test_locust_that_cannot_start_says_why(fake, monkeypatch, tmp_path):
    (tmp_path / "locustfile.py").write_text("raise RuntimeError('no such thing')\n")
    monkeypatch.setattr(runner, "LOADTESTS", tmp_path)
    with pytest.raises(RepogenError, match="no such thing"):
        measure(fake)


def test_without_locust(fake, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'repogen\[load\]'"):
        measure(fake)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(arrivals="constant"), "constant needs a rate"),
        (Load(arrivals="closed", rate=3.0), "a closed loop has no rate"),
        (Load(users=1, workers=2), "2 workers share 1 users"),
        (Load(until="p99"), "says no precision"),
        (Load(arrivals="trace:/nowhere.csv"), "cannot be read"),
    ],
)
def test_a_load_that_cannot_be(load, words):
    with pytest.raises(RepogenError, match=words):
        load.check()


def locust(*options):
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(LOADTESTS / "locustfile.py"), *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_locust_by_itself(fake, tmp_path):
    fake.models["echo"].config.input[0].dims[:] = [-1, -1]
    process = locust(
        *("--headless", "--host", f"grpc://{fake.url}", "--model", "echo", "--run-time", "3", "-u", "2", "-r", "2"),
        *("--batch-size", "2", "--shape", "x:3,5", "--samples", str(tmp_path), "--warm-up", "0.2"),
        *("--csv", str(tmp_path / "stats"), "--html", str(tmp_path / "page.html")),
    )
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 0, output
    [part] = samples.load_all(tmp_path)
    assert part.conditions.ended == "stopped"
    assert len(part.sent) > 10
    asked = next(r for name, r in fake.calls if name == "ModelInfer")
    assert list(asked.inputs[0].shape) == [2, 3, 5]
    row = (tmp_path / "stats_stats.csv").read_text().splitlines()[1].split(",")
    assert row[:2] == ["grpc", "echo"]
    told = re.findall(r"^grpc +echo +(\d+)", output, re.MULTILINE)
    assert int(told[-2]) == part.measured.sum()  # Locust was told of every request that counts
    assert "echo" in (tmp_path / "page.html").read_text()


def test_locust_by_itself_with_nothing_to_ask(fake):
    process = locust("--headless", "--host", fake.url, "--run-time", "20")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "--model: no model to ask" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_the_web_page_starts_and_stops_a_test(fake, tmp_path):
    port = free_port()
    options = ("--web-host", "127.0.0.1", "--web-port", str(port), "--samples", str(tmp_path))
    process = locust("--host", fake.url, "--model", "echo", *options)
    try:
        page = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(page), 30)
        form = {"user_count": 2, "spawn_rate": 2, "host": fake.url, "model": "echo", "batch_size": 3, "deadline": 5}
        form |= {"warm_up": 0, "duration": 0}
        urllib.request.urlopen(f"{page}/swarm", urllib.parse.urlencode(form).encode(), timeout=30).close()
        wait_for(lambda: sum(name == "ModelInfer" for name, _ in fake.calls) > 20)
        wait_for(
            lambda: json.load(urllib.request.urlopen(f"{page}/stats/requests", timeout=5))["stats"][0]["num_requests"]
        )
        urllib.request.urlopen(f"{page}/stop", b"", timeout=20).close()
        wait_for(lambda: list(tmp_path.glob("*.npz")))
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
    asked = [r for name, r in fake.calls if name == "ModelInfer"]
    assert list(asked[-1].inputs[0].shape) == [3, 4]
    assert "Traceback" not in output


def answers(page):
    try:
        return urllib.request.urlopen(page, timeout=2).status == 200
    except OSError:
        return False


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
