"""What Triton's own text-format parser refuses and Python's protobuf reads."""

import re

from repogen.check.positions import tokens

_SUSPECT = re.compile(r"[\\+]|-\s*0|[^\x00-\x7f]")
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\?'\"]|[0-7]|[xX][0-9a-fA-F]|u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5})|\\.", re.DOTALL
)
_LONGEST_BAD = 2
_ZERO = re.compile(r"(?:0+|0[xX]0+)\Z")


def strict_error(text: str) -> tuple[str, int] | None:
    """Return (message, line) of the first thing that only Python's parser lets pass."""
    if not _SUSPECT.search(text):
        return None
    for token, line in tokens(text):
        if token[0] in "\"'":
            if bad := _bad_escape(token):
                return f"{bad} is no escape sequence", line
        elif token[0] == "+":
            return "a number has no '+'", line
        elif not token.isascii():
            odd = next(char for char in token if not char.isascii())
            return f"the character {odd!r} stands outside a string", line
    return None


def minus_zeros(text: str) -> str:
    """Return `text` with -1 for each -0: an unsigned field refuses any minus, and Python only that of -1."""
    if not re.search(r"-\s*0", text):
        return text
    parts = [token for token, _ in tokens(text)]
    for index, part in enumerate(parts):
        if part.startswith("-") and _ZERO.match(part[1:]):
            parts[index] = "-1"
        elif part == "-" and index + 1 < len(parts) and _ZERO.match(parts[index + 1]):
            parts[index + 1] = "1"
    return " ".join(parts)


def _bad_escape(string: str) -> str:
    return next((match[0] for match in _ESCAPE.finditer(string) if _is_bad(match[0])), "")


def _is_bad(escape: str) -> bool:
    return len(escape) == _LONGEST_BAD and escape[1] not in "abfnrtv\\?'\"01234567"
