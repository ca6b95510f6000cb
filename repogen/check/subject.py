"""A model repository read once, as the server reads it."""

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repogen.check.autofill import ENSEMBLE, Filled, fill
from repogen.check.deployment import Service
from repogen.check.positions import positions
from repogen.check.strict_text import minus_zeros, strict_error
from repogen.check.target import Target
from repogen.errors import RepogenError

CONFIG = "config.pbtxt"
_STOLL = re.compile(r"\s*[+-]?\d+")
_NO_VERSIONS = frozenset({"warmup", "initial_state", "configs"})
"""Folders of a model that the server does not take for versions."""


@dataclass(frozen=True)
class SyntaxProblem:
    """Why a config.pbtxt is no ModelConfig. A `line` of 0 is the file itself."""

    message: str
    line: int


@dataclass(frozen=True)
class Model:
    """One entry of the root. `config` is None where there is no config.pbtxt or it cannot be parsed.

    `kind` is folder, file, dangling (a link to nothing) or unreadable. `folders` are the entry's own sub-folders.
    """

    name: str
    folder: Path
    kind: str = "folder"
    text: str | None = None
    config: Any = None
    error: SyntaxProblem | None = None
    folders: tuple[str, ...] = ()

    @cached_property
    def filled(self) -> Filled:
        """Return the backend, platform and file name that the server takes, given or found by itself."""
        if self.config is None:
            return Filled("", "", "")
        return fill(self.config, self.name, self.folder, self.folders)

    @property
    def backend(self) -> str:
        """Return the backend that serves it, "ensemble" for an ensemble, "" where the server finds none."""
        return ENSEMBLE if self.filled.platform == ENSEMBLE else self.filled.backend

    @property
    def version_folders(self) -> tuple[str, ...]:
        """Return the sub-folders that the server could take for versions."""
        return tuple(name for name in self.folders if name not in _NO_VERSIONS)

    @property
    def versions(self) -> tuple[int, ...]:
        """Return the versions that the server finds: it reads a number at the start, and ignores the rest."""
        found = (version_of(name) for name in self.version_folders)
        return tuple(sorted({number for number in found if number is not None}))

    @cached_property
    def served(self) -> tuple[int, ...]:
        """Return the versions that the config's policy chooses among those that the server finds."""
        policy = self.config.version_policy if self.config is not None else None
        choice = policy.WhichOneof("policy_choice") if policy is not None else None
        if policy is None or choice == "all":
            return self.versions
        if choice == "specific":
            return tuple(version for version in self.versions if version in policy.specific.versions)
        wanted = policy.latest.num_versions if choice else 1
        return self.versions[-wanted:] if wanted else ()

    @cached_property
    def files(self) -> frozenset[str]:
        """Return every file and link below the folder, relative to it."""
        return frozenset(name for name in self.entries if self.entries[name] != "folder")

    @cached_property
    def entries(self) -> dict[str, str]:
        """Return what lies below the folder, relative to it: file, folder or link. Links are not followed."""
        found: dict[str, str] = {}
        folders = [""]
        while folders:
            above = folders.pop()
            with contextlib.suppress(OSError), os.scandir(self.folder / above) as listing:
                for entry in listing:
                    name = f"{above}{entry.name}"
                    kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file"
                    found[name] = kind
                    if kind == "folder":
                        folders.append(f"{name}/")
        return found

    @cached_property
    def _lines(self) -> dict[str, int]:
        return positions(self.text or "")

    def has(self, field: str) -> bool:
        """Return whether the text says `input[0].dims`, its default value included."""
        return field in self._lines

    def line_of(self, field: str) -> int:
        """Return the line of `input[0].dims`, or of the nearest field around it that the text has."""
        while field and field not in self._lines:
            field = field.rpartition(".")[0] if not field.endswith("]") else field.rpartition("[")[0]
        return self._lines.get(field, 1)


@dataclass(frozen=True)
class Repository:
    """The entries of the root, by name."""

    root: Path
    entries: dict[str, Model]

    @cached_property
    def models(self) -> dict[str, Model]:
        return {name: entry for name, entry in self.entries.items() if entry.kind == "folder"}


@dataclass(frozen=True)
class Subject:
    """What a rule is asked about: one model, among the others, for one server."""

    model: Model
    repository: Repository
    target: Target
    service: Service | None = None

    @property
    def config(self) -> Any:
        """Return the parsed config; for rules of scope "config" there is always one."""
        return self.model.config


def version_of(folder: str) -> int | None:
    """Return the version that the server reads from a folder's name, by C's `strtoll`, or None where it ignores it."""
    if folder.startswith("0") and len(folder) > 1:
        return None
    match = _STOLL.match(folder)
    return int(match[0]) if match else None


def read_repository(root: Path) -> Repository:
    """Read every entry of `root`. Raises RepogenError where there is no such folder."""
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise RepogenError(f"the repository cannot be read: {error.strerror}", where=str(root)) from error
    return Repository(root, {name: _read_entry(root / name) for name in names})


def _read_entry(path: Path) -> Model:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Model(path.name, path, "dangling")
    except OSError:
        return Model(path.name, path, "unreadable")
    return _read_model(path) if stat.S_ISDIR(mode) else Model(path.name, path, "file")


def _read_model(folder: Path) -> Model:
    try:
        folders = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    except OSError:
        return Model(folder.name, folder, "unreadable")
    try:
        data = (folder / CONFIG).read_bytes()
    except FileNotFoundError:
        return Model(folder.name, folder, folders=folders)
    except OSError as problem:
        unread = SyntaxProblem(f"it cannot be read: {problem.strerror}", 0)
        return Model(folder.name, folder, error=unread, folders=folders)
    text = data.decode(errors="replace")
    config, error = _parse(text)
    return Model(folder.name, folder, "folder", text, config, error, folders)


def _parse(text: str) -> tuple[Any, SyntaxProblem | None]:
    from google.protobuf import text_format

    from repogen import pbtxt

    if "\0" in text:
        return None, SyntaxProblem("there is a zero byte in it", text.count("\n", 0, text.index("\0")) + 1)
    if (strict := strict_error(text)) is not None:
        return None, SyntaxProblem(*strict)
    try:
        config = pbtxt.parse(text)
        if (other := minus_zeros(text)) != text:
            pbtxt.parse(other)
    except text_format.ParseError as error:
        return None, SyntaxProblem(_sentence(str(error)), error.GetLine() or 1)
    except ValueError as error:  # protobuf's own, for a number that no enumeration holds
        return None, SyntaxProblem(str(error), 1)
    return config, None


def _sentence(message: str) -> str:
    """Return protobuf's message without its own `line:column : ` in front."""
    return re.sub(r"^\d+:\d+ : ", "", message)
