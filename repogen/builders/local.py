"""Build on this machine, with the TensorRT of this Python."""

import sys
from collections.abc import Sequence
from pathlib import Path


def command(*, folders: Sequence[Path], output: Path, release: str) -> list[str]:  # noqa: ARG001 - all is visible here
    return [sys.executable, "-m", "repogen.builders.tensorrt"]


def missing() -> str:
    return ""
