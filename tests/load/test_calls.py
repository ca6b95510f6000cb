"""What every way of sending must do, against the same servers."""

import queue
import subprocess
import threading
import time
from functools import partial

import grpc
import numpy as np
import pytest

from repogen import access, triton
from repogen.load import calls, wire
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config
from tests.load.drive import wait_for


def over_wire(url, deadline, answered):
    return wire.WireCalls(wire.place_of(url, access.from_environment().headers, deadline), answered)


def over_grpc(kind, url, deadline, answered):
    return kind(triton.bare_channel(url), access.from_environment().headers or None, deadline, answered)


GRPC = {"queue": partial(over_grpc, calls.QueueCalls), "futures": partial(over_grpc, calls.FutureCalls)}
every_way = pytest.mark.parametrize("way", [over_wire, *GRPC.values()], ids=["wire", *GRPC])


class Client:
    """Sends, and keeps what came back: code, size and words by number."""

    def __init__(self, way, url, deadline=5.0):
        self.got = {}
        self.times = {}
        self.fresh = queue.SimpleQueue()
        self.calls = way(url, deadline, self.answered)

    def answered(self, number, first, done, code, size, words):
        assert number not in self.got, "answered twice"
        self.got[number] = (code, size, words)
        self.times[number] = (first, done)
        self.fresh.put(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.close()

    def ask(self, *requests, seconds=10):
        for number, request in enumerate(requests):
            self.calls.send(number, request)
        for _ in requests:
            self.fresh.get(timeout=seconds)
        return [self.got[number] for number in range(len(requests))]


def request(values=4, fill=1.0):
    return triton.encode("echo", {"x": np.full((1, values), fill, np.float32)})


@pytest.fixture
def fake():
    with FakeTriton(FakeModel(identity_config("echo", dims=(-1,)))) as server:
        yield server


@every_way
def test_every_request_is_answered_once_and_is_its_own(fake, way):
    requests = [request(size, fill=size) for size in range(1, 200)]
    with Client(way, fake.url) as client:
        begun = time.perf_counter_ns()
        answers = client.ask(*requests)
        ended = time.perf_counter_ns()
    assert [(code, words) for code, _, words in answers] == [(0, "")] * 199
    assert [size for _, size, _ in answers] == [len(echo_of(one)) for one in requests]
    assert all(begun < first <= done < ended for first, done in client.times.values())
    asked = {r.raw_input_contents[0] for name, r in fake.calls if name == "ModelInfer"}
    assert asked == {np.full((1, size), size, np.float32).tobytes() for size in range(1, 200)}


def echo_of(sent):
    from tritonclient.grpc import service_pb2

    return echo(service_pb2.ModelInferRequest.FromString(sent)).SerializeToString()


@every_way
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("INVALID_ARGUMENT", 3, "unexpected shape for input 'x'"),
        ("RESOURCE_EXHAUSTED", 8, "100 % of it, ünd\nmore"),
        ("INTERNAL", 13, "x" * 3000),
        ("UNAVAILABLE", 14, "not ready"),
    ],
)
def test_a_refusal_in_its_own_words(fake, way, status, code, words):
    def refuse(_):
        raise Refusal(status, words)

    fake.models["echo"].infer = refuse
    with Client(way, fake.url) as client:
        assert client.ask(request(), request()) == [(code, 0, words)] * 2


@every_way
def test_a_deadline(fake, way):
    free = threading.Event()
    fake.models["echo"].infer = lambda asked: free.wait(10) and echo(asked)
    begun = time.perf_counter_ns()
    with Client(way, fake.url, deadline=0.5) as client:
        [(code, size, words)] = client.ask(request())
        fake.models["echo"].infer = echo
        free.set()
        assert (code, size, words) == (4, 0, "Deadline Exceeded")
        assert client.times[0][1] - begun >= 500_000_000
        client.calls.send(1, request())
        client.fresh.get(timeout=5)
        assert client.got[1][0] == 0  # the connection is as good as before


@every_way
def test_a_killed_server(fake, way):
    free = threading.Event()
    fake.models["echo"].infer = lambda asked: free.wait(10) and echo(asked)
    with Client(way, fake.url) as client:
        for number in range(3):
            client.calls.send(number, request())
        wait_for(lambda: sum(name == "ModelInfer" for name, _ in fake.calls) == 3)
        fake.kill()
        free.set()
        for _ in range(3):
            client.fresh.get(timeout=5)
        assert {code for code, _, _ in client.got.values()} <= {1, 14}  # cancelled by the server, or lost
        client.calls.send(3, request())
        client.fresh.get(timeout=7)
        assert client.got[3][0] == 14


@every_way
def test_five_megabytes_each_way(fake, way):
    large = request(1_310_720)
    with Client(way, fake.url, deadline=20) as client:
        answers = client.ask(*[large] * 4, request(), seconds=30)
    assert [(code, size > 5_000_000) for code, size, _ in answers] == [(0, True)] * 4 + [(0, False)]
    asked = [len(r.raw_input_contents[0]) for name, r in fake.calls if name == "ModelInfer"]
    assert sorted(asked) == [16, *[5_242_880] * 4]


@every_way
def test_headers_of_the_environment(fake, way, monkeypatch):
    monkeypatch.setenv("REPOGEN_HEADERS", "Triton-Key: open sesame\nother: b")
    seen = []
    fake.metadata = lambda pairs: seen.append({pair.key: pair.value for pair in pairs})
    with Client(way, fake.url) as client:
        assert [code for code, _, _ in client.ask(request(), request())] == [0, 0]
    assert [(told.get("triton-key"), told.get("other")) for told in seen[-2:]] == [("open sesame", "b")] * 2


@every_way
def test_closing_answers_what_is_under_way(fake, way):
    free = threading.Event()
    fake.models["echo"].infer = lambda asked: free.wait(2) and echo(asked)
    client = Client(way, fake.url, deadline=1.0)
    client.calls.send(0, request())
    wait_for(lambda: any(name == "ModelInfer" for name, _ in fake.calls))
    client.calls.close()
    client.fresh.get(timeout=3)
    free.set()
    assert client.got[0][0] in (1, 4)  # cancelled; or waited for, as long as its time lasts


@every_way
def test_many_threads_send_at_once(fake, way):
    with Client(way, fake.url, deadline=20) as client:

        def some(start):
            for number in range(start, start + 250):
                client.calls.send(number, request())

        threads = [threading.Thread(target=some, args=(start,)) for start in range(0, 1000, 250)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(1000):
            client.fresh.get(timeout=20)
    assert set(client.got.values()) == {(0, client.got[0][1], "")}


@pytest.mark.parametrize("way", GRPC.values(), ids=GRPC)
def test_tls(way, tmp_path, monkeypatch):
    with tls(tmp_path, monkeypatch) as fake, Client(way, fake.url) as client:
        assert client.ask(request())[0][0] == 0


def test_where_one_way_is_shut_the_next_is_taken(fake, monkeypatch):
    def shut(error):
        def no(*_):
            raise error

        return no

    def opened():
        answers = queue.SimpleQueue()
        one = calls.open_calls(fake.url, deadline=2.0, stream=False, answered=lambda *answer: answers.put(answer[3:]))
        one.send(0, request())
        assert answers.get(timeout=5)[0] == 0
        one.send(0, b"")  # an empty request names no model
        assert answers.get(timeout=5)[0] != 0
        one.close()
        return type(one).__name__

    assert opened() == "WireCalls"
    for error in (wire.Unusual(), wire.Broken(), OSError()):
        monkeypatch.setattr(wire, "WireCalls", shut(error))
        assert opened() == "QueueCalls"
    monkeypatch.setattr(calls, "QueueCalls", shut(AttributeError("integrated_call")))
    assert opened() == "FutureCalls"


def test_tls_and_streams_are_left_to_grpc(fake, tmp_path, monkeypatch):
    ways = {}
    for stream in (False, True):
        opened = calls.open_calls(fake.url, deadline=1.0, stream=stream, answered=lambda *_: None)
        ways[stream] = type(opened)
        opened.close()
    assert ways == {False: wire.WireCalls, True: calls.StreamCalls}
    with tls(tmp_path, monkeypatch) as secure:
        opened = calls.open_calls(secure.url, deadline=1.0, stream=False, answered=lambda *_: None)
        assert type(opened) is calls.QueueCalls
        opened.close()


def tls(folder, monkeypatch):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem", "-out", "c.pem",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("REPOGEN_TLS_CA", str(folder / "c.pem"))
    credentials = grpc.ssl_server_credentials([((folder / "k.pem").read_bytes(), (folder / "c.pem").read_bytes())])
    return FakeTriton(FakeModel(identity_config("echo")), credentials=credentials)
