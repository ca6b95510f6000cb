"""Runs one load test: Locust as a child process, the server's statistics right before and right after."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from repogen.assets import LOADTESTS
from repogen.errors import MissingExtra, Refused, RepogenError, ServerError
from repogen.load import payload, samples
from repogen.triton import Client, Rejected, Statistics

if TYPE_CHECKING:
    import numpy as np

    Requests = Sequence[Mapping[str, np.ndarray[Any, Any]]]

_PACKAGES = Path(__file__).parents[2]
_WARM_UP = 3
_START = 60.0
"""Seconds that Locust may take beyond the run itself: importing, connecting, writing samples."""
_LAST_LINES = 5


def measure(
    client: Client,
    model: str,
    requests: Requests,
    *,
    users: int,
    duration: float,
    deadline: float = 30.0,
    verbose: bool = False,
) -> tuple[tuple[samples.Samples, ...], Statistics]:
    """Load `model` for `duration` seconds; return every request's sample and the server's own counters."""
    if importlib.util.find_spec("locust") is None:
        raise MissingExtra("locust", "load")
    warm_up(client, model, requests, deadline=deadline)
    with tempfile.TemporaryDirectory(prefix="repogen-bench-") as name:
        folder = Path(name)
        payload.save(folder / "payloads.npz", requests)
        command = _command(folder, model, url=client.url, users=users, duration=duration, deadline=deadline)
        before = client.statistics(model)
        _run(command, folder, limit=duration + deadline + _START, verbose=verbose)
        measured = samples.load_all(folder / "samples")
    if not any(len(part.sent) for part in measured):
        raise ServerError(f"the load test of {model} sent no request", hint="--verbose shows Locust's own words")
    return measured, _statistics_after(client, model, measured) - before


def warm_up(client: Client, model: str, requests: Requests, *, deadline: float) -> None:
    """Send a few requests first: a model's first runs allocate and compile, and are no one's latency."""
    number = 0
    try:
        for number in range(_WARM_UP):
            client.infer(model, requests[number % len(requests)], deadline=deadline)
    except Rejected as error:
        which = f"warm-up request {number + 1} of {_WARM_UP}"
        raise Refused(f"{which} failed: {error.message}", where=model) from None


def _statistics_after(client: Client, model: str, measured: Sequence[samples.Samples]) -> Statistics:
    total = sum(len(part.sent) for part in measured)
    failed = sum(int((part.status != 0).sum()) for part in measured)
    try:
        statistics = client.statistics(model)
    except ServerError as error:
        lost = f"{failed} of {total} requests failed, and afterwards: {error.message}"
        raise ServerError(f"the server was lost during the load test: {lost}", where=model) from None
    if failed == total:
        first = next(message for part in measured for message in part.failures)
        raise Refused(f"all {total} requests failed, the first with: {first}", where=model)
    return statistics


def _command(folder: Path, model: str, *, url: str, users: int, duration: float, deadline: float) -> list[str]:
    options = {
        "--locustfile": LOADTESTS / "locustfile.py",
        "--host": url,
        "--model": model,
        "--payloads": folder / "payloads.npz",
        "--samples": folder / "samples",
        "--deadline": deadline,
        "--users": users,
        "--spawn-rate": users,
        # Locust's own clock counts whole seconds.
        "--run-time": max(round(duration), 1),
        # Requests under way at the end are waited for: cutting them off would hide the slowest.
        "--stop-timeout": math.ceil(deadline) + 1,
        "--exit-code-on-error": 0,
    }
    pairs = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "locust", "--headless", "--only-summary", *pairs]


def _run(command: Sequence[str], folder: Path, *, limit: float, verbose: bool) -> None:
    log = folder / "locust.log"
    with nullcontext() if verbose else log.open("wb") as output:
        # Locust reads locust.conf and pyproject.toml of its folder: it gets one without.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=_target(output),
            stderr=_target(output),
        )
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise ServerError(f"Locust was still running {limit:g} s after its start, and was killed") from None
        finally:
            _end(process)
    if code:
        raise _failure(code, log)


def _target(output: IO[bytes] | None) -> int:
    return 2 if output is None else output.fileno()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return ours without Locust's settings, and with the package found from any folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOCUST_", "REPOGEN_"))}
    paths = [str(_PACKAGES), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {**kept, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths)}  # noqa: PTH100


def _failure(code: int, log: Path) -> RepogenError:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = " / ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
    kind = ServerError if code == ServerError.exit_code else RepogenError
    return kind(f"Locust ended with exit code {code}: {said or 'see above'}")
