"""A scripted HTTP/2 server for one connection after another: what it says, and when, is up to the test."""

import socket
import threading
from collections import defaultdict

from repogen.load import http2

USUAL = b"\x88\x0f\x10\x10application/grpc"
FINE = b"\x40\x0bgrpc-status\x010"


def failed(code: int, words: str) -> bytes:
    return b"\x00\x0bgrpc-status" + text(str(code)) + b"\x00\x0cgrpc-message" + text(words)


def text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()


class Peer:
    """One accepted connection."""

    def __init__(self, sock):
        self.socket = sock
        self.data = b""
        self.bodies = defaultdict(bytes)
        self.seen = []  # every frame but DATA: kind, flags, stream, payload

    def say(self, kind, flags=0, stream=0, payload=b""):
        self.socket.sendall(http2.frame(kind, flags, stream, payload))

    def greet(self, settings=(), window=0):
        """Answer what every client begins with."""
        assert self.take(len(http2.PREFACE)) == http2.PREFACE
        self.say(http2.SETTINGS, 0, 0, http2.settings(dict(settings)))
        if window:
            self.say(http2.WINDOW, 0, 0, http2.number(window))
        assert self.frame()[0] == http2.SETTINGS

    def take(self, count):
        while len(self.data) < count:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError
            self.data += piece
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def frame(self):
        head = self.take(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = self.take(int.from_bytes(head[:3], "big"))
        if kind == http2.DATA:
            self.bodies[stream] += payload
        else:
            self.seen.append((kind, flags, stream, payload))
        return kind, flags, stream, payload

    def request(self):
        """Read on until a request is whole; return its stream."""
        while True:
            kind, flags, stream, _ = self.frame()
            if kind == http2.DATA and flags & http2.END_STREAM:
                return stream

    def wait(self, kind):
        """Read on until a frame of this kind."""
        while True:
            frame = self.frame()
            if frame[0] == kind:
                return frame

    def answer(self, stream, body=b"\0\0\0\0\x03abc"):
        self.socket.sendall(whole(stream, body))


def whole(stream, body=b"\0\0\0\0\x03abc"):
    return (
        http2.frame(http2.HEADERS, http2.END_HEADERS, stream, USUAL)
        + http2.frame(http2.DATA, 0, stream, body)
        + http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, FINE)
    )


class Scripted:
    """Runs one script for each connection, in order; `url` is where. A script that fails fails the test."""

    def __init__(self, *scripts):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.scripts = scripts
        self.problems = []
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        assert self.problems == []

    def run(self):
        for script in self.scripts:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.settimeout(10)
            with sock:
                try:
                    script(Peer(sock))
                except (EOFError, ConnectionError):
                    continue  # the client has closed
                except Exception as error:
                    self.problems.append(repr(error))
                    return
