"""Unary gRPC calls over a plain socket: a sixth of the CPU that gRPC's own client takes for one.

What makes it cheap is that many answers are taken with one look at the socket, and the requests that follow them go
out together. TLS, streams and proxies are gRPC's business (`repogen.load.calls`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns

from repogen import triton
from repogen.load import http2

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 0, 1, 2, 4, 13, 14
_UNREADABLE = "the answer's headers are in a code that is not read here"
_PIECE = 1 << 16
_OWED = 1 << 20
"""Bytes taken, after which the peer is told that there is room for as many again."""
_TOGETHER = 8
"""Requests that wait for each other at most, before they go out."""
_LOOK = 20_000_000
"""Nanoseconds between two looks for requests whose time is over."""
_RETRY = 0.5
_RECONNECT = 2.0
_S = 1_000_000_000
_BLOCKS = 64
"""Blocks of headers that are remembered: a server may have something new to tell with each answer."""
_PREFIX = 5  # of a message: compressed or not, and its length
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")

Answered = Callable[[int, int, int, int, int, str], None]
Kept = list[tuple[int, bytes]]


class Unusual(Exception):
    """A peer that only gRPC itself understands."""


class Broken(Exception):
    """The peer does not speak HTTP/2."""


@dataclass(frozen=True)
class Place:
    """Where to, and what every request there begins with."""

    host: str
    port: int
    infer: http2.Head
    live: http2.Head
    deadline: float


def place_of(url: str, metadata: Sequence[tuple[str, str]], deadline: float) -> Place:
    """Return what a connection to `url` needs. Raises Unusual where gRPC must do it."""
    host, colon, port = url.rpartition(":")
    if not colon or "/" in url or not port.isdigit() or (":" in host and not host.startswith("[")):
        raise Unusual
    if host not in _LOOPBACK and any(os.environ.get(name) for name in _PROXIES):
        raise Unusual
    if not http2.suits(metadata):
        raise Unusual
    infer, live = (http2.head(path, url, deadline, metadata) for path in (triton.INFER, triton.LIVE))
    return Place(host.strip("[]"), int(port), infer, live, deadline)


class Upload:
    """What of a request has not gone out yet, and how much of it the peer has room for."""

    def __init__(self, body: bytes, window: int) -> None:
        self.rest = memoryview(body)
        self.window = window


class Connection:
    """One connection. `run` is its reader and takes the answers; any thread may send.

    `gone` is called, before anything is failed, at the moment it takes no more requests; with those not yet begun.
    """

    def __init__(self, place: Place, answered: Answered, gone: Callable[[Kept], None], seconds: float) -> None:
        self._place = place
        self._answered = answered
        self._gone = gone
        self._lock = threading.Lock()
        self._streams: dict[int, tuple[int, int]] = {}  # number and when its time is over, by stream; oldest first
        self._sizes: dict[int, int] = {}  # bytes of answers so far
        self._odd: dict[int, bytes] = {}  # HTTP statuses other than 200
        self._pieces: tuple[int, int, bytes] | None = None  # headers whose rest is in frames to come
        self._usual: set[bytes] = set()  # blocks known to say: 200
        self._fine: set[bytes] = set()  # and: grpc-status 0
        self._uploads: dict[int, Upload] = {}
        self._queue: deque[tuple[int, bytes, int]] = deque()  # beyond the most that the peer takes at once
        self._next = 1
        self._head = place.infer.first if place.infer.size <= http2.FIRST_TABLE else place.infer.plain
        self._small_table = b""
        self._lengths: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._most = 2**31
        self._window = self._first_window = http2.FIRST_WINDOW
        self._frame = http2.FIRST_FRAME
        self._owed = 0
        self._out: list[bytes | memoryview] = []
        self._held = 0
        self._unsent: deque[memoryview] = deque()
        self._rest = b""
        self._look = 0
        self._greeted = False
        self._leaving = False
        self._closing = False
        self._reader = 0
        self._socket = socket.create_connection((place.host, place.port), seconds)
        try:
            self._greet()
        except BaseException:
            self._socket.close()
            raise

    def send(self, number: int, request: bytes) -> bool:
        """Send it, now or when the peer has room; False where this connection takes no more."""
        due = perf_counter_ns() + round(self._place.deadline * _S)
        with self._lock:
            if self._leaving:
                return False
            if self._queue or len(self._streams) >= self._most:
                self._queue.append((number, request, due))
                return True
            self._begin(number, request, due)
            self._held += 1
            # The reader's own are answers' successors: what came together goes out together.
            if self._held >= _TOGETHER or get_ident() != self._reader:
                self._flush()
        return True

    @property
    def leaving(self) -> bool:
        return self._leaving

    def run(self) -> None:
        """Take answers until the connection is over; fail what is still under way then."""
        self._reader = get_ident()
        words = "the server closed the connection"
        try:
            while not self._leaving or self._streams:
                if not self._turn():
                    break
        except (OSError, Broken) as error:
            words = f"the connection was lost: {getattr(error, 'strerror', None) or error}"
        self._end(words)

    def close(self) -> None:
        """End it; its reader fails what is under way."""
        self._closing = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is over already
            return

    def prove(self) -> None:
        """Ask whether the server lives. Raises Unusual where its headers cannot be read."""
        kept, outcome = self._answered, []
        self._answered = lambda *answer: outcome.append(answer)
        with self._lock:
            self._begin(-1, b"", perf_counter_ns() + round(triton.DEADLINE * _S), self._place.live.plain)
            self._flush()
        while not outcome:
            if not self._turn():
                raise Unusual
        self._answered = kept
        if outcome[0][5] == _UNREADABLE:
            raise Unusual

    def _greet(self) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours = {http2.TABLE_SIZE: 0, http2.PUSH: 0, http2.WINDOW_SIZE: http2.LARGEST_WINDOW}
        more = http2.number(http2.LARGEST_WINDOW - http2.FIRST_WINDOW)
        self._socket.sendall(
            http2.PREFACE
            + http2.frame(http2.SETTINGS, 0, 0, http2.settings(ours))
            + http2.frame(http2.WINDOW, 0, 0, more)
        )
        while not self._greeted:
            if not (data := self._socket.recv(_PIECE)):
                raise Broken("the connection was closed before its settings came")
            self._take(data, perf_counter_ns())
        self._settle()
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, _LOOK // 1000))

    def _turn(self) -> bool:
        """Wait a while for answers and take them; False at the end of the connection."""
        if self._unsent:
            select.select([self._socket], [self._socket], [], _LOOK / _S)
            with self._lock:
                self._flush()
        try:
            data = self._socket.recv(_PIECE, socket.MSG_DONTWAIT if self._unsent else 0)
        except BlockingIOError:
            data = None
        now = perf_counter_ns()
        if data:
            self._take(data, now)
        if now >= self._look:
            self._look = now + _LOOK
            self._expire(now)
        if self._out or self._queue or self._owed > _OWED:
            self._settle()
        return data != b""

    def _take(self, data: bytes, now: int) -> None:
        """Go through every whole frame. Most are the three of an answer, and are dealt with here."""
        data = self._rest + data if self._rest else data
        at, have = 0, len(data)
        streams, sizes, answered = self._streams, self._sizes, self._answered
        while have - at >= http2.FRAME_HEAD:
            high, low, kind, flags, stream = _FRAME(data, at)
            length = high << 8 | low
            start = at + http2.FRAME_HEAD
            end = start + length
            if end > have:
                if length > http2.FIRST_FRAME:
                    raise Broken("a frame is larger than was permitted")
                break
            if kind == http2.DATA and not flags:
                self._owed += length
                if stream in streams:
                    sizes[stream] = sizes.get(stream, 0) + length
            elif kind == http2.HEADERS and flags == _LAST and sizes.get(stream, 0) >= _PREFIX:
                if (block := data[start:end]) in self._fine and not self._uploads:
                    number, _ = streams.pop(stream)
                    answered(number, now, now, OK, sizes.pop(stream) - _PREFIX, "")
                else:
                    self._other(kind, flags, stream, block, now)
            elif kind != http2.HEADERS or flags != http2.END_HEADERS or data[start:end] not in self._usual:
                self._other(kind, flags, stream & 0x7FFFFFFF, data[start:end], now)
            at = end
        self._rest = data[at:]

    def _other(self, kind: int, flags: int, stream: int, payload: bytes, now: int) -> None:
        if kind == http2.HEADERS:
            self._headers(flags, stream, http2.content(payload, flags, headers=True), now)
        elif kind == http2.CONTINUATION and self._pieces is not None and self._pieces[0] == stream:
            _, first, block = self._pieces
            self._headers(first | flags & http2.END_HEADERS, stream, block + payload, now)
        elif kind == http2.DATA:
            self._owed += len(payload)
            if stream in self._streams:
                self._sizes[stream] = self._sizes.get(stream, 0) + len(http2.content(payload, flags))
            if flags & http2.END_STREAM:
                self._finish(stream, now, *http2.outcome({}, self._odd.get(stream, b"200")))
        elif kind == http2.RESET:
            self._finish(stream, now, *http2.reset(int.from_bytes(payload[:4], "big")))
        elif kind == http2.GO_AWAY:
            self._go_away(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, now)
        else:
            with self._lock:
                self._obey(kind, flags, stream, payload)

    def _headers(self, flags: int, stream: int, block: bytes, now: int) -> None:
        if not flags & http2.END_HEADERS:
            self._pieces = stream, flags & http2.END_STREAM, block
            return
        self._pieces = None
        try:
            told = http2.fields(block)
        except http2.Unreadable:
            self._odd[stream] = b""
            if flags & http2.END_STREAM:
                self._finish(stream, now, UNKNOWN, _UNREADABLE)
            return
        if flags & http2.END_STREAM:
            code, words = http2.outcome(told, self._odd.get(stream, b"200"))
            if code == OK and stream not in self._odd and len(self._fine) < _BLOCKS:
                self._fine.add(block)
            self._finish(stream, now, code, words)
        elif told.get(b":status") == b"200":
            if len(self._usual) < _BLOCKS:
                self._usual.add(block)
        elif stream in self._streams and not told.get(b":status", b"").startswith(b"1"):
            self._odd[stream] = told.get(b":status", b"")

    def _finish(self, stream: int, now: int, code: int, words: str) -> None:
        """Answer one request, unless it has been given up."""
        size = self._sizes.pop(stream, 0) - _PREFIX
        self._odd.pop(stream, None)
        with self._lock:
            found = self._streams.pop(stream, None)
            if self._uploads.pop(stream, None):  # it was answered before it was told everything
                self._out.append(http2.frame(http2.RESET, 0, stream, http2.number(http2.CANCEL)))
        if found is None:
            return
        number, _ = found
        if code == OK and size < 0:
            code, words = INTERNAL, "an answer without a message"
        if code == OK:
            self._answered(number, now, now, OK, size, "")
        else:
            self._answered(number, now, now, code, 0, words or "no reason given")

    def _obey(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Do what is asked of every client, under the lock."""
        if kind == http2.SETTINGS and not flags & http2.ACK:
            # First, for what goes out by the new windows is too much for a server that has not heard of the consent.
            self._out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
            for key, value in http2.read_settings(payload):
                self._set(key, value)
            self._greeted = True
        elif kind == http2.PING and not flags & http2.ACK:
            self._out.append(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW:
            more = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            if not stream:
                self._window += more
            elif stream in self._uploads:
                self._uploads[stream].window += more
            self._upload()

    def _set(self, key: int, value: int) -> None:
        if key == http2.STREAMS:
            self._most = value
        elif key == http2.FRAME_SIZE:
            self._frame = value
        elif key == http2.WINDOW_SIZE:
            for upload in self._uploads.values():
                upload.window += value - self._first_window
            self._first_window = value
            self._upload()
        elif key == http2.TABLE_SIZE and value < http2.FIRST_TABLE:
            self._head = self._place.infer.plain
            self._small_table = http2.NO_TABLE

    def _begin(self, number: int, request: bytes, due: int, head: bytes = b"") -> None:
        """Put a request on its way, under the lock."""
        stream = self._next
        self._next += 2
        self._streams[stream] = number, due
        name = stream.to_bytes(4, "big")
        whole = len(request) + _PREFIX
        if not head:
            head = self._head
            if head is self._place.infer.first:
                self._head = self._place.infer.again
        if head is self._place.infer.again:
            before, between, prefix = self._heads(whole)
        else:
            head = self._small_table + head
            before, between, prefix = _heads(head, whole)
        if whole <= self._window and whole <= self._first_window and whole <= self._frame and not self._uploads:
            self._window -= whole
            self._out += (before, name, between, name, prefix, request)
        else:
            self._out += (before, name, head)
            self._uploads[stream] = Upload(prefix + request, self._first_window)
            self._upload()

    def _heads(self, whole: int) -> tuple[bytes, bytes, bytes]:
        found = self._lengths.get(whole)
        if found is None:
            found = self._lengths[whole] = _heads(self._place.infer.again, whole)
        return found

    def _upload(self) -> None:
        """Send as much of the bodies as the peer has room for, under the lock."""
        for stream, upload in list(self._uploads.items()):
            while upload.rest and self._window > 0 and upload.window > 0:
                size = min(len(upload.rest), self._window, upload.window, self._frame)
                last = http2.END_STREAM if size == len(upload.rest) else 0
                self._out += (http2.frame_head(size, http2.DATA, last, stream), upload.rest[:size])
                upload.rest = upload.rest[size:]
                upload.window -= size
                self._window -= size
            if not upload.rest:
                del self._uploads[stream]

    def _settle(self) -> None:
        """After a look at the socket: what has piled up meanwhile goes out."""
        with self._lock:
            if self._owed > _OWED:
                self._out.append(http2.frame(http2.WINDOW, 0, 0, http2.number(self._owed)))
                self._owed = 0
            while self._queue and len(self._streams) < self._most and not self._leaving:
                self._begin(*self._queue.popleft())
            self._flush()

    def _flush(self) -> None:
        """Give the socket what it takes at once, under the lock; the reader gives it the rest."""
        self._held = 0
        if self._out:
            self._unsent.append(memoryview(b"".join(self._out)))
            self._out.clear()
        try:
            while self._unsent:
                piece = self._unsent[0]
                sent = self._socket.send(piece, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                if sent < len(piece):
                    self._unsent[0] = piece[sent:]
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:  # the reader meets it too, and knows what to do
            self._unsent.clear()

    def _expire(self, now: int) -> None:
        """Give up on those whose time is over."""
        late = []
        with self._lock:
            while self._queue and self._queue[0][2] <= now:
                late.append(self._queue.popleft()[0])
            for stream, (number, due) in list(self._streams.items()):
                if due > now:
                    break
                late.append(number)
                for of in (self._streams, self._uploads, self._sizes, self._odd):
                    of.pop(stream, None)
                self._out.append(http2.frame(http2.RESET, 0, stream, http2.number(http2.CANCEL)))
            self._flush()
        for number in late:
            self._answered(number, now, now, DEADLINE_EXCEEDED, 0, "Deadline Exceeded")

    def _go_away(self, last: int, now: int) -> None:
        """The server takes no more: it finishes what it has begun, the rest is for another connection."""
        self._leave()
        for stream in [stream for stream in list(self._streams) if stream > last]:
            self._finish(stream, now, UNAVAILABLE, "the server went away before it began with the request")

    def _leave(self) -> None:
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
            kept = [(number, request) for number, request, _ in self._queue]
            self._queue.clear()
        self._gone(kept)

    def _end(self, words: str) -> None:
        self._leave()
        now = perf_counter_ns()
        code, words = (CANCELLED, "the client was closed") if self._closing else (UNAVAILABLE, words)
        for stream in list(self._streams):
            self._finish(stream, now, code, words)
        self._socket.close()


class WireCalls:
    """Unary calls on connections of our own; where one is lost, the next is made, as gRPC does."""

    def __init__(self, place: Place, answered: Answered) -> None:
        self._place = place
        self._answered = answered
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._waiting: Kept = []
        self._down = ""  # why there is no connection, once that was tried
        self._open: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._connection: Connection | None = None
        first = Connection(place, answered, self._gone, triton.DEADLINE)
        self._open.append(first)
        self._connection = first
        try:
            first.prove()
        except BaseException:
            self.close()
            first.run()  # which has nothing left to do but to end
            raise
        self._start(first.run)

    def send(self, number: int, request: bytes) -> None:
        while True:
            connection = self._connection
            if connection is not None:
                if connection.send(number, request):
                    return
                time.sleep(0)  # its reader is about to say that it is gone
                continue
            with self._lock:
                if self._connection is not None:
                    continue
                if not self._down:
                    self._waiting.append((number, request))
                    return
            self._fail([(number, request)], UNAVAILABLE, self._down)
            return

    def close(self) -> None:
        self._stop.set()
        for connection in self._open:
            connection.close()
        for thread in self._threads:
            thread.join(3)
        self._fail(self._take_waiting(), CANCELLED, "the client was closed")

    def _start(self, what: Callable[[], None]) -> None:
        thread = threading.Thread(target=what, daemon=True, name="answers")
        self._threads.append(thread)
        thread.start()

    def _gone(self, kept: Kept) -> None:
        with self._lock:
            self._connection = None
            self._down = "the client was closed" if self._stop.is_set() else ""
            self._waiting += kept
        if not self._stop.is_set():
            self._start(self._renew)

    def _renew(self) -> None:
        """Connect again, however often it takes, and be that connection's reader."""
        while not self._stop.is_set():
            try:
                connection = Connection(self._place, self._answered, self._gone, min(_RECONNECT, self._place.deadline))
            except (OSError, Broken) as error:
                with self._lock:
                    self._down = f"failed to connect to {self._place.host}:{self._place.port}: {error}"
                self._fail(self._take_waiting(), UNAVAILABLE, self._down)
                self._stop.wait(_RETRY)
                continue
            with self._lock:
                self._open.append(connection)
                self._connection = None if connection.leaving else connection
            if self._stop.is_set():
                connection.close()
            for number, request in self._take_waiting():
                self.send(number, request)
            connection.run()
            return

    def _take_waiting(self) -> Kept:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting

    def _fail(self, requests: Kept, code: int, words: str) -> None:
        now = perf_counter_ns()
        for number, _ in requests:
            self._answered(number, now, now, code, 0, words)


_FRAME = struct.Struct(">HBBBL").unpack_from
_LAST = http2.END_HEADERS | http2.END_STREAM


def _heads(head: bytes, whole: int) -> tuple[bytes, bytes, bytes]:
    """Return what stands before, between and after the two names of the stream in a request of one DATA frame."""
    before = http2.frame_head(len(head), http2.HEADERS, http2.END_HEADERS, 0)[:5]
    between = head + http2.frame_head(whole, http2.DATA, http2.END_STREAM, 0)[:5] if whole < 1 << 24 else head
    return before, between, b"\0" + (whole - _PREFIX).to_bytes(4, "big")
