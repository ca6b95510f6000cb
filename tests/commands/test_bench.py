import json
import socket
import sys
import time
import types

import pytest

from repogen.commands.bench import bench, bench_models
from repogen.console import Console
from repogen.errors import Refused, RepogenError, ServerError
from repogen.load.payload import from_config
from tests.fake_triton import FakeModel, FakeTriton, Refusal, echo, identity_config

MODELS = tuple(from_config(identity_config(name), {}) for name in ("ocr", "vad"))


def slowly(request):
    time.sleep(0.005)
    return echo(request)


@pytest.fixture
def fake():
    with FakeTriton(*(FakeModel(identity_config(model.name), slowly) for model in MODELS)) as server:
        yield server


@pytest.fixture
def desired(monkeypatch):
    def chosen(manifest, only, *, jobs):
        return manifest.parent, tuple(model for model in MODELS if model.name in only or not only)

    module = types.ModuleType("repogen.desired")
    module.chosen = chosen
    monkeypatch.setitem(sys.modules, "repogen.desired", module)


def options(fake, **changes):
    plain = {"only": (), "users": 2, "duration": 1, "batch": 2, "seed": 0, "jobs": 1, "console": Console(quiet=True)}
    return {"url": fake.url, **plain, **changes}


def test_every_model_in_turn(fake, desired, tmp_path, capsys):
    assert bench(tmp_path / "repogen.yaml", **options(fake)) == 0
    text = capsys.readouterr().out
    assert "P99" in text
    assert "2x" in text
    assert "vad: no batches formed: dynamic_batching is off" in text


def test_what_clients_and_server_count_is_the_same(fake):
    results = bench_models(MODELS, url=fake.url, users=2, duration=1, batch=2, seed=0)
    assert [(r.model, r.users, r.batch) for r in results] == [("ocr", 2, 2), ("vad", 2, 2)]
    for result in results:
        assert result.served.requests == result.summary.requests > 50
        assert result.served.mean_batch == 2
        assert result.served.queue == pytest.approx(0.1)


def test_one_model_as_json(fake, desired, tmp_path, capsys):
    bench(tmp_path / "repogen.yaml", **options(fake, only=("vad",), console=Console(as_json=True, quiet=True)))
    [result] = json.loads(capsys.readouterr().out)["results"]
    assert (result["model"], result["summary"]["errors"]) == ("vad", 0)
    assert result["served"]["batches"] == [[2, result["served"]["executions"]]]


def test_a_batch_that_is_too_large_is_found_before_anything_is_sent(fake):
    with pytest.raises(RepogenError, match="ocr takes no requests of batch 9"):
        bench_models(MODELS, url=fake.url, users=1, duration=1, batch=9, seed=0)
    assert fake.calls == []


def test_a_model_that_refuses_everything(fake):
    def refuse(_):
        raise Refusal("INTERNAL", "plan is broken")

    fake.models["ocr"].infer = refuse
    with pytest.raises(Refused, match="plan is broken") as caught:
        bench_models(MODELS, url=fake.url, users=1, duration=1, batch=1, seed=0)
    assert caught.value.exit_code == 1


def test_no_server():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ServerError, match=f"no Triton answers at {url}") as caught:
            bench_models(MODELS, url=url, users=1, duration=1, batch=1, seed=0)
    assert caught.value.exit_code == 4
