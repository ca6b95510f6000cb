"""What a builder says while it works, kept for the error that may follow."""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_KEPT = 40
_PAUSE = 0.2
_LETTERS = ("F", "E", "W", "I", "V")
_ERROR, _WARNING, _INFO = 1, 2, 3


class Log:
    """The lines of one build; `tell` gets its progress, at most five times a second."""

    def __init__(self, tell: Callable[[dict[str, Any]], object]) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.layers: list[str] = []
        self.cancelled = False
        self._tell = tell
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._told = 0.0

    def cancel(self) -> None:
        """Ask the build to stop at its next step."""
        self.cancelled = True

    def add(self, severity: int, text: str) -> None:
        """Take a line of the library: 0 is an internal error, 4 verbose."""
        if severity <= _ERROR:
            self.errors.append(text)
        elif severity == _WARNING and text not in self.warnings:
            self.warnings.append(text)
        elif text.startswith("Layers:"):
            self.layers = text.splitlines()[1:]
        if severity <= _INFO:
            line = f"[{_LETTERS[severity]}] {text}"
            self._last.append(line[:2000])
            sys.stderr.write(line + "\n")

    def note(self, phase: str, done: int = 0, of: int = 0, *, parent: str = "") -> None:
        """Tell how far the build is: `done` of `of` steps of a phase."""
        now = time.monotonic()
        if now - self._told >= _PAUSE or not of or done >= of:
            self._told = now
            self._tell({"phase": phase, "done": done, "of": of, "parent": parent})

    def last(self) -> list[str]:
        """Return the last lines, oldest first."""
        return list(self._last)
