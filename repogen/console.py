"""The only module that prints. With `--json` stdout carries one document and everything else goes to stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TextIO

_COLOURS = {"green": 32, "red": 31, "yellow": 33, "dim": 2, "bold": 1, "cyan": 36}


class Console:
    """Where a command's words go: `quiet` keeps progress away, `as_json` keeps stdout for the document."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: int = 0) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._held: list[tuple[str, TextIO]] | None = None

    @property
    def stream(self) -> TextIO:
        """Where results for people go."""
        return sys.stderr if self.as_json else sys.stdout

    def say(self, text: str = "") -> None:
        """Print a result for people."""
        self._print(text, self.stream)

    def note(self, text: str) -> None:
        """Print progress: to stderr, never with -q."""
        if not self.quiet:
            self._print(text, sys.stderr)

    def document(self, value: Any) -> None:
        """Print the JSON document, where one was asked for."""
        if self.as_json:
            self._print(json.dumps(value, indent=2, default=_plain), sys.stdout)

    def error(self, error: Exception) -> None:
        if self.as_json:
            self.document({"error": {"kind": type(error).__name__, "message": str(error)}})
        print(f"{self.paint('error', 'red', sys.stderr)}: {error}", file=sys.stderr, flush=True)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Keep back what is printed in the block, and drop it unless the function that this gives is called."""
        held: list[tuple[str, TextIO]] = []
        self._held = held

        def release() -> None:
            self._held = None
            while held:
                text, stream = held.pop(0)
                print(text, file=stream, flush=True)

        try:
            yield release
        finally:
            self._held = None

    def _print(self, text: str, stream: TextIO) -> None:
        if self._held is None:
            print(text, file=stream, flush=True)
        else:
            self._held.append((text, stream))

    def paint(self, text: str, colour: str, stream: Any = None) -> str:
        """Colour `text` where a person reads it on a terminal that has not asked otherwise (NO_COLOR)."""
        stream = stream or self.stream
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print columns, each as wide as its widest cell; numbers to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        right = [bool(cells) and all(_is_number(row[index]) for row in cells) for index in range(len(header))]
        for row in ([*header], *cells):
            padded = (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(row, widths, right, strict=True)
            )
            self.say("  ".join(padded).rstrip())


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace(",", "").removesuffix("%").lstrip("-").isdigit() or text in ("-", "")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    return str(value)
