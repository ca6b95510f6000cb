"""How a generator sends: serialized requests in, a callback with the instant of the answer out.

Four ways with one shape, `send(number, request)`: HTTP/2 over a plain socket (`repogen.load.wire`); gRPC's completion
queue driven by hand, for TLS and proxies; its public futures where that is not to be had; and a stream for models that
answer more than once.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol

from repogen import access, triton
from repogen.load import wire

OK = 0
CANCELLED = 1
UNKNOWN = 2
_INTERNAL = 13
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_STREAM_ERROR = b"\x0a"
"""How a ModelStreamInferResponse begins that carries an error: field 1."""

Answered = Callable[[int, int, int, int, int, str], None]
"""Called with: number, first answer at, done at (ns), gRPC status, bytes of the answer, words of a failure."""


class Calls(Protocol):
    """One connection, any number of requests under way."""

    def send(self, number: int, request: bytes) -> None: ...

    def close(self) -> None: ...


def open_calls(url: str, *, deadline: float, stream: bool, answered: Answered) -> Calls:
    """Return the cheapest way of sending that there is to this server."""
    import grpc

    metadata = access.from_environment().headers or None
    if not stream:
        try:
            return wire.WireCalls(wire.place_of(url, metadata or (), deadline), answered)
        except (wire.Unusual, wire.Broken, OSError):
            pass  # gRPC can do more, and says what is wrong
    channel = triton.bare_channel(url)
    try:
        grpc.channel_ready_future(channel).result(triton.DEADLINE)
    except grpc.FutureTimeoutError:
        channel.close()
        raise triton.NoAnswer(f"no answer from {url} within {triton.DEADLINE:g} s") from None
    if stream:
        return StreamCalls(channel, metadata, deadline, answered)
    try:
        return QueueCalls(channel, metadata, deadline, answered)
    except (ImportError, AttributeError, TypeError):  # gRPC's inside has changed
        return FutureCalls(channel, metadata, deadline, answered)


def try_one(url: str, request: bytes, *, deadline: float, stream: bool) -> str:
    """Send one request and return what was wrong with it, "" where nothing was."""
    answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    calls = open_calls(
        url, deadline=deadline, stream=stream, answered=lambda *answer: answers.put((answer[3], answer[5]))
    )
    calls.send(0, request)
    try:
        code, words = answers.get(timeout=deadline + 1)
    except queue.Empty:
        code, words = CANCELLED, f"no answer within {deadline:g} s"
    calls.close()
    return f"{words} (gRPC status {code})" if code else ""


class QueueCalls:
    """Unary calls on gRPC's completion queue, without the locks and objects that a future costs.

    This is how grpc's own futures are made, one layer below its public interface.
    """

    def __init__(self, channel: Any, metadata: Any, deadline: float, answered: Answered) -> None:
        from grpc._cython import cygrpc

        self._channel = channel
        self._metadata = metadata
        self._deadline = deadline
        self._answered = answered
        self._core = channel._channel  # noqa: SLF001 - see the class
        self._start = self._core.integrated_call
        self._message = cygrpc.ReceiveMessageOperation
        self._status = cygrpc.ReceiveStatusOnClientOperation
        self._send_metadata = cygrpc.SendInitialMetadataOperation
        self._send_message = cygrpc.SendMessageOperation
        self._send_close = cygrpc.SendCloseFromClientOperation
        self._first_metadata = cygrpc.ReceiveInitialMetadataOperation
        self._context = cygrpc.build_census_context()
        self._flags = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
        self._method = triton.INFER.encode()
        self._live = triton.LIVE.encode()
        self._count = itertools.count().__next__  # of calls begun; atomic
        self._last = -1  # how many events there are in all, once that is known
        self._first()

    def send(self, number: int, request: bytes) -> None:
        self._call(self._method, request, partial(self._done, number), self._deadline)

    def close(self) -> None:
        """End the thread once every call has its event, one of our own being the last, and then the connection.

        A connection that still has calls would wait for them, and nobody would tell it of their end.
        """
        self._last = self._count() + 1
        self._call(self._live, b"", lambda *_: None, 1.0)
        self._thread.join(3)
        if not self._thread.is_alive():
            self._channel.close()

    def _first(self) -> None:
        """Ask whether the server lives: what differs in this grpc shows here, and the thread gets its first event."""
        self._call(self._live, b"", lambda *_: None, triton.DEADLINE)
        self._thread = threading.Thread(target=self._listen, daemon=True, name="answers")
        self._thread.start()

    def _call(self, method: bytes, request: bytes, done: Callable[[int, Any, Any], None], deadline: float) -> None:
        self._count()
        message, status = self._message(0), self._status(0)

        def tag(_event: Any) -> None:
            done(perf_counter_ns(), status, message)

        operations = (
            self._send_metadata(self._metadata, 0),
            self._send_message(request, 0),
            self._send_close(0),
            self._first_metadata(0),
            message,
            status,
        )
        due = time.time() + deadline
        self._start(self._flags, method, None, due, self._metadata, None, ((operations, tag),), self._context, None)

    def _done(self, number: int, now: int, status: Any, message: Any) -> None:
        code = status.code()
        if code == OK:
            self._answered(number, now, now, OK, len(message.message() or b""), "")
        else:
            words = status.details()
            text = words.decode(errors="replace") if isinstance(words, bytes) else words
            self._answered(number, now, now, code, 0, text or "no reason given")

    def _listen(self) -> None:
        next_event = self._core.next_call_event
        events = 0
        while events != self._last:
            event = next_event()
            event.tag(event)
            events += 1


class FutureCalls:
    """Unary calls through gRPC's public futures."""

    def __init__(self, channel: Any, metadata: Any, deadline: float, answered: Answered) -> None:
        self._channel = channel
        self._start = channel.unary_unary(triton.INFER).future
        self._metadata = metadata
        self._deadline = deadline
        self._answered = answered

    def send(self, number: int, request: bytes) -> None:
        call = self._start(request, self._deadline, self._metadata)
        call.add_done_callback(partial(self._done, number))

    def close(self) -> None:
        self._channel.close()

    def _done(self, number: int, call: Any) -> None:
        now = perf_counter_ns()
        code = call.code().value[0]
        if code == OK:
            self._answered(number, now, now, OK, len(call.result()), "")
        else:
            self._answered(number, now, now, code, 0, call.details() or "no reason given")


class StreamCalls:
    """One stream for each request: it ends with the request's last answer. A thread waits on each."""

    def __init__(self, channel: Any, metadata: Any, deadline: float, answered: Answered) -> None:
        self._channel = channel
        self._start = channel.unary_stream(STREAM)  # on the wire, a stream that is closed after one request
        self._metadata = metadata
        self._deadline = deadline
        self._answered = answered
        self._threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="stream")

    def send(self, number: int, request: bytes) -> None:
        call = self._start(request, self._deadline, self._metadata)
        self._threads.submit(self._read, number, call)

    def close(self) -> None:
        self._channel.close()
        self._threads.shutdown()

    def _read(self, number: int, call: Any) -> None:
        import grpc

        first = size = 0
        failure = b""
        try:
            for answer in call:
                first = first or perf_counter_ns()
                size += len(answer)
                if answer.startswith(_STREAM_ERROR):
                    failure = failure or answer
        except grpc.RpcError as error:
            now = perf_counter_ns()
            code = error.code().value[0]
            self._answered(number, first or now, now, code, size, error.details() or "no reason given")
            return
        now = perf_counter_ns()
        words = _stream_error(failure) if failure else "" if first else "the stream ended without an answer"
        self._answered(number, first or now, now, _INTERNAL if words else OK, size, words)


def _stream_error(answer: bytes) -> str:
    from tritonclient.grpc import service_pb2

    return str(service_pb2.ModelStreamInferResponse.FromString(answer).error_message)
