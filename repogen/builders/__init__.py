"""Where a plan is built: each builder is a module that says how the building process is started.

The process itself is always `python -m repogen.builders.tensorrt`; `repogen.builds` talks with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Builder(Protocol):
    """What a builder's module has."""

    def command(self, *, folders: Sequence[Path], output: Path, release: str) -> list[str]:
        """Return the command that starts the building process.

        It must see `folders` under their own paths, may write `output`, and builds for the NGC `release`.
        """
        ...

    def missing(self) -> str:
        """Return what this machine lacks to start it, "" when nothing."""
        ...


BUILDERS = {"local": "repogen.builders.local", "docker": "repogen.builders.docker"}
