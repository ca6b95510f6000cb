"""`repogen serve`: the manifest's models on a real Triton on this machine."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from repogen.console import Console
from repogen.errors import RepogenError, ServerError

if TYPE_CHECKING:
    from repogen.first_request import FirstRequest
    from repogen.model import ServedModel

_TERMINATED = 128 + signal.SIGTERM
_PAUSE = 0.2
_CHILD_GRACE = 5.0
_READY = 120.0  # seconds that the embedded server may take


class _Running(Protocol):
    """A server that this command started: the embedded one, or Docker's."""

    @property
    def server_id(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def http(self) -> str: ...
    @property
    def grpc(self) -> str: ...
    @property
    def metrics(self) -> str: ...
    def poll(self) -> int | None: ...
    def reasons(self) -> list[str]: ...


class _Terminated(BaseException):
    """SIGTERM, as an exception that unwinds everything."""


def serve(
    manifest: Path,
    *,
    only: Sequence[str],
    jobs: int,
    grpc_port: int | None,
    http_port: int | None,
    metrics_port: int | None,
    command: Sequence[str],
    console: Console,
    timeout: float | None = None,
    docker: bool = False,
    compose: Path = Path("docker-compose.yml"),
    cold_start: bool = False,
) -> int:
    if docker:
        return _in_docker(
            manifest, only, compose, jobs=jobs, timeout=timeout, command=command, cold_start=cold_start, console=console
        )
    from repogen import server
    from repogen.desired import chosen
    from repogen.embedded import devices, embed
    from repogen.endpoint import noted
    from repogen.publish import state_folder
    from repogen.python_steps import check_installed
    from repogen.releases import EMBEDDED
    from repogen.runtime import find_runtime

    root, models = chosen(manifest, only, jobs=jobs, members=True)
    check_installed(models, find_runtime().python, str(manifest))
    state = state_folder(root)
    stand_ins = [embed(model, cpus=os.cpu_count() or 1) for model in models]
    where = f"embedded Triton {EMBEDDED.triton}, on this machine's {devices(stand_ins)}"
    ports = server.Ports(http=http_port or 0, grpc=grpc_port or 0, metrics=metrics_port or 0)
    with _terminable():
        try:
            with _written(stand_ins, state / "served") as repository:
                console.note(f"starting Triton with {len(models)} models")
                with (
                    server.start(repository, ports=ports, timeout=timeout or _READY) as triton,
                    noted(state, triton.server_id, triton.grpc),
                ):
                    _show(triton, models, console, cold_start=cold_start)
                    console.note(f"{where}: for development only, never for production")
                    return _run(command, triton, console) if command else _wait(triton, console)
        except _Terminated:
            return _TERMINATED


def _in_docker(
    manifest: Path,
    only: Sequence[str],
    compose: Path,
    *,
    jobs: int,
    timeout: float | None,
    command: Sequence[str],
    cold_start: bool,
    console: Console,
) -> int:
    """Serve the published repository with the release that the compose file names."""
    from repogen import docker_server
    from repogen.desired import chosen
    from repogen.endpoint import noted
    from repogen.export.settings import Settings
    from repogen.export.sizing import load_seconds
    from repogen.manifest import load_manifest
    from repogen.publish import state_folder
    from repogen.triton import Client

    if only:
        raise RepogenError("Docker serves the whole repository", where="--model", hint="leave --model out")
    root, models = chosen(manifest, (), jobs=jobs)
    limit = timeout or load_seconds(models, Settings(load_manifest(manifest), compose.parent))
    gpu = any(group.kind == "gpu" for model in models for group in model.instances)
    with _terminable():
        try:
            console.note(f"docker compose up: {compose}, profile {'gpu' if gpu else 'cpu'}")
            with docker_server.start(compose, gpu=gpu, timeout=limit) as triton:
                with Client(triton.grpc) as client:
                    name = client.server_id()
                with noted(state_folder(root), name, triton.grpc):
                    _show(triton, models, console, cold_start=cold_start)
                    return _run(command, triton, console) if command else _wait(triton, console)
        except _Terminated:
            return _TERMINATED


@contextmanager
def _terminable() -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _written(stand_ins: Sequence["ServedModel"], folder: Path) -> Iterator[Path]:
    """Write the embedded repository into a folder of this process; those of dead processes are removed."""
    from repogen.publish import write_model
    from repogen.render import render

    for left in folder.glob("[0-9]*"):
        if not Path("/proc", left.name).exists():
            shutil.rmtree(left, ignore_errors=True)
    repository = folder / str(os.getpid())
    repository.mkdir(parents=True)
    try:
        for model in stand_ins:
            write_model(model, render(model), repository / model.name)
        yield repository
    finally:
        shutil.rmtree(repository, ignore_errors=True)


def _show(triton: _Running, models: Sequence["ServedModel"], console: Console, *, cold_start: bool) -> None:
    firsts = _first_requests(triton, models) if cold_start else ()
    for model in models:
        console.say(f"{console.paint('READY', 'green')}  {model.name}")
    for first in firsts:
        _show_first(first, console)
    console.say(f"gRPC {triton.grpc}  HTTP {triton.http}  metrics {triton.metrics}")
    console.document(
        {
            "server_id": triton.server_id,
            "pid": triton.pid,
            "grpc": triton.grpc,
            "http": triton.http,
            "metrics": triton.metrics,
            "models": [model.name for model in models],
            **({"first_requests": [asdict(first) for first in firsts]} if cold_start else {}),
        }
    )


def _first_requests(triton: _Running, models: Sequence["ServedModel"]) -> "tuple[FirstRequest, ...]":
    from repogen.first_request import first_requests
    from repogen.triton import Client

    with Client(triton.grpc) as client:
        return first_requests(client, models)


def _show_first(first: "FirstRequest", console: Console) -> None:
    warm = "none" if first.warm is None else f"{1e3 * first.warm:.1f} ms"
    console.say(
        f"{first.model}: first request {1e3 * first.cold:.1f} ms without warm-up, {warm} with it; "
        f"then {1e3 * first.settled:.1f} ms"
    )


def _wait(triton: _Running, console: Console) -> int:
    console.note("Ctrl-C stops it")
    while triton.poll() is None:
        time.sleep(_PAUSE)
    raise _ended(triton)


def _ended(triton: _Running) -> ServerError:
    reasons = "; ".join(triton.reasons()) or "its log says nothing"
    return ServerError(f"Triton ended by itself with status {triton.poll()}: {reasons}", hint="start it again")


def _run(command: Sequence[str], triton: _Running, console: Console) -> int:
    """Run `command` beside the server and return its exit code; end it when the server ends first."""
    try:
        child = subprocess.Popen(command, env={**os.environ, **_environment(triton)})
    except OSError as error:
        raise ServerError(f"{command[0]} cannot be started: {error.strerror}") from None
    try:
        while (code := child.poll()) is None:
            if triton.poll() is not None:
                raise _ended(triton)
            time.sleep(_PAUSE)
    finally:
        _end(child)
    console.note(f"{command[0]} ended with exit code {code}; stopping Triton")
    return code if code >= 0 else 128 - code


def _environment(triton: _Running) -> Mapping[str, str]:
    return {
        "REPOGEN_URL": triton.grpc,
        "REPOGEN_HTTP_URL": f"http://{triton.http}",
        "REPOGEN_METRICS_URL": f"http://{triton.metrics}/metrics",
    }


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_CHILD_GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
