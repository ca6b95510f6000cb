"""The building process as its parent sees it: asked, listened to, timed, and stopped cleanly."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from repogen.cache import cache_folder
from repogen.model import Build
from repogen.tensorrt_intent import RTX

_GRACE = 10.0
"""Seconds that a build has to end by itself once it was asked to."""


def question_of(build: Build, task: str, folder: Path, *, timing_cache: bool = True) -> dict[str, Any]:
    """Return what the building process is asked."""
    options = build.options
    return {
        "task": task,
        "kind": build.kind,
        "version": build.version,
        "capability": build.capability,
        "onnx": str(build.onnx[0].source.resolve()),
        "output": str(folder),
        "precision": build.precision,
        "profiles": [{"shapes": dict(one.shapes), "values": dict(one.values)} for one in build.profiles],
        "workspace": options.workspace,
        "optimization_level": options.optimization_level,
        "tf32": options.tf32,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
        "plugins": [str(file.source.resolve()) for file in options.plugins],
        "timing_cache": str(_timing_cache(build)) if timing_cache and build.kind != RTX else "",
    }


def _timing_cache(build: Build) -> Path:
    """Return where the measured times of tactics are kept: of one TensorRT, on one kind of GPU."""
    return cache_folder() / "timing" / f"{build.version or 'any'}-sm{build.capability or 'any'}.cache"


class BuilderFailed(Exception):
    """The building process gave no answer; the message goes on from `the builder`."""

    def __init__(self, how: str, log: Sequence[str]) -> None:
        super().__init__(how)
        self.log = tuple(log)


def ask(
    command: Sequence[str],
    question: Mapping[str, Any],
    *,
    seconds: float,
    tell: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the answer of a building process. Raises BuilderFailed; stops the process whatever happens."""
    with _started(command, question) as (child, lines, log):
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise BuilderFailed(f"did not finish within {seconds:.0f} s", log) from None
            if line is None:
                raise BuilderFailed(_how_it_ended(child.wait()), log)
            row = json.loads(line)
            if "answer" in row:
                answer: dict[str, Any] = row["answer"]
                return answer
            tell(row["progress"])


@contextmanager
def _started(
    command: Sequence[str], question: Mapping[str, Any]
) -> Iterator[tuple["subprocess.Popen[str]", "queue.Queue[str | None]", list[str]]]:
    """Start the process in a session of its own, so that Ctrl-C reaches it through us only; stop it afterwards."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdin is not None
    lines: queue.Queue[str | None] = queue.Queue()
    log: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(child.stdout, lines.put, lambda: lines.put(None)), daemon=True),
        threading.Thread(target=_read, args=(child.stderr, log.append, lambda: None), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin:  # it is dead already: how it ended says more
            child.stdin.write(json.dumps(question) + "\n")
        yield child, lines, log
    finally:
        _stop(child)
        for reader in readers:
            reader.join(timeout=1)


def _read(stream: IO[str], take: Callable[[str], object], end: Callable[[], object]) -> None:
    with stream:
        for line in stream:
            take(line.rstrip("\n"))
    end()


def _stop(child: "subprocess.Popen[str]") -> None:
    """Ask a process to give up its build, then to end, then end it."""
    for number, grace in ((signal.SIGINT, _GRACE), (signal.SIGTERM, 2.0), (signal.SIGKILL, None)):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status} and no answer"
    name = signal.Signals(-status).name
    return f"was ended by {name}{': the machine ran out of memory' if name == 'SIGKILL' else ''}"
