"""A YAML file as plain data that remembers on which line each value stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from repogen.errors import ManifestError

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads about 15 times faster
_MAX_BYTES = 16 * 2**20
_MAX_VALUES = 500_000  # what aliases expand to: a "billion laughs" file stops here
_MAX_DEPTH = 60
_TRUE_FALSE = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

_SCALAR_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp")}

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlSource:
    """The data of one file, and the line of every key path in it."""

    path: Path
    data: Any
    lines: dict[Key, int]

    def where(self, key: Sequence[str | int] = ()) -> str:
        """Return `file:line key.path`, the line that of the nearest value that exists."""
        key = tuple(key)
        known = next((key[:n] for n in range(len(key), -1, -1) if key[:n] in self.lines), ())
        return f"{self.path}:{self.lines.get(known, 1)} {_dotted(key)}".rstrip()


def read_yaml(path: Path) -> YamlSource:
    """Read one YAML document of plain mappings, lists and scalars.

    Scalars follow YAML 1.2: `no` and `12:30` are strings. Raises ManifestError with file and line for a file
    that cannot be read, bad YAML, a tag, a key given twice, or an unreasonable size.
    """
    text = _read_text(path)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        starred = ": *" in "".join(text.splitlines()[line - 1 : line])  # YAML takes it for a reference
        hint = 'what begins with * stands in quotes: "*.onnx"' if starred else ""
        raise ManifestError(f"not valid YAML: {problem}", where=f"{path}:{line}", hint=hint) from None
    except RecursionError:
        raise ManifestError("nested too deeply", where=f"{path}:1") from None
    walk = _Walk(path)
    data = walk.value(node, ()) if node is not None else None
    return YamlSource(path, data, walk.lines)


def read_documents(path: Path) -> list[YamlSource]:
    """Read a file of any number of YAML documents, as `read_yaml` reads one; empty ones are left out."""
    text = _read_text(path)
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        where = f"{path}:{mark.line + 1 if mark else 1}"
        raise ManifestError(f"not valid YAML: {problem}", where=where) from None
    found = []
    for node in nodes:
        walk = _Walk(path)
        if node is not None:
            found.append(YamlSource(path, walk.value(node, ()), walk.lines))
    return found


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise ManifestError("is a directory, not a manifest", where=str(path))
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        hint = "name another one with -f, or start one: see README"
        raise ManifestError("there is no such manifest", where=str(path), hint=hint) from None
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(raw) > _MAX_BYTES:
        raise ManifestError(f"is larger than {_MAX_BYTES // 2**20} MiB", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ManifestError("is not UTF-8 text", where=f"{path}:{line}") from None


class _Walk:
    """Turns a YAML node tree into data, once, with its limits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Key, int] = {}
        self._values = 0

    def value(self, node: yaml.Node, key: Key) -> Any:
        self._values += 1
        line = node.start_mark.line + 1
        if self._values > _MAX_VALUES or len(key) > _MAX_DEPTH:
            raise ManifestError("expands to too many values or too deep a nesting", where=f"{self.path}:{line}")
        self.lines.setdefault(key, line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            self._refuse_tag(node, "tag:yaml.org,2002:seq")
            return [self.value(child, (*key, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        self._refuse_tag(node, "tag:yaml.org,2002:map")
        result: dict[str, Any] = {}
        for name_node, child in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                raise ManifestError("a key must be plain text", where=f"{self.path}:{line}")
            name = name_node.value
            path = (*key, name)
            if name in result:
                first = self.lines[path]
                message = f"{name!r} is given twice, first on line {first}"
                raise ManifestError(message, where=f"{self.path}:{line} {_dotted(path)}", hint="keep one of them")
            self.lines[path] = line
            result[name] = self.value(child, path)
        return result

    def _refuse_tag(self, node: yaml.Node, expected: str) -> None:
        if node.tag not in (expected, "!", None):
            where = f"{self.path}:{node.start_mark.line + 1}"
            raise ManifestError(f"the YAML tag {node.tag!r} is not allowed", where=where, hint="write plain values")

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        if node.tag not in _SCALAR_TAGS:
            self._refuse_tag(node, "")
        if node.style in ("'", '"', "|", ">"):
            return text
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in _TRUE_FALSE:
            return _TRUE_FALSE[text]
        return _number(text)


def _number(text: str) -> Any:
    """Return an int or a float that prints back as it was written, else the text itself."""
    if text.lstrip("+-").isdecimal() and text.isascii():
        digits = text.lstrip("+-")
        return int(text) if digits == "0" or not digits.startswith("0") else text
    if text[:1] in "+-.0123456789" and any(c.isdigit() for c in text) and "_" not in text:
        try:
            return PlainFloat(text)
        except ValueError:
            return text
    return text


class PlainFloat(float):
    """A float that remembers how it was written: `26.10` is a release, not 26.1."""

    def __new__(cls, text: str) -> "PlainFloat":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _dotted(key: Key) -> str:
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
