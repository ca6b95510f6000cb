"""What a load test says when things go wrong: `python benchmarks/load_faults.py [--json FILE]`.

Each fault is real: processes are killed or stopped, a connection is slow to get its TLS, a server refuses. `verdict`
is what the user is told; it must hold `expected`. `left_running` counts processes of the test that outlive it.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from repogen.errors import RepogenError  # noqa: E402
from repogen.load import samples  # noqa: E402
from repogen.load.metrics import result  # noqa: E402
from repogen.load.runner import Load, measure  # noqa: E402
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config  # noqa: E402

SMALL = [{"x": np.zeros((1, 4), np.float32)}]
MARK = "REPOGEN_TLS_FAULTS"  # a variable that the test's processes inherit, and by which they are found


def ours() -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"{MARK}={os.getpid()}".encode() in (folder / "environ").read_bytes()
                and int(folder.name) != os.getpid()
            ):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # noqa: PERF203 - it ended meanwhile
            continue
    return found


def slowly(request: object) -> object:
    time.sleep(0.005)
    return echo(request)


@contextmanager
def fake(script: Callable[[object], object] = slowly, **options: object) -> Iterator[FakeTriton]:
    with FakeTriton(FakeModel(identity_config("echo", dims=options.pop("dims", (4,))), script), **options) as server:
        yield server


def told(url: str, requests: list[dict[str, np.ndarray]] = SMALL, **load: object) -> str:
    """Run one load test and return what its user reads."""
    settings = {"users": 4, "rate": 100.0, "arrivals": "constant", "duration": 4.0, "deadline": 2.0, "warm_up": 0.5}
    try:
        return str(result(measure(url, "echo", requests, Load(**{**settings, **load}))).verdict)
    except RepogenError as error:
        return f"{type(error).__name__}: {error}"


def when_sending(server: FakeTriton, act: Callable[[], None], calls: int = 120) -> threading.Thread:
    """Act once the server has had so many requests."""

    def wait() -> None:
        limit = time.monotonic() + 60
        while sum(name == "ModelInfer" for name, _ in server.calls) < calls and time.monotonic() < limit:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def server_killed() -> str:
    with fake() as server:
        thread = when_sending(server, server.kill)
        try:
            return told(server.url)
        finally:
            thread.join()


def server_stopped() -> str:
    """A real process that is stopped by SIGSTOP for the rest of the run."""
    command = [sys.executable, "-m", "tests.load.oracle", "1", "2", "100"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    timer = threading.Timer(9.0, process.send_signal, [signal.SIGSTOP])
    timer.start()
    try:
        return told(url, duration=12.0)
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def exhausted() -> str:
    numbers = iter(range(10**9))

    def full(request: object) -> object:
        if next(numbers) % 10 == 5:
            raise Refusal("RESOURCE_EXHAUSTED", "CUDA out of memory")
        return slowly(request)

    with fake(full) as server:
        return told(server.url)


def wrong_shape() -> str:
    def check(request: object) -> object:
        if list(request.inputs[0].shape)[1:] != [4]:  # type: ignore[attr-defined]
            raise Refusal("INVALID_ARGUMENT", "unexpected shape for input 'x'")
        return echo(request)

    with fake(check) as server:
        return told(server.url, [{"x": np.zeros((1, 5), np.float32)}])


def large() -> str:
    with fake(echo, dims=(-1,)) as server:
        return told(server.url, [{"x": np.zeros((1, 1_310_720), np.float32)}], rate=10.0)


def slow_tls(delay: float) -> str:
    """A connection whose bytes wait `delay` seconds before the first of them passes."""
    with tempfile.TemporaryDirectory() as name, listening() as front:
        folder = Path(name)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem", "-out", "c.pem",
             "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        key, certificate = (folder / "k.pem").read_bytes(), (folder / "c.pem").read_bytes()
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        os.environ["REPOGEN_TLS_CA"] = str(folder / "c.pem")
        try:
            with fake(slowly, credentials=credentials) as server:
                back = int(server.url.rpartition(":")[2])
                threading.Thread(target=forward, args=(front, back, delay), daemon=True).start()
                return told(f"grpcs://127.0.0.1:{front.getsockname()[1]}")
        finally:
            del os.environ["REPOGEN_TLS_CA"]


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.socket() as front:
        front.bind(("127.0.0.1", 0))
        front.listen()
        yield front
        front.shutdown(socket.SHUT_RDWR)


def forward(front: socket.socket, back: int, delay: float) -> None:
    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    while True:
        try:
            client, _ = front.accept()
        except OSError:
            return
        time.sleep(delay)
        server = socket.create_connection(("127.0.0.1", back))
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def signalled(number: signal.Signals) -> str:
    """Send a signal to the generator in the middle of a run; its samples must still be readable."""
    with fake() as server, tempfile.TemporaryDirectory() as name:

        def act() -> None:
            for pid, line in ours().items():
                if "repogen.load.generator" in line:
                    os.kill(pid, number)

        thread = when_sending(server, act)
        try:
            load = Load(users=4, rate=100.0, arrivals="constant", duration=6.0, deadline=2.0, warm_up=0.5)
            measure(server.url, "echo", SMALL, load, folder=Path(name))
        except RepogenError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            thread.join()
        kept = samples.load_all(Path(name))
        return f"{result(kept).verdict}; {sum(len(part.sent) for part in kept)} samples kept"


FAULTS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("server killed", server_killed, "the server was lost"),
    ("server stopped (SIGSTOP)", server_stopped, "requests failed"),
    ("RESOURCE_EXHAUSTED", exhausted, "most with: CUDA out of memory"),
    ("wrong shape", wrong_shape, "the first request failed: unexpected shape"),
    ("5 MB tensor", large, "valid"),
    ("TLS after 1 s", lambda: slow_tls(1.0), "valid"),
    ("TLS after 30 s", lambda: slow_tls(30.0), "no answer from"),
    ("SIGINT of the generator", lambda: signalled(signal.SIGINT), "the run was interrupted"),
    ("SIGKILL of the generator", lambda: signalled(signal.SIGKILL), "the generator was killed"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    options = parser.parse_args()
    os.environ[MARK] = str(os.getpid())
    rows = []
    for name, provoke, expected in FAULTS:
        if options.only not in name:
            continue
        begun = time.monotonic()
        verdict = provoke()
        seconds = time.monotonic() - begun
        time.sleep(0.5)
        rows.append(
            {
                "name": name,
                "verdict": verdict,
                "expected": expected,
                "seconds": round(seconds, 1),
                "left_running": len(ours()),
            }
        )
        mark = "ok " if expected in verdict and not ours() else "BAD"
        print(f"{mark} {name}: {seconds:.1f} s, {len(ours())} left: {verdict}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"faults": rows}, indent=2))
    sys.exit(any(row["expected"] not in row["verdict"] or row["left_running"] for row in rows))


if __name__ == "__main__":
    main()
