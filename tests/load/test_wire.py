"""Our own connection against a scripted HTTP/2 server: what real ones rarely do, and what they do when they end."""

import queue
import random
import threading
import time

import pytest

from repogen.load import http2
from repogen.load.wire import Broken, Unusual, WireCalls, place_of
from tests.load.drive import wait_for
from tests.load.peer import FINE, USUAL, Scripted, failed, whole

LAST = http2.END_HEADERS | http2.END_STREAM


class Client:
    def __init__(self, url, deadline=5.0, metadata=()):
        self.answers = queue.SimpleQueue()
        self.got = {}
        self.calls = WireCalls(place_of(url, metadata, deadline), self.answered)

    def answered(self, number, first, done, code, size, words):
        assert number not in self.got, "answered twice"
        self.got[number] = (code, size, words)
        self.answers.put(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.close()

    def ask(self, number=0, request=b"request"):
        self.calls.send(number, request)

    def wait(self, seconds=5):
        return self.got[self.answers.get(timeout=seconds)]


def proved(script, settings=(), window=0):
    """A connection that has passed the client's first question."""

    def run(peer):
        peer.greet(settings, window)
        peer.answer(peer.request())
        script(peer)

    return run


def answering(peer):
    while True:
        peer.answer(peer.request())


def one(reply, deadline=5.0):
    """Send one request, let `reply(peer, stream)` do something about it, and return the outcome."""

    finished = threading.Event()

    def script(peer):
        reply(peer, peer.request())
        finished.set()
        answering(peer)

    with Scripted(proved(script)) as server, Client(server.url, deadline) as client:
        client.ask()
        outcome = client.wait()
        assert finished.wait(5) or server.problems  # those are told at the end
        return outcome


def test_headers_come_by_reference_from_the_second_request_on():
    streams = []

    def script(peer):
        for _ in range(3):
            streams.append(peer.request())
            peer.answer(streams[-1])
        blocks.extend(payload for kind, _, stream, payload in peer.seen if kind == http2.HEADERS and stream > 1)
        answering(peer)

    blocks = []
    with Scripted(proved(script)) as server, Client(server.url, metadata=(("triton-key", "sesame"),)) as client:
        for number in range(3):
            client.ask(number)
            assert client.wait() == (0, 3, "")
        wait_for(lambda: len(blocks) == 3)
    assert streams == [3, 5, 7]
    assert http2.fields(blocks[0])[b"triton-key"] == b"sesame"
    assert len(blocks[1]) == 9
    assert blocks[1] == blocks[2]


@pytest.mark.parametrize("metadata", [(), (("k", "v" * 5000),)], ids=["its table is small", "ours would be large"])
def test_a_table_that_cannot_hold_them(metadata):
    settings = {} if metadata else {http2.TABLE_SIZE: 100}

    def script(peer):
        for _ in range(2):
            peer.answer(peer.request())
        blocks.extend(payload for kind, _, stream, payload in peer.seen if kind == http2.HEADERS and stream > 1)
        answering(peer)

    blocks = []
    with Scripted(proved(script, settings)) as server, Client(server.url, metadata=metadata) as client:
        for number in range(2):
            client.ask(number)
            assert client.wait() == (0, 3, "")
        wait_for(lambda: len(blocks) == 2)
    assert blocks[0] == blocks[1]
    assert blocks[0].startswith(http2.NO_TABLE) is not bool(metadata)
    assert http2.fields(blocks[0])[b":path"].endswith(b"/ModelInfer")


def test_answers_cut_anywhere_are_the_same():
    chance = random.Random(6)

    def script(peer):
        streams = [peer.request() for _ in range(60)]
        chance.shuffle(streams)
        data = b"".join(whole(stream, b"\0" + stream.to_bytes(4, "big") + b"x" * stream) for stream in streams)
        while data:
            cut = chance.choice([1, 2, 5, 8, 9, 10, 40, 300])
            peer.socket.sendall(data[:cut])
            data = data[cut:]
        answering(peer)

    with Scripted(proved(script)) as server, Client(server.url) as client:
        for number in range(60):
            client.ask(number)
        for _ in range(60):
            client.wait()
    assert client.got == {number: (0, 3 + 2 * number, "") for number in range(60)}


def test_headers_in_pieces_and_padded_data():
    def reply(peer, stream):
        for at, byte in enumerate(USUAL):
            flags = http2.END_HEADERS if at == len(USUAL) - 1 else 0
            peer.say(http2.CONTINUATION if at else http2.HEADERS, flags, stream, bytes((byte,)))
        peer.say(http2.DATA, http2.PADDED, stream, b"\x04\0\0\0\0\x02ab\0\0\0\0")
        peer.say(http2.DATA, 0, stream, b"")
        peer.say(http2.HEADERS, http2.END_STREAM, stream, FINE[:4])
        peer.say(http2.CONTINUATION, http2.END_HEADERS, stream, FINE[4:])

    assert one(reply) == (0, 2, "")


def test_a_refusal_in_its_only_headers():
    def reply(peer, stream):
        peer.say(http2.HEADERS, LAST, stream, USUAL + failed(3, "wrong shape: 5%25 of it"))

    assert one(reply) == (3, 0, "wrong shape: 5% of it")


@pytest.mark.parametrize(
    ("frames", "outcome"),
    [
        ([(http2.RESET, 0, b"\0\0\0\x07")], (14, 0, "the server broke the request off (HTTP/2 error 7)")),
        ([(http2.RESET, 0, b"\0\0\0\x02")], (13, 0, "the server broke the request off (HTTP/2 error 2)")),
        (
            [(http2.HEADERS, 4, b"\x08\x03503"), (http2.DATA, 1, b"busy")],
            (14, 0, "HTTP status 503, and none of gRPC"),
        ),
        ([(http2.HEADERS, 4, USUAL), (http2.HEADERS, 5, FINE)], (13, 0, "an answer without a message")),
        ([(http2.HEADERS, 4, b"\x08\x03100"), (http2.HEADERS, 5, USUAL + failed(5, "no"))], (5, 0, "no")),
        (
            [(http2.HEADERS, 5, b"\x40\x0bgrpc-status\x81\x07")],
            (2, 0, "the answer's headers are in a code that is not read here"),
        ),
    ],
    ids=["refused stream", "internal", "a proxy's page", "no message", "100 first", "Huffman"],
)  # fmt: skip
def test_answers_that_are_none(frames, outcome):
    def reply(peer, stream):
        for kind, flags, payload in frames:
            peer.say(kind, flags, stream, payload)

    assert one(reply) == outcome


def test_pings_and_settings_are_acknowledged():
    def reply(peer, stream):
        peer.say(http2.PING, 0, 0, b"12345678")
        assert peer.wait(http2.PING) == (http2.PING, http2.ACK, 0, b"12345678")
        peer.say(http2.SETTINGS, 0, 0, http2.settings({http2.WINDOW_SIZE: 70_000}))
        assert peer.wait(http2.SETTINGS) == (http2.SETTINGS, http2.ACK, 0, b"")
        peer.answer(stream)

    assert one(reply) == (0, 3, "")


def test_no_more_is_sent_than_there_is_room_for():
    """65,535 bytes for the connection, 1,000 for a stream, and then a bit more of each."""
    body = bytes(range(256)) * 400
    whole_body = b"\0" + len(body).to_bytes(4, "big") + body

    def script(peer):
        time.sleep(0.2)
        room, stream = 1000, 3
        while len(peer.bodies[stream]) < len(whole_body):
            peer.wait(http2.DATA)
            assert len(peer.bodies[stream]) <= room
            if len(peer.bodies[stream]) == room:
                more = min(7777, len(whole_body) - room)
                room += more
                peer.say(http2.WINDOW, 0, 0, http2.number(more))
                peer.say(http2.WINDOW, 0, stream, http2.number(more))
        assert peer.bodies[stream] == whole_body
        peer.answer(stream)
        answering(peer)

    settings = {http2.WINDOW_SIZE: 1000}
    with Scripted(proved(script, settings)) as server, Client(server.url) as client:
        client.ask(0, body)
        assert client.wait() == (0, 3, "")


def test_room_that_comes_with_new_settings():
    def script(peer):
        while len(peer.bodies[3]) < 1000:
            peer.wait(http2.DATA)
        peer.say(http2.SETTINGS, 0, 0, http2.settings({http2.WINDOW_SIZE: 5000}))
        assert peer.frame()[:2] == (http2.SETTINGS, http2.ACK)  # before what goes out by the new window
        peer.answer(peer.request())
        answering(peer)

    with Scripted(proved(script, {http2.WINDOW_SIZE: 1000})) as server, Client(server.url) as client:
        client.ask(0, b"x" * 3000)
        assert client.wait() == (0, 3, "")


def test_small_requests_wait_for_the_room_of_the_connection():
    def script(peer):
        begun = time.monotonic()
        while time.monotonic() - begun < 0.3:
            peer.socket.settimeout(0.1)
            try:
                peer.frame()
            except TimeoutError:
                continue
        peer.socket.settimeout(10)
        assert sum(len(body) for stream, body in peer.bodies.items()) == http2.FIRST_WINDOW
        peer.say(http2.WINDOW, 0, 0, http2.number(1 << 20))
        while len([stream for stream in peer.bodies if len(peer.bodies[stream]) == 10_005]) < 10:
            peer.frame()
        for stream in range(3, 23, 2):
            peer.answer(stream)
        answering(peer)

    with Scripted(proved(script)) as server, Client(server.url) as client:
        for number in range(10):
            client.ask(number, b"x" * 10_000)
        for _ in range(10):
            assert client.wait() == (0, 3, "")


def test_the_peer_is_told_of_room_for_more():
    size = 3 << 20

    def reply(peer, stream):
        peer.say(http2.HEADERS, http2.END_HEADERS, stream, USUAL)
        data = b"\0" + size.to_bytes(4, "big") + bytes(size)
        for at in range(0, len(data), 16_384):
            peer.say(http2.DATA, 0, stream, data[at : at + 16_384])
        peer.say(http2.HEADERS, LAST, stream, FINE)
        given = int.from_bytes(peer.wait(http2.WINDOW)[3], "big")
        while given < 2 << 20:
            given += int.from_bytes(peer.wait(http2.WINDOW)[3], "big")

    assert one(reply) == (0, size, "")


def test_no_more_at_once_than_the_peer_takes():
    def script(peer):
        for _ in range(4):
            open_ones = [peer.request(), peer.request()]
            peer.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                peer.frame()
            peer.socket.settimeout(10)
            for stream in open_ones:
                peer.answer(stream)
        answering(peer)

    with Scripted(proved(script, {http2.STREAMS: 2})) as server, Client(server.url) as client:
        for number in range(8):
            client.ask(number)
        for _ in range(8):
            assert client.wait() == (0, 3, "")


def test_a_deadline_is_told_to_both_sides():
    def reply(peer, stream):
        assert peer.wait(http2.RESET) == (http2.RESET, 0, stream, b"\0\0\0\x08")
        peer.answer(stream)  # too late, and nobody's

    begun = time.monotonic()
    assert one(reply, deadline=0.4) == (4, 0, "Deadline Exceeded")
    assert 0.4 <= time.monotonic() - begun < 3


def test_deadlines_of_requests_that_never_went_out():
    def script(peer):
        peer.request()
        peer.wait(http2.RESET)

    with Scripted(proved(script, {http2.STREAMS: 1})) as server, Client(server.url, deadline=0.4) as client:
        for number in range(3):
            client.ask(number)
        for _ in range(3):
            assert client.wait() == (4, 0, "Deadline Exceeded")


def test_a_lost_connection_fails_what_is_under_way_and_is_made_again():
    def script(peer):
        peer.request()
        peer.request()

    def again(peer):
        peer.greet()
        answering(peer)

    with Scripted(proved(script), again) as server, Client(server.url) as client:
        client.ask(0)
        client.ask(1)
        for _ in range(2):
            assert client.wait()[0] == 14
        client.ask(2)
        assert client.wait() == (0, 3, "")


def test_a_server_that_goes_away_finishes_and_the_rest_goes_elsewhere():
    def leaving(peer):
        first, second = peer.request(), peer.request()
        peer.say(http2.GO_AWAY, 0, 0, http2.number(first) + http2.number(0))
        time.sleep(0.3)
        peer.answer(first)
        assert second not in [stream for kind, _, stream, _ in peer.seen if kind == http2.RESET]
        with pytest.raises(EOFError):  # once it owes nothing, it is closed
            answering_never(peer)
        closed.set()

    def next_one(peer):
        peer.greet()
        answering(peer)

    closed = threading.Event()
    with Scripted(proved(leaving), next_one) as server, Client(server.url) as client:
        client.ask(0)
        client.ask(1)
        assert client.wait() == (14, 0, "the server went away before it began with the request")
        client.ask(2)
        for _ in range(2):
            client.wait()
        assert client.got[0] == client.got[2] == (0, 3, "")
        assert closed.wait(5)


def test_where_nobody_listens_any_more_requests_fail_at_once():
    with Scripted(proved(lambda peer: peer.request())) as server, Client(server.url) as client:
        server.listener.close()
        client.ask(0)
        assert client.wait()[0] == 14
        time.sleep(0.2)
        begun = time.monotonic()
        client.ask(1)
        code, _, words = client.wait()
        assert code == 14
        assert words.startswith(f"failed to connect to {server.url}")
        assert time.monotonic() - begun < 1


def test_closing_cancels_what_is_under_way():
    with Scripted(proved(answering_never)) as server, Client(server.url) as client:
        client.ask(0)
        client.calls.close()
        assert client.wait() == (1, 0, "the client was closed")


def answering_never(peer):
    while True:
        peer.frame()


def test_a_server_of_another_protocol():
    def http(peer):
        peer.take(10)
        peer.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Scripted(http) as server, pytest.raises((Broken, OSError)):
        Client(server.url)


def test_a_proxy_that_packs_its_headers_is_left_to_grpc():
    def proxy(peer):
        peer.greet()
        peer.say(http2.HEADERS, LAST, peer.request(), b"\x88\x40\x88xxxxxxxx\x010")
        answering(peer)

    with Scripted(proxy) as server, pytest.raises(Unusual):
        Client(server.url)


@pytest.mark.parametrize("url", ["grpcs://host:1", "unix:/tmp/x", "dns:///host:1", "host", "host:http", "::1:80"])
def test_addresses_that_are_left_to_grpc(url):
    with pytest.raises(Unusual):
        place_of(url, (), 1.0)


def test_proxies_are_left_to_grpc_but_not_those_of_loopback(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    with pytest.raises(Unusual):
        place_of("triton:8001", (), 1.0)
    assert place_of("[::1]:8001", (), 1.0).host == "::1"
