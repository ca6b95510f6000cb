"""Read what a model repository holds now. Nothing is changed."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from repogen.errors import RepogenError
from repogen.files import sha256
from repogen.fingerprint import fingerprint

FINGERPRINT = "repogen_fingerprint"  # as in pbtxt, which costs time to import
VERSION = re.compile(r"[1-9][0-9]{0,17}")
"""A version folder's name: Triton reads `2.tmp` as 2, and ends itself at what is larger than an int64."""
_IGNORED = {"__pycache__"}  # Python backends write it beside model.py
_MARK = re.compile(
    rf'key:\s*"{FINGERPRINT}"[,;]?\s*value:?\s*\{{\s*string_value:\s*"(?P<mark>[0-9a-f]{{64}})"',
)


class State(Enum):
    """How a model's folder relates to what repogen published there."""

    WHOLE = "whole"  # exactly what was published
    PARTIAL = "partial"  # files are missing, the others untouched: git keeps configs without weights
    DRIFTED = "drifted"  # edited by hand since
    FOREIGN = "foreign"  # never published by repogen


@dataclass(frozen=True)
class Published:
    """One model's folder: its config's text ("" without one) and its other files with their sha256."""

    name: str
    folder: Path
    text: str
    fingerprint: str
    files: Mapping[str, str]
    state: State
    sizes: Mapping[str, int] | None = None  # where the files are no paths of this machine

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size if self.sizes is None else self.sizes[name]


@dataclass(frozen=True)
class Stray:
    """An entry that does not belong into a repository, and what Triton makes of it."""

    path: str
    what: str


def read_repository(root: Path) -> dict[str, Published]:
    """Return the model folders of `root` by name; {} where there is no such folder yet."""
    if root.exists() and not root.is_dir():
        raise RepogenError("is not a folder", where=str(root), hint="choose another `repository:`")
    if not root.is_dir():
        return {}
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if _is_model(entry))
        return {name: read_folder(root / name) for name in names}
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise RepogenError(message, where=str(error.filename or root), hint="is it another user's?") from None


def strays(root: Path) -> tuple[Stray, ...]:
    """Return what stands in the root, or as a version in a model's folder, and makes Triton stumble."""
    if not root.is_dir():
        return ()
    found = []
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if what := _root_stray(entry):
                found.append(Stray(entry.name, what))
            elif _is_model(entry):
                found += _version_strays(root / entry.name)
    return tuple(found)


def read_folder(folder: Path) -> Published:
    """Return what one model's folder holds."""
    config = folder / "config.pbtxt"
    text = config.read_text(errors="replace") if config.is_file() else ""
    mark = fingerprint_of(text)
    files = {name: sha256(folder / name) for name in _files(folder)} if mark else {}
    return Published(folder.name, folder, text, mark, files, state_of(text, mark, files))


def fingerprint_of(text: str) -> str:
    """Return the fingerprint that a config carries, "" where it has none or does not parse."""
    if FINGERPRINT not in text:
        return ""
    if match := _MARK.search(text):  # parsing takes a thousand times longer; the digest proves it right or wrong
        return match["mark"]
    from google.protobuf.text_format import ParseError

    from repogen import pbtxt

    try:
        config: Any = pbtxt.parse(text)
    except ParseError:
        return ""
    return str(config.parameters[FINGERPRINT].string_value) if FINGERPRINT in config.parameters else ""


def _is_model(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() and not entry.name.startswith(".") and entry.name != "lost+found"


def _root_stray(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink() and not Path(entry.path).exists():
        return "a link to nothing: with polling Triton then drops every model"
    if entry.name == "lost+found":
        return "the file system's own folder, which Triton takes for a model: serve a subfolder instead"
    if entry.is_dir() and entry.name.startswith("."):
        return "a hidden folder, which Triton takes for a model"
    if not entry.is_dir() and not stat.S_ISREG(entry.stat().st_mode):
        return "neither a folder nor a plain file"
    return ""


def _version_strays(folder: Path) -> Iterator[Stray]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name not in _IGNORED)
    yield from version_strays(folder.name, names)


def version_strays(model: str, names: Sequence[str]) -> Iterator[Stray]:
    """Return those folders of a model that Triton takes for other versions than their names say."""
    for name in names:
        if VERSION.fullmatch(name) or not re.match(r"[-+]?\d", name):
            continue
        number = re.match(r"[-+]?\d+", name)
        assert number is not None
        what = f"Triton reads it as version {int(number[0])}" if name != number[0] else "Triton ignores it"
        if not -(2**63) <= int(number[0]) < 2**63:
            what = "Triton ends itself when it meets it"
        elif name == "0":
            continue
        yield Stray(f"{model}/{name}", f"no version folder: {what}")


def _files(folder: Path) -> list[str]:
    return sorted(name for name in _below(str(folder), "") if name != "config.pbtxt")


def _below(folder: str, prefix: str) -> Iterator[str]:
    """Yield the files below a folder. What cannot be read is an error: the files in it would look gone."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    yield from _below(entry.path, f"{prefix}{entry.name}/")
            elif Path(entry.path).is_file() if entry.is_symlink() else entry.is_file():
                yield prefix + entry.name


def state_of(text: str, mark: str, files: Mapping[str, str]) -> State:
    """Return how a folder relates to the config that it holds."""
    if not mark:
        return State.FOREIGN
    if fingerprint(text.replace(mark, ""), files) == mark:
        return State.WHOLE
    return State.DRIFTED if files else State.PARTIAL
