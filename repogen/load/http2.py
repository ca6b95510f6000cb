"""HTTP/2 as a client of unary gRPC calls needs it: frames, the headers of requests, the outcome of answers; pure.

The peer is told to keep no table of headers for us (HEADER_TABLE_SIZE 0): each of its blocks stands for itself, and
equal blocks say equal things. Huffman-coded strings are not read; gRPC's C++ servers send none, proxies do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20
FRAME_HEAD = 9
"""Bytes of a frame before its payload."""
CANCEL = 8
TABLE_SIZE, PUSH, STREAMS, WINDOW_SIZE, FRAME_SIZE = 1, 2, 3, 4, 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535
FIRST_FRAME = 16_384
FIRST_TABLE = 4_096
NO_TABLE = b"\x20"
"""How a block begins that tells the peer to forget its table."""
_STATIC = 61  # entries of HPACK's own table
_ENTRY = 32  # what an entry takes of a table beside its text
_TIMEOUT = 99_999_999
_STATUSES = {8: b"200", 9: b"204", 10: b"206", 11: b"304", 12: b"400", 13: b"404", 14: b"500"}
_OF_HTTP = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"429": 14, b"502": 14, b"503": 14, b"504": 14}
_OF_RESET = {7: 14, 8: 1, 11: 8, 12: 7}
_UNKNOWN = 2
_INTERNAL = 13


class Unreadable(Exception):
    """A block of headers that only a whole HPACK decoder reads."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")


def number(value: int) -> bytes:
    """Return the payload of frames that carry one number: RESET, WINDOW."""
    return value.to_bytes(4, "big")


def settings(values: Mapping[int, int]) -> bytes:
    return b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items())


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    pieces = (payload[at : at + 6] for at in range(0, len(payload) - 5, 6))
    return [(int.from_bytes(piece[:2], "big"), int.from_bytes(piece[2:], "big")) for piece in pieces]


def content(payload: bytes, flags: int, *, headers: bool = False) -> bytes:
    """Return a frame's payload without its padding, and without the priority that headers may carry."""
    end = len(payload)
    start = 0
    if flags & PADDED:
        start, end = 1, end - payload[0]
    if headers and flags & PRIORITY:
        start += 5
    return payload[start:end]


@dataclass(frozen=True)
class Head:
    """The headers of every request: told to the peer's table, by reference to it, and without a table."""

    first: bytes
    again: bytes
    plain: bytes
    size: int  # what they take of the table


def head(path: str, authority: str, seconds: float, metadata: Iterable[tuple[str, str]] = ()) -> Head:
    timeout = f"{min(max(round(seconds * 1000), 1), _TIMEOUT)}m"
    pairs = [
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "repogen"),
        ("grpc-timeout", timeout),
        *metadata,
    ]
    common = b"\x83\x86"  # POST, http: entries of HPACK's own table
    texts = [(name.encode("ascii"), value.encode("ascii")) for name, value in pairs]
    entries = range(_STATIC + len(texts), _STATIC, -1)  # the newest comes first
    return Head(
        first=common + b"".join(b"\x40" + _string(name) + _string(value) for name, value in texts),
        again=common + b"".join(_integer(entry, 7, 0x80) for entry in entries),
        plain=common + b"".join(b"\x00" + _string(name) + _string(value) for name, value in texts),
        size=sum(len(name) + len(value) + _ENTRY for name, value in texts),
    )


def fields(block: bytes) -> dict[bytes, bytes]:
    """Return a block's headers, those with a name that matters here. Raises Unreadable."""
    found: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                entry, at = _read_integer(block, at, 7)
                if not 0 < entry <= _STATIC:
                    raise Unreadable
                if entry in _STATUSES:
                    found[b":status"] = _STATUSES[entry]
            elif first & 0x20 and not first & 0x40:  # the size of a table that is empty
                _, at = _read_integer(block, at, 5)
            else:
                at = _read_literal(block, at, found)
    except IndexError:
        raise Unreadable from None
    return found


def outcome(told: Mapping[bytes, bytes], http: bytes = b"200") -> tuple[int, str]:
    """Return gRPC's status and words, of the last headers of an answer whose first said `http`."""
    status = told.get(b"grpc-status", b"")
    http = told.get(b":status", http)
    if status.isdigit():
        return int(status), unquote_to_bytes(told.get(b"grpc-message", b"")).decode(errors="replace")
    if http != b"200":
        return _OF_HTTP.get(http, _UNKNOWN), f"HTTP status {http.decode(errors='replace')}, and none of gRPC"
    return _UNKNOWN, "an answer without gRPC's status"


def reset(code: int) -> tuple[int, str]:
    """Return gRPC's status for a stream that the peer broke off."""
    return _OF_RESET.get(code, _INTERNAL), f"the server broke the request off (HTTP/2 error {code})"


def suits(metadata: Sequence[tuple[str, str]]) -> bool:
    """Return whether these headers go as they are: binary ones and other alphabets have a code of their own."""
    size = sum(len(name) + len(value) for name, value in metadata)
    plain = all(name.isascii() and value.isascii() and not name.endswith("-bin") for name, value in metadata)
    return plain and size < FIRST_FRAME // 2


def _read_literal(block: bytes, at: int, found: dict[bytes, bytes]) -> int:
    entry, at = _read_integer(block, at, 6 if block[at] & 0x40 else 4)
    if entry > _STATIC:
        raise Unreadable
    if entry:
        name: bytes | None = b":status" if entry in _STATUSES else b""
    else:
        name, at = _read_string(block, at)
    value, at = _read_string(block, at)
    if name is None or (value is None and name in (b":status", b"grpc-status", b"grpc-message")):
        raise Unreadable
    found[name] = value or b""
    return at


def _integer(value: int, bits: int, flags: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((flags | value,))
    out = [flags | most]
    value -= most
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7, 0) + text


def _read_string(block: bytes, at: int) -> tuple[bytes | None, int]:
    coded = block[at] & 0x80
    length, at = _read_integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise Unreadable
    return (None if coded else block[at:end]), end
