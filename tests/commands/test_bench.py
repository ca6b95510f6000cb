import csv
import json
import sys
import time
import types

import pytest

from repogen.commands.bench import bench, bench_models
from repogen.console import Console
from repogen.errors import RepogenError
from repogen.load.payload import from_config
from repogen.load.runner import Load
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
    plain = {"only": (), "users": 2, "duration": 1.0, "warm_up": 0.2, "batch": "2", "jobs": 1, "deadline": 5.0}
    return {"url": fake.url, **plain, "console": Console(quiet=True), **changes}


def test_every_model_in_turn_and_every_file(fake, desired, tmp_path, capsys, invoke):
    files = {"samples": tmp_path / "samples", "report": tmp_path / "r.html", "csv": tmp_path / "r.csv"}
    assert bench(tmp_path / "repogen.yaml", **options(fake, **files)) == 0
    text = capsys.readouterr().out
    assert "P99" in text
    assert "2x" in text
    assert "vad: no batches formed: dynamic_batching is off" in text
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert [(row["model"], row["arrivals"], row["users"], row["batch"]) for row in rows] == [
        ("ocr", "closed", "2", "2"), ("vad", "closed", "2", "2"),
    ]  # fmt: skip
    assert "Load test of ocr, vad" in files["report"].read_text()
    again = json.loads(invoke("report", files["samples"], "--json", "--html", tmp_path / "again.html").stdout)
    assert [one["model"] for one in again["results"]] == ["ocr", "vad"]
    assert str(again["results"][0]["summary"]["requests"]) == rows[0]["requests"]
    assert (tmp_path / "again.html").read_text().count("<h2>") == 3


def test_one_model_at_two_rates_as_json(fake, desired, tmp_path, capsys):
    console = Console(as_json=True, quiet=True)
    bench(tmp_path / "repogen.yaml", **options(fake, only=("vad",), rates=(50.0, 100.0), console=console))
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["load"] for one in results] == ["50/s poisson", "100/s poisson"]
    assert all(one["summary"]["errors"] == 0 for one in results)
    did = results[0]["served"]
    assert did["batches"] == [[2, did["executions"]]]


def test_a_void_run_is_exit_code_1_and_its_files_are_written(fake, desired, tmp_path, capsys):
    numbers = iter(range(10**6))

    def failing(request):
        if next(numbers) % 10 == 9:
            raise Refusal("RESOURCE_EXHAUSTED", "out of memory")
        return slowly(request)

    fake.models["vad"].infer = failing
    made = bench(tmp_path / "repogen.yaml", **options(fake, only=("vad",), csv=tmp_path / "r.csv"))
    assert "void: " in capsys.readouterr().out
    assert made == 1
    assert "out of memory" in (tmp_path / "r.csv").read_text()


def test_a_batch_that_is_too_large_is_found_before_anything_is_sent(fake):
    with pytest.raises(RepogenError, match="ocr takes no requests of batch 9"):
        bench_models(MODELS, [Load(batch="9")], url=fake.url)
    assert fake.calls == []


def test_a_report_of_nothing(tmp_path, invoke):
    assert "has no samples" in invoke("report", tmp_path, code=2).stderr
    (tmp_path / "x.npz").write_bytes(b"PK")
    assert "not a file of samples" in invoke("report", tmp_path / "x.npz", code=2).stderr
