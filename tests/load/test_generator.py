"""The generator process against scripted servers with known latencies."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from repogen.errors import Refused, RepogenError, ServerError
from repogen.load import samples
from repogen.load.intervals import percentile
from repogen.load.metrics import result, summarise
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config
from tests.load.drive import generate, generator, oracle, truth, wait_for
from tests.load.oracle import latencies_ms


def slowly(request):
    time.sleep(0.01)
    return echo(request)


@pytest.fixture
def fake():
    with FakeTriton(FakeModel(identity_config("echo"), slowly)) as server:
        yield server


def test_a_closed_loop_keeps_its_users_busy(fake, tmp_path):
    part = generate(fake.url, tmp_path, users=4, duration=1.5)
    assert 200 < part.measured.sum() <= 600
    assert (part.done - part.sent >= 10_000_000).all()
    events = sorted([(t, 1) for t in part.sent] + [(t, -1) for t in part.done])
    assert max(np.cumsum([change for _, change in events])) == 4
    observed = part.server["statistics"]
    assert observed["requests"] == len(part.sent)  # no warm-up: exactly those
    assert {r.raw_input_contents[0] for name, r in fake.calls if name == "ModelInfer"} == {
        np.full((1, 4), number, dtype=np.float32).tobytes() for number in range(3)
    }


def test_an_open_loop_keeps_its_schedule_whatever_the_server_does(fake, tmp_path):
    part = generate(fake.url, tmp_path, arrivals="constant", rate=200.0, duration=2.0, warm_up=0.5)
    counted = part.measured
    assert counted.sum() in (399, 400)
    assert np.diff(part.intended) == pytest.approx(np.full(len(part.intended) - 1, 5_000_000), abs=2)
    assert (part.sent >= part.intended).all()
    assert (part.done - part.sent >= 10_000_000).all()
    assert abs(part.server["statistics"]["requests"] - 400) < 30  # those under way when it began


@pytest.mark.slow
def test_a_stop_of_two_seconds_is_in_the_latencies(tmp_path):
    """200 of 1,000 requests were due while the server stood still: each waited for the rest of the two seconds."""
    with (
        oracle(1, 2, 100) as (server, url),
        generator(url, tmp_path, arrivals="constant", rate=100.0, duration=10.0) as child,
    ):
        child.say("users 1")
        time.sleep(4)
        server.send_signal(signal.SIGSTOP)
        time.sleep(2)
        server.send_signal(signal.SIGCONT)
        part = child.finish(30)
    latency = (part.done - part.intended) / 1e9
    delayed = latency[latency > 0.1]
    assert 180 <= len(delayed) <= 230
    assert 1.8 < summarise([part]).p99 / 1e3 < 2.3
    assert np.sort(delayed)[::-1][:100] == pytest.approx(delayed.max() - np.arange(100) * 0.01, abs=0.1)


@pytest.mark.slow
def test_a_second_is_told_to_the_millisecond(tmp_path):
    """Latencies of 1,041 to 1,049 ms in known steps: two digits would make 1,000 of all of them."""
    with oracle(1041, 1049, 400) as (server, url):
        part = generate(url, tmp_path, arrivals="constant", rate=400.0, duration=3.0, warm_up=0.0, deadline=10.0)
        known = truth(server)
    seen = summarise([part])
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert getattr(seen, name) == pytest.approx(percentile(known, percent) / 1e6, rel=0.01)
    assert seen.p99 >= 1048.9


def test_known_latencies_below_a_millisecond_to_ten_microseconds(tmp_path):
    """0.2 to 0.9 ms in 10,000 known steps: what a generator records is what it gives back, to P99.9."""
    from repogen.load.recorder import Recorder

    known = np.array(latencies_ms(0.2, 0.9, 10_000)) * 1e6
    recorder = Recorder(tmp_path / "x.rows", samples.Conditions(begin=1, end=2**62), capacity=1 << 14)
    for latency in known.astype(np.int64).tolist():
        number = recorder.claim()
        due = 1_000_000 * (number + 1)
        recorder.intended[number], recorder.sent[number] = due, due + 500
        recorder.answer(number, due + latency, due + latency, 0, 8, "")
        if number % 777 == 0:
            recorder.flush()
    columns = recorder.finish(1)
    told = samples.Conditions(begin=1, end=2**62, ended="time")
    samples.save(tmp_path / "y.npz", samples.Samples(*columns, conditions=told))
    for path in ("x.rows", "y.npz"):
        seen = summarise([samples.load(tmp_path / path)])
        for name, percent in (("p50", "50"), ("p90", "90"), ("p99", "99"), ("p999", "99.9")):
            wanted = percentile(np.sort(known), percent) / 1e6
            assert getattr(seen, name) == pytest.approx(wanted, abs=0.00001)


def test_a_server_below_a_millisecond_is_not_rounded(tmp_path):
    """Over a real connection: never less than the server took, and distinct where it was distinct."""
    with oracle(0.2, 0.9, 500) as (server, url):
        part = generate(url, tmp_path, arrivals="constant", rate=250.0, duration=4.0)
        known = truth(server)
    taken = np.sort(part.done - part.sent)
    assert len(np.unique(taken)) > 900
    for percent in (50, 90, 99):
        assert percentile(taken, percent) >= percentile(known, percent)


def test_a_stream_counts_first_and_last_answer(fake, tmp_path):
    model = fake.models["echo"]
    model.config.model_transaction_policy.decoupled = True

    def three(request):
        for _ in range(3):
            time.sleep(0.02)
            yield echo(request)

    model.stream = three
    part = generate(fake.url, tmp_path, users=2)
    assert part.conditions.stream
    assert (part.status == 0).all()
    assert (part.first - part.sent >= 20_000_000).all()
    assert (part.done - part.sent >= 60_000_000).all()
    assert np.median(part.done - part.first) > 30_000_000
    assert result([part]).summary.first_p50 >= 20


def test_the_words_of_a_stream_that_fails(fake, tmp_path):
    model = fake.models["echo"]
    model.config.model_transaction_policy.decoupled = True
    numbers = iter(range(10**6))

    def later(request):
        if next(numbers):
            raise Refusal("INTERNAL", "no more tokens")
        return [echo(request)]

    model.stream = later
    part = generate(fake.url, tmp_path, users=1)
    assert set(part.failures) == {"no more tokens"}


def test_failures_have_their_words_and_are_not_hammered(fake, tmp_path):
    numbers = iter(range(10**6))

    def full(request):
        if next(numbers) == 0:
            return echo(request)
        raise Refusal("RESOURCE_EXHAUSTED", "out of memory for echo")

    fake.models["echo"].infer = full
    part = generate(fake.url, tmp_path, users=2)
    assert set(part.failures) == {"out of memory for echo"}
    assert (part.status == 8).all()
    assert len(part.sent) <= 2 * (1 / 0.05 + 3)


def test_a_server_that_never_answers_ends_within_the_deadline(fake, tmp_path):
    free = threading.Event()
    numbers = iter(range(10**6))

    def hang(request):
        if next(numbers) > 3:
            free.wait(20)
        return echo(request)

    fake.models["echo"].infer = hang
    begun = time.monotonic()
    part = generate(fake.url, tmp_path, arrivals="poisson", rate=50.0, deadline=0.5)
    free.set()
    assert time.monotonic() - begun < 1 + 0.5 + 8
    assert (part.status[5:] == 4).all()


def test_requests_beyond_the_most_that_can_wait_fail_at_once(fake, tmp_path, monkeypatch):
    from repogen.load import dispatch
    from repogen.load.arrivals import Block
    from repogen.load.recorder import Recorder
    from tests.load.drive import spec

    monkeypatch.setattr(dispatch, "_MOST", 3)
    recorder = Recorder(tmp_path / "x.rows", samples.Conditions(), capacity=64)
    loop = dispatch.OpenLoop(spec(fake.url, tmp_path, arrivals="constant", rate=10.0), [b""], [1], recorder)
    due = np.arange(5, dtype=np.int64)
    loop._blocks = iter([Block(due, end=9), Block(due, end=9)])
    sent = []
    loop._run(lambda number, _: sent.append(number), time.perf_counter_ns())
    assert sent == [0, 1, 2, 3, 4]
    assert recorder.failures == {"not sent: 3 requests were under way": 5}
    recorder.finish(1)


def test_a_signal_ends_it_and_keeps_everything(fake, tmp_path):
    with generator(fake.url, tmp_path, users=2, duration=60.0) as child:
        wait_for(lambda: child.began)
        time.sleep(0.5)
        child.process.send_signal(signal.SIGINT)
        part = child.finish(10)
    assert part.conditions.ended == "interrupted"
    assert 20 < len(part.sent) <= 105
    assert (part.status == 0).all()
    assert "the run was interrupted" in str(result([part]).verdict)


def test_a_kill_loses_a_quarter_of_a_second(fake, tmp_path):
    with generator(fake.url, tmp_path, users=2, duration=60.0) as child:
        wait_for(lambda: child.began)
        time.sleep(1.5)
        child.process.kill()
        part = child.finish(10)
        answered = sum(name == "ModelInfer" for name, _ in fake.calls)
    assert part.conditions.ended == "killed"
    assert part.conditions.begin == child.began
    assert answered * 0.5 < len(part.sent) <= answered
    [again] = samples.load_all(tmp_path)
    assert again.done.tolist() == part.done.tolist()
    assert "the generator was killed" in str(result([again]).verdict)


def test_a_parent_that_is_gone_ends_it(fake, tmp_path):
    with generator(fake.url, tmp_path, users=1, duration=60.0) as child:
        wait_for(lambda: child.began)
        child.process.stdin.close()
        child.process.wait(10)
    assert samples.load_all(tmp_path)[0].conditions.ended == "interrupted"


def test_users_and_rates_may_change(fake, tmp_path):
    with generator(fake.url, tmp_path, users=0, duration=60.0) as child:
        time.sleep(0.3)
        assert not child.began
        child.say("users 1")
        wait_for(lambda: child.began)
        time.sleep(0.7)
        child.say("users 6")
        time.sleep(0.7)
        child.say("stop")
        part = child.finish(10)
    assert part.conditions.ended == "stopped"
    half = part.sent[0] + (part.sent[-1] - part.sent[0]) // 2
    assert (part.sent > half).sum() > 2 * (part.sent < half).sum()


def test_what_is_wrong_with_every_request_is_said_before(fake, tmp_path):
    def refuse(_):
        raise Refusal("INVALID_ARGUMENT", "unexpected shape for input 'x'")

    fake.models["echo"].infer = refuse
    with pytest.raises(Refused, match="echo: the first request failed: unexpected shape"):
        generate(fake.url, tmp_path)


def test_nobody_answers(tmp_path):
    with pytest.raises(ServerError, match="no Triton answers at 127.0.0.1:9"):
        generate("127.0.0.1:9", tmp_path)


def test_requests_from_the_servers_own_config(fake, tmp_path):
    fake.models["echo"].config.input[0].dims[:] = [-1, -1]
    part = generate(
        fake.url, tmp_path, payloads="", batch="choice(1, 4)", shapes=("x.1: uniform(2, 5)", "x.2: 7"), users=1
    )
    asked = {tuple(r.inputs[0].shape) for name, r in fake.calls if name == "ModelInfer"}
    assert {(shape[0], shape[2]) for shape in asked} == {(1, 7), (4, 7)}
    assert {shape[1] for shape in asked} == {2, 3, 4, 5}
    assert set(part.batch.tolist()) == {1, 4}
    assert part.conditions.shapes == 4


def test_a_trace_chooses_its_payloads(fake, tmp_path):
    (tmp_path / "t.csv").write_text("0,2\n0.1,2\n0.3,0\n")
    generate(fake.url, tmp_path, arrivals=f"trace:{tmp_path}/t.csv", duration=0.6)
    asked = [r.raw_input_contents[0] for name, r in fake.calls if name == "ModelInfer"]
    assert [np.frombuffer(raw, np.float32)[0] for raw in asked] == [0, 2, 2, 0]  # the first is the trial


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_headers_are_sent_with_every_request(fake, monkeypatch, stream):
    from repogen.load import calls

    monkeypatch.setenv("REPOGEN_HEADERS", "Triton-Key: open sesame")
    seen = []
    fake.metadata = lambda pairs: seen.append(dict(pairs).get("triton-key"))
    assert calls.try_one(fake.url, echo_request(), deadline=2.0, stream=stream) == ""
    assert seen
    assert seen[-1] == "open sesame"


def echo_request():
    from repogen.triton import encode

    return encode("echo", {"x": np.zeros((1, 4), dtype=np.float32)})


def test_a_spec_that_is_none(tmp_path):
    from repogen.load.spec import read_spec

    path = tmp_path / "s.json"
    for content, words in (("{", "no spec"), ('{"url": "x"}', "no spec"), ('{"urll": "x"}', "unknown key 'urll'")):
        path.write_text(content)
        with pytest.raises(RepogenError, match=words):
            read_spec(str(path))


def test_nothing_of_gevent_is_in_the_generator():
    code = "import sys, repogen.load.generator, repogen.load.calls; print('gevent' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
