"""Runs one load test: Locust as a child process, which in turn starts the generators; gives back their samples."""

from __future__ import annotations

import importlib.util
import math
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from repogen.assets import LOADTESTS
from repogen.errors import MissingExtra, Refused, RepogenError, ServerError
from repogen.load import arrivals, intervals, payload, samples
from repogen.load.process import environment

if TYPE_CHECKING:
    import numpy as np

    Requests = Sequence[Mapping[str, np.ndarray[Any, Any]]]

_START = 60.0
"""Seconds that Locust may take beyond the run itself: importing, connecting, writing samples."""
_LOOK = 0.5
_LAST_LINES = 5
_LEVEL = re.compile(r"^\[[^\]]*\] \S+/ERROR/\S+: ")


@dataclass(frozen=True)
class Load:
    """One setting of a load test. Without a rate, `users` requests are under way at any time.

    `duration` is the longest that is measured; `until` ends it earlier. `workers` are Locust's processes on this
    machine; with `master` (HOST or HOST:PORT), workers elsewhere are waited for instead, on that address.
    """

    users: int = 8
    rate: float = 0.0
    arrivals: str = ""
    batch: str = "1"
    warm_up: float = 1.0
    duration: float = 10.0
    until: str = ""
    deadline: float = 30.0
    seed: int = 0
    workers: int = 1
    master: str = ""
    metrics: str = ""

    def check(self) -> None:
        """Refuse what cannot be before anything is started."""
        how = arrivals.parse(self.arrivals) if self.arrivals else None
        if how and how.kind not in (arrivals.CLOSED, "trace") and not self.rate:
            raise RepogenError(f"{self.arrivals} needs a rate", where="--arrivals", hint="--rate 200")
        if how and how.kind == arrivals.CLOSED and self.rate:
            raise RepogenError("a closed loop has no rate", where="--arrivals", hint="leave one of them out")
        if how and how.kind == "trace":
            arrivals.read_trace(Path(how.file))
        if self.until:
            intervals.parse_goal(self.until)
        if self.users < self.workers:
            raise RepogenError(f"{self.workers} workers share {self.users} users", where="--users", hint="one each")


def measure(
    url: str,
    model: str,
    requests: Requests,
    load: Load,
    *,
    folder: Path | None = None,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[samples.Samples, ...]:
    """Load `model` and return every request's sample; they stay in `folder` where one is given."""
    load.check()
    if importlib.util.find_spec("locust") is None:
        raise MissingExtra("locust", "load")
    with tempfile.TemporaryDirectory(prefix="repogen-bench-") as name:
        scratch = Path(name)
        kept = (folder or scratch / "samples").absolute()
        before = set(kept.glob("*")) if kept.is_dir() else set()
        payload.save(scratch / "payloads.npz", requests)
        command = _command(scratch, kept, model, url=url, load=load)
        limit = load.warm_up + load.duration + load.deadline + _START
        try:
            _run(command, scratch, limit=limit, verbose=verbose, look=_watcher(kept, before, load, progress))
        except KeyboardInterrupt:
            if not _new(kept, before):
                raise
        measured = tuple(samples.load(path) for path in _new(kept, before))
    total = sum(len(part.sent) for part in measured)
    if not total:
        raise ServerError(f"the load test of {model} sent no request", hint="--verbose shows Locust's own words")
    _refuse_only_failures(model, measured, total)
    return measured


def _refuse_only_failures(model: str, measured: Sequence[samples.Samples], total: int) -> None:
    if all((part.status != 0).all() for part in measured):
        first = next(message for part in measured for message in part.failures)
        raise Refused(f"all {total} requests failed, the first with: {first}", where=model)


def _new(folder: Path, before: set[Path]) -> list[Path]:
    """Return this run's files: finished ones, and the logs of processes that did not live to finish theirs."""
    made = sorted(set(folder.glob("*.npz")) - before)
    names = {path.stem for path in made}
    return made + [path for path in sorted(set(folder.glob("*.rows")) - before) if path.stem not in names]


def _command(scratch: Path, kept: Path, model: str, *, url: str, load: Load) -> list[str]:
    options = {
        "--locustfile": LOADTESTS / "locustfile.py",
        "--host": url,
        "--model": model,
        "--payloads": scratch / "payloads.npz",
        "--samples": kept,
        "--run-id": secrets.token_hex(4),
        "--arrivals": _absolute(load.arrivals),
        "--rate": load.rate,
        "--batch-size": load.batch,
        "--warm-up": load.warm_up,
        "--duration": load.duration,
        "--until": load.until,
        "--deadline": load.deadline,
        "--seed": load.seed,
        "--metrics": load.metrics,
        "--users": load.users,
        "--spawn-rate": max(load.users, 1),
        # The generators end by themselves; Locust's own clock is for those that do not.
        "--run-time": math.ceil(load.warm_up + load.duration + load.deadline) + 10,
        # Requests under way at the end are waited for: cutting them off would hide the slowest.
        "--stop-timeout": math.ceil(load.deadline) + 12,
        "--exit-code-on-error": 0,
    }
    if load.master:
        host, colon, port = load.master.rpartition(":")
        options |= {"--master-bind-host": host if colon else load.master, "--expect-workers": load.workers}
        options |= {"--master-bind-port": port} if colon else {}
    elif load.workers > 1:
        options |= {"--processes": load.workers}
    flags = ["--headless", "--only-summary", *(["--master"] if load.master else [])]
    pairs = [f"{option}={value}" for option, value in options.items() if value != ""]
    return [sys.executable, "-m", "locust", *flags, *pairs]


def _absolute(how: str) -> str:
    """Return the arrivals for a process in another folder."""
    kind, found, file = how.partition(":")
    return f"{kind}:{Path(file).absolute()}" if found else how


def _watcher(
    kept: Path, before: set[Path], load: Load, progress: Callable[[str], None] | None
) -> Callable[[float], None]:
    """Return what is called twice a second while the test runs: it says how far it is."""
    total = load.warm_up + load.duration

    def look(seconds: float) -> None:
        if progress is None:
            return
        logs = [path for path in kept.glob("*.rows") if path not in before] if kept.is_dir() else []
        answered = sum(max(path.stat().st_size, 0) for path in logs) // samples.WIDTH
        progress(f"{min(seconds, total):5.1f} of {total:g} s  {answered:,} answers")

    return look


def _run(command: Sequence[str], scratch: Path, *, limit: float, verbose: bool, look: Callable[[float], None]) -> None:
    log = scratch / "locust.log"
    with nullcontext() if verbose else log.open("wb") as output:
        # Locust reads locust.conf and pyproject.toml of its folder: it gets one without.
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=_target(output),
            stderr=_target(output),
        )
        try:
            code = _wait(process, limit, look)
        finally:
            _stop(process)
    if code:
        raise _failure(code, log)


def _wait(process: subprocess.Popen[bytes], limit: float, look: Callable[[float], None]) -> int:
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < limit:
        try:
            return process.wait(timeout=_LOOK)
        except subprocess.TimeoutExpired:  # noqa: PERF203 - twice a second
            look(passed)
    raise ServerError(f"Locust was still running {limit:g} s after its start, and was killed")


def _target(output: IO[bytes] | None) -> int:
    return 2 if output is None else output.fileno()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let Locust end by itself, which lets its generators write down what they have; force it after a while."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=6)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(code: int, log: Path) -> RepogenError:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [_LEVEL.sub("", line) for line in lines if _LEVEL.match(line)]
    kinds = {Refused.exit_code: Refused, ServerError.exit_code: ServerError}
    if errors and code in (1, 2, 4):
        return kinds.get(code, RepogenError)(errors[0])
    said = " / ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
    return RepogenError(f"Locust ended with exit code {code}: {said or 'see above'}")
