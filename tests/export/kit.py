"""The real tritonserver with exactly the flags that an export renders, and a few looks at it."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from repogen import server
from repogen.desired import models_of
from repogen.export.settings import Settings
from repogen.manifest import load_manifest
from repogen.runtime import find_runtime


@dataclass(frozen=True)
class Running:
    http: int
    grpc: int
    metrics: int
    process: subprocess.Popen
    log: Path

    def status(self, path: str, *, method: str = "GET", headers: Mapping[str, str] = {}) -> int:
        url = f"http://127.0.0.1:{self.http}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=dict(headers))) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metrics_text(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            return answer.read().decode()


@contextmanager
def triton(
    flags: Sequence[str], models: Sequence[str], seconds: float = 60, *, within: Sequence[str] = ()
) -> Iterator[Running]:
    """Run it on loopback, by the command `within`, until the block ends; it begins when each of `models` is ready."""
    runtime = find_runtime(None)
    with (
        tempfile.TemporaryDirectory(prefix="repogen-test-") as name,
        socket.socket() as a,
        socket.socket() as b,
        socket.socket() as c,
    ):
        for one in (a, b, c):
            one.bind(("127.0.0.1", 0))
        http, grpc, metrics = (one.getsockname()[1] for one in (a, b, c))
        for one in (a, b, c):
            one.close()
        scratch = Path(name)
        ours = [
            *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
            f"--backend-directory={scratch / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name=rt{os.getpid()}{http}",
        ]
        log = scratch / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [*within, *server._environment(runtime, scratch), str(runtime.tritonserver), *flags, *ours],
                stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
        running = Running(http, grpc, metrics, process, log)
        try:
            end = time.monotonic() + seconds
            while not all(running.status(f"/v2/models/{model}/ready") == 200 for model in models):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end, log.read_text()[-3000:]
                time.sleep(0.1)
            yield running
        finally:
            stop(process)


def stop(process: subprocess.Popen, seconds: float = 20) -> int:
    """End a process by its id, with all of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def exported(what: str, folder: Path) -> dict[str, str]:
    """Return what `repogen export WHAT` renders for `folder`/repogen.yaml beside it."""
    manifest = load_manifest(folder / "repogen.yaml")
    module = import_module(f"repogen.export.{what}")
    return module.files(models_of(manifest), Settings(manifest, folder))
