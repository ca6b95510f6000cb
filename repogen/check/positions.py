"""Where each field stands in a text-format file, without a schema."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r\v\f,;]+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[^ \t\n\r\v\f,;:{}<>\[\]"'\#]+)
      | (?P<mark>[:{}<>\[\]])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = "{<", "}>"


def positions(text: str) -> dict[str, int]:
    """Return the line of each field: `name`, `input[0].dims`, `input[0].dims[1]`, `parameters[2].value`.

    A field that stands once is known both as `instance_group` and as `instance_group[0]`.
    """
    return _Walk(text).lines


class _Walk:
    """One pass over the tokens; a stray token is skipped, since the parser has already judged the text."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._tokens = list(tokens(text))
        self._at = 0
        while self._at < len(self._tokens):
            self._fields("")
            self._at += 1  # a closing mark that nothing opened

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _fields(self, prefix: str) -> None:
        while (token := self._peek()) and token not in _CLOSE:
            name, line = self._tokens[self._at]
            self._at += 1
            if name[0] in ":[]<{\"'":
                continue
            if self._peek() == ":":
                self._at += 1
            self._value(prefix + name, line)

    def _value(self, path: str, line: int) -> None:
        if self._peek() != "[":
            self._item(path, line)
            return
        self.lines.setdefault(path, line)
        self._at += 1
        while (mark := self._peek()) and mark != "]":
            if mark in _CLOSE:
                return
            self._item(path, self._tokens[self._at][1])
        self._at += 1

    def _item(self, path: str, line: int) -> None:
        index = self._counts.get(path, 0)
        self._counts[path] = index + 1
        self.lines.setdefault(path, line)
        self.lines[f"{path}[{index}]"] = line
        opened = self._peek()
        if not opened or opened in _CLOSE:
            return
        self._at += 1
        if opened in _OPEN:
            # A repeated field's parts are asked for with its index, a single one's without.
            start = len(self.lines)
            self._fields(f"{path}[{index}].")
            if index == 0:
                inner = list(self.lines.items())[start:]
                for name, at in inner:
                    self.lines.setdefault(path + name.removeprefix(f"{path}[0]"), at)
            self._at += 1
        else:
            while self._peek()[:1] in ('"', "'") and opened[0] in "\"'":
                self._at += 1  # strings side by side are one string


def tokens(text: str) -> Iterator[tuple[str, int]]:
    """Return each token and its line; space, comments and the commas between fields are none."""
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield match[0], line
        line += match[0].count("\n")
