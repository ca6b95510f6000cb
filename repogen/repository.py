"""Read what a model repository holds now. Nothing is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from repogen import pbtxt
from repogen.errors import RepogenError
from repogen.files import sha256
from repogen.render import fingerprint

_IGNORED = {"__pycache__"}  # Python backends write it beside model.py


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


def read_repository(root: Path) -> dict[str, Published]:
    """Return the model folders of `root` by name; {} where there is no such folder yet."""
    if root.exists() and not root.is_dir():
        raise RepogenError("is not a folder", where=str(root), hint="choose another `repository:`")
    if not root.is_dir():
        return {}
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    return {folder.name: read_folder(folder) for folder in folders}


def read_folder(folder: Path) -> Published:
    """Return what one model's folder holds."""
    config = folder / "config.pbtxt"
    text = config.read_text(errors="replace") if config.is_file() else ""
    mark = _fingerprint_of(text)
    files = {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder)} if mark else {}
    return Published(folder.name, folder, text, mark, files, _state(text, mark, files))


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "config.pbtxt")
    return sorted(path for path in found if not _IGNORED & set(path.relative_to(folder).parts))


def _fingerprint_of(text: str) -> str:
    from google.protobuf.text_format import ParseError

    if pbtxt.FINGERPRINT not in text:
        return ""
    try:
        config: Any = pbtxt.parse(text)
    except ParseError:
        return ""
    return str(config.parameters[pbtxt.FINGERPRINT].string_value) if pbtxt.FINGERPRINT in config.parameters else ""


def _state(text: str, mark: str, files: Mapping[str, str]) -> State:
    if not mark:
        return State.FOREIGN
    if fingerprint(text.replace(mark, ""), dict(files)) == mark:
        return State.WHOLE
    return State.DRIFTED if files else State.PARTIAL
