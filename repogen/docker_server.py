"""Run docker-compose.yml's Triton, and say in a sentence why it does not come up."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repogen import triton_log
from repogen.errors import ServerError

_SERVICES = {"gpu": "triton", "cpu": "triton-cpu"}
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"unknown command: docker compose|'compose' is not a docker command|unknown shorthand flag: 'f'",
        "docker has no compose",
        "install Docker's compose plugin, version 2",
    ),
    (
        r"permission denied.*docker\.sock|permission denied while trying to connect",
        "this user may not talk to Docker",
        "add the user to the group docker, or use rootless Docker",
    ),
    (
        r"Cannot connect to the Docker daemon|error during connect",
        "no Docker daemon runs",
        "start it, or serve without --docker",
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        "Docker cannot give a container the GPU",
        "install the NVIDIA Container Toolkit, or say kind: cpu in the manifest and sync",
    ),
    (
        r"port is already allocated|address already in use|ports are not available",
        "one of the ports is taken",
        "stop what uses it, or set TRITON_HTTP_PORT, TRITON_GRPC_PORT and TRITON_METRICS_PORT",
    ),
    (r"bind source path does not exist", "there is no repository to mount", "repogen sync writes it"),
    (r"no space left on device", "the disk of Docker is full", "docker system df shows what takes it"),
    (
        r"manifest unknown|pull access denied|unauthorized|failed to resolve reference|no such host",
        "the image cannot be pulled",
        "docker pull says more; TRITON_IMAGE names another one",
    ),
)
"""What Docker says, what that means, and what to do."""


@dataclass(frozen=True)
class Composed:
    """A running service of a compose file. Its addresses are those that it publishes on this machine."""

    file: Path
    profile: str
    http: str
    grpc: str
    metrics: str
    server_id: str = "triton"
    pid: int = 0  # it belongs to Docker

    def poll(self) -> int | None:
        """Return None while the container runs, else 1."""
        return None if _runs(self.file, self.profile) else 1

    def reasons(self) -> list[str]:
        return _reasons(self.file, self.profile)


@contextmanager
def start(file: Path, *, gpu: bool, timeout: float) -> Iterator[Composed]:
    """Bring the file's Triton up while the block runs: it begins when every model of the repository is ready."""
    if not file.is_file():
        raise ServerError("there is no such compose file", where=str(file), hint="repogen export compose writes one")
    if shutil.which("docker") is None:
        raise ServerError("docker is not on the PATH", hint="install it, or serve without --docker")
    profile = "gpu" if gpu else "cpu"
    service = _SERVICES[profile]
    found = _runs(file, profile)
    try:
        up = _compose(file, profile, "up", "--detach", "--wait", f"--wait-timeout={int(timeout)}", service)
        if up.returncode:
            raise _explained(file, profile, up.stderr + up.stdout)
        http, grpc, metrics = (_published(file, profile, port) for port in (8000, 8001, 8002))
        yield Composed(file, profile, http, grpc, metrics)
    finally:
        if not found:  # else it was there before us, and stays
            _compose(file, profile, "rm", "--stop", "--force", service)


def _runs(file: Path, profile: str) -> bool:
    done = _compose(file, profile, "ps", "--quiet", "--status=running", _SERVICES[profile])
    return done.returncode == 0 and bool(done.stdout.strip())


def _compose(file: Path, profile: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["docker", "compose", "-f", str(file), "--profile", profile, *words]
    # A container that starts must not be cut off by a Ctrl-C that is meant for us.
    return subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True, env=os.environ)


def _published(file: Path, profile: str, port: int) -> str:
    done = _compose(file, profile, "port", _SERVICES[profile], str(port))
    if done.returncode or not done.stdout.strip():
        raise ServerError(f"Triton's port {port} is not published", where=str(file))
    return done.stdout.strip().splitlines()[0]


def _explained(file: Path, profile: str, said: str) -> ServerError:
    """Return what Docker's words mean; where the container itself failed, what Triton's log says."""
    for pattern, meaning, hint in _CAUSES:
        for line in said.splitlines():
            if re.search(pattern, line, re.IGNORECASE):
                return ServerError(f"{meaning}: {line.strip()}", where=str(file), hint=hint)
    reasons = _reasons(file, profile)
    if reasons:
        hint = "repogen check finds most of it before a server does"
        return ServerError(f"Triton did not become ready: {'; '.join(reasons)}", where=str(file), hint=hint)
    return ServerError(f"docker compose failed: {_last(said)}", where=str(file), hint="docker compose logs says more")


def _reasons(file: Path, profile: str) -> list[str]:
    """Return what keeps the models from being ready: Triton's log, else the last word of the healthcheck."""
    log = _compose(file, profile, "logs", "--no-color", "--no-log-prefix", _SERVICES[profile]).stdout
    return triton_log.reasons(log) or [f"still loading: {name}" for name in triton_log.loading(log)]


def _last(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
