"""Run the real tritonserver on this machine: no Docker, no GPU, nothing left behind."""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from repogen import guard, triton_log
from repogen.errors import ServerError
from repogen.runtime import Runtime, find_runtime

_HOST = "127.0.0.1"
_ATTEMPTS = 3  # another process may take a free port before the server does
_PAUSE = 0.05
_SETTLE = 2.0  # when one model has failed, the others have this long to tell their reasons too,
_PATIENCE = 20.0  # and those that are loading this long


@dataclass(frozen=True)
class Ports:
    """The server's ports; 0 is any free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


@dataclass(frozen=True)
class Embedded:
    """A tritonserver that this process started. `pid` is its own, `guard.pid` that of the process over it."""

    server_id: str
    pid: int
    ports: Ports
    repository: Path
    log: Path
    guard: subprocess.Popen[bytes] = field(repr=False)

    @property
    def http(self) -> str:
        return f"{_HOST}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        return f"{_HOST}:{self.ports.grpc}"

    @property
    def metrics(self) -> str:
        return f"{_HOST}:{self.ports.metrics}"

    def poll(self) -> int | None:
        """Return None while the server runs, else its exit status (128 + the signal where one ended it)."""
        return self.guard.poll()

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def log_lines(self) -> list[str]:
        return self.log_text().splitlines()

    def reasons(self) -> list[str]:
        """Return the lines of the log that say what went wrong, without Triton's decoration."""
        return triton_log.reasons(self.log_text())


class _PortTaken(Exception):
    """A port was free when we looked and is not any more."""


@contextmanager
def start(
    repository: Path,
    *,
    python: Path | None = None,
    ports: Ports | None = None,
    log: Path | None = None,
    extra_args: Sequence[str] = (),
    timeout: float = 120,
    models: Sequence[str] | None = None,
    control: str = "explicit",
) -> Iterator[Embedded]:
    """Serve `repository` while the block runs: it begins when every model (of `models`) is ready.

    The log goes to `log`, or to a temporary file that is kept only when the start fails.
    """
    if not repository.is_dir():
        raise ServerError(f"there is no model repository {repository}", hint="repogen sync writes one")
    runtime = find_runtime(python)
    asked = ports or Ports()
    _refuse_busy(asked)
    deadline = time.monotonic() + timeout
    options = [*_control_options(control, models), *extra_args]
    for attempt in range(_ATTEMPTS):
        with _launched(runtime, repository.absolute(), _fill(asked), log, options) as server:
            try:
                _wait_ready(server, models, deadline)
            except _PortTaken:
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise ServerError(_sentence(server, "found its ports taken three times")) from None
            yield server
            return


def _control_options(control: str, models: Sequence[str] | None) -> list[str]:
    if control == "poll":
        return ["--model-control-mode=poll", "--repository-poll-secs=1"]
    # EXPLICIT alone starts, and calls itself ready, with no model at all.
    wanted = ["*"] if models is None else models
    return ["--model-control-mode=explicit", *(f"--load-model={name}" for name in wanted)]


def _refuse_busy(ports: Ports) -> None:
    for kind in fields(ports):
        port = getattr(ports, kind.name)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError as error:
                name = (_ask(port, "GET", "/v2") or {}).get("name") if kind.name == "http" else None
                who = f"the Triton server '{name}' answers there" if name else (error.strerror or str(error))
                raise ServerError(
                    f"the {kind.name} port {port} cannot be used: {who}",
                    hint="stop what uses it, choose another port, or let repogen find a free one",
                ) from error


def _fill(ports: Ports) -> Ports:
    """Return `ports` with a free one for each 0."""
    with contextlib.ExitStack() as stack:
        free = {}
        for kind in fields(ports):
            if not getattr(ports, kind.name):
                probe = stack.enter_context(socket.socket())  # held until all are chosen: no port twice
                probe.bind((_HOST, 0))
                free[kind.name] = probe.getsockname()[1]
        return replace(ports, **free)


@contextmanager
def _launched(
    runtime: Runtime, repository: Path, ports: Ports, log: Path | None, options: Sequence[str]
) -> Iterator[Embedded]:
    """Start the guard, which starts the server; stop both at the end, however it comes."""
    server_id = f"repogen-{secrets.token_hex(4)}"
    scratch = Path(tempfile.mkdtemp(prefix=f"{server_id}-"))
    path = log or scratch.with_name(f"{server_id}.log")
    keep = log is not None
    process = None
    try:
        command = [*_environment(runtime, scratch), *_command(runtime, scratch, server_id, repository, ports)]
        process = _start_guard([str(scratch), server_id, str(path), *command, *options], path)
        assert process.stdout is not None
        pid = int(process.stdout.readline() or 0)
        yield Embedded(server_id, pid, ports, repository, path, process)
    except ServerError:
        keep = True
        raise
    finally:
        _stop(process, scratch, server_id)
        if not keep:
            path.unlink(missing_ok=True)


def _environment(runtime: Runtime, scratch: Path) -> list[str]:
    """Build the backend's folder and return the `env` command that lets the server find its parts."""
    backend = scratch / "backends" / "python"
    backend.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backend / name).symlink_to(runtime.backend / name)
    shutil.copy(runtime.stub, backend)  # Triton makes it executable, which may not be allowed in site-packages
    (backend / runtime.stub.name).chmod(0o755)
    (libraries := scratch / "lib").mkdir()
    if runtime.libpython:  # alone: its folder may hold other libraries that the server must not take
        (libraries / f"libpython{runtime.version[0]}.{runtime.version[1]}.so.1.0").symlink_to(runtime.libpython)
    # The stub runs the first `python3` of PATH. That is right in a virtual environment only.
    programs = runtime.python.parent
    if not runtime.venv:
        (programs := scratch / "bin").mkdir()
        (programs / "python3").symlink_to(runtime.python)
    return [
        "/usr/bin/env",
        f"PATH={programs}:{os.environ.get('PATH', os.defpath)}",
        f"LD_LIBRARY_PATH={runtime.libraries}:{libraries}",
    ]


def _command(runtime: Runtime, scratch: Path, server_id: str, repository: Path, ports: Ports) -> list[str]:
    return [
        str(runtime.tritonserver),
        f"--id={server_id}",
        f"--model-repository={repository}",
        f"--backend-directory={scratch / 'backends'}",
        f"--backend-config=python,shm-region-prefix-name={server_id}",
        "--backend-config=python,stub-timeout-seconds=120",
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--exit-on-error=true",  # one broken model and it ends, with the reasons in the log
        "--exit-timeout-secs=2",
        *(f"--{kind}-address={_HOST}" for kind in ("http", "grpc", "metrics")),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
    ]


def _start_guard(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        sink = log.open("wb")
    except OSError as error:
        raise ServerError(f"the log {log} cannot be written: {error.strerror}") from error
    with sink:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *arguments],
            stdin=subprocess.PIPE,  # its closing, by our end too, tells the guard to stop the server
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,  # Ctrl-C in a terminal must not reach the server before us
            cwd="/",
        )


def _stop(process: subprocess.Popen[bytes] | None, scratch: Path, server_id: str) -> None:
    if process is not None:
        process.terminate()
        try:
            process.wait(guard.GRACE + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        if process.returncode < 0:  # the guard itself was killed: its work falls to us
            guard.kill_session(process.pid)
    guard.sweep(scratch, server_id)


def _wait_ready(server: Embedded, models: Sequence[str] | None, deadline: float) -> None:
    give_up, failed = deadline, 0.0
    while True:
        log = server.log_text()
        if server.poll() is not None:
            if triton_log.port_taken(log):
                raise _PortTaken
            raise ServerError(_sentence(server, "did not start"), hint=f"the whole log is {server.log}")
        if triton_log.failed(log):
            failed = failed or time.monotonic()
            give_up = min(deadline, failed + (_PATIENCE if triton_log.loading(log) else _SETTLE))
        elif _is_ready(server, models):
            return
        if time.monotonic() > give_up:
            what = "did not start" if give_up < deadline else "was not ready in time"
            raise ServerError(_sentence(server, what), hint=f"the whole log is {server.log}")
        time.sleep(_PAUSE)


def _is_ready(server: Embedded, models: Sequence[str] | None) -> bool:
    """Return whether our server, and no other, answers, and each model is ready."""
    port = server.ports.http
    metadata = _ask(port, "GET", "/v2")
    if metadata is None:
        return False
    if metadata.get("name") != server.server_id:
        raise ServerError(f"another server, '{metadata.get('name')}', answers on the http port {port}")
    index = _ask(port, "POST", "/v2/repository/index") or []
    states = {entry["name"]: entry.get("state") for entry in index}
    wanted = states if models is None else models
    return all(states.get(name) == "READY" for name in wanted)


def _ask(port: int, method: str, path: str) -> Any:
    """Return the JSON that a server answers, or None where there is no such answer."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=2)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _sentence(server: Embedded, what: str) -> str:
    log = server.log_text()
    lines = triton_log.reasons(log)
    if not lines and (waiting := triton_log.loading(log)):
        lines = [f"still loading: {', '.join(waiting)}"]
    if not lines:
        code = server.poll()
        lines = [f"it ended with status {code}" if code is not None else "it does not answer"]
    return f"the embedded Triton {what}: " + "; ".join(lines)
