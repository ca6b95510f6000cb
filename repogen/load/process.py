"""A generator process as its parent sees it: started, spoken to, its samples read while they come in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from repogen.errors import Refused, RepogenError, ServerError
from repogen.load import samples
from repogen.load.spec import Spec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_PACKAGES = Path(__file__).parents[2]
_KEPT = ("REPOGEN_TLS_", "REPOGEN_HEADERS")
_KINDS = {Refused.exit_code: Refused, ServerError.exit_code: ServerError}
_PIECE = 1 << 20


class Generator:
    """One child. Its standard streams are the line to it; a child whose parent is gone stops by itself."""

    def __init__(self, spec: Spec, *, python: str = sys.executable) -> None:
        self.spec = spec
        self.began = 0
        self.ended = ""
        self._error: RepogenError | None = None
        self._ready = threading.Event()
        self._log: IO[bytes] | None = None
        self._rest = b""
        folder = Path(spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self.process = subprocess.Popen(
            [python, "-m", "repogen.load.generator", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=environment(),
            cwd=folder,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait_ready(self, seconds: float) -> None:
        """Return once it could begin; raise what keeps it from that."""
        self._ready.wait(seconds)
        if self._error:
            raise self._error
        if not self._ready.is_set():
            self.kill()
            raise ServerError(f"the generator was not ready within {seconds:g} s", where=self.spec.model)

    def say(self, line: str) -> None:
        """Tell it something; one that has ended hears nothing."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except (OSError, ValueError):
            return

    def rows(self) -> Array:
        """Return the columns of the requests that were answered since the last call."""
        if self._log is None and self.spec.log.exists():
            self._log = self.spec.log.open("rb")
            self._log.readline()
        piece = self._rest + (self._log.read(_PIECE) if self._log else b"")
        whole = len(piece) // samples.WIDTH * samples.WIDTH
        self._rest = piece[whole:]
        return samples.rows(piece)[0]

    def finish(self, seconds: float) -> samples.Samples:
        """Wait for its end, force it after `seconds`, and return what it measured."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(5)
        if self.spec.path.exists():
            return samples.load(self.spec.path)
        if self._error and not self.spec.log.exists():
            raise self._error
        return samples.load(self.spec.log)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let go of everything; the samples stay."""
        self.kill()
        self._listener.join(5)
        for stream in (self.process.stdin, self.process.stdout, self._log, self._words):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # it ended with words of ours unread
                    continue

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.began = told.get("began", self.began)
            if "error" in told:
                self._error = _KINDS.get(told["code"], RepogenError)(told["error"])
            if "ready" in told or "error" in told:
                self._ready.set()
            self.ended = told.get("ended", self.ended)
        self.process.wait()
        if not self.ended:
            self.ended = samples.KILLED
            self._error = self._error or RepogenError(f"the generator ended unexpectedly: {self._last_words()}")
        self._ready.set()

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"


def environment() -> dict[str, str]:
    """Return ours without the settings of Locust and of its options, and with the package found from any folder."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(_KEPT) or not key.startswith(("LOCUST_", "REPOGEN_"))
    }
    paths = [str(_PACKAGES), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {**kept, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths)}  # noqa: PTH100
