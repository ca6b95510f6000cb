"""The whole of it on the real server: a model that sleeps, tuned, interrupted, killed, continued."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from repogen import server
from repogen.cli import main
from repogen.errors import ManifestError, RepogenError
from repogen.manifest import load_manifest
from repogen.triton import Client
from repogen.tune.journal import Evidence, Journal
from repogen.tune.setting import Setting
from tests.serverkit import needs_server, wait_until
from tests.tune.fake_server import closed_runs, service

MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        time.sleep(0.002 + 0.00025 * sum(len(array) for array in arrays))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array.copy())]) for array in arrays]
"""
MANIFEST = """\
triton: "26.08"
repository: models
models:
  sleeper:                     # sleeps
    source: sleeper.py
    backend: python
    max_batch_size: 8
    instances: [{kind: cpu}]
    inputs: {x: {dtype: FP32, dims: [4]}}
    outputs: {y: {dtype: FP32, dims: [4]}}
    dynamic_batching: {max_queue_delay: 20ms}   # guessed
    tune: {slo: {p99: 8s}, rate: 400/s, instances: 1}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sleeper.py").write_text(MODEL)
    (tmp_path / "repogen.yaml").write_text(MANIFEST)
    return tmp_path


def command(project, url, *more):
    return [sys.executable, "-m", "repogen", "tune", "-f", str(project / "repogen.yaml"), "--url", url, *more]


@pytest.fixture
def triton(project, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    with server.start(project / "models") as running:
        yield running


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        pytest.param("{}", "needs slo", id="nothing asked"),
        pytest.param("{slo: {p99: 20ms}, rate: fast}", "rate", id="rate"),
        pytest.param("{slo: {p98: 20ms}}", "p98", id="percentile"),
        pytest.param("{slo: {p99: 20ms}, instances: {min: 3, max: 2}}", "min 3 is above max 2", id="instances"),
        pytest.param("{slo: {p99: 20}}", "not a duration", id="no unit"),
    ],
)
def test_a_wrong_tune_is_named(project, tune, words):
    path = project / "repogen.yaml"
    path.write_text(MANIFEST.replace("{slo: {p99: 8s}, rate: 400/s, instances: 1}", tune))
    with pytest.raises(ManifestError, match=words):
        load_manifest(path)


@pytest.mark.parametrize("text", ["soon", "0 runs", "", "5"])
def test_a_wrong_budget_is_named(text):
    from repogen.commands.tune import parse_budget

    with pytest.raises(RepogenError, match="budget|allows nothing"):
        parse_budget(text)


def test_budgets():
    from repogen.commands.tune import parse_budget

    both = parse_budget("6 runs, 5m")
    assert (both.runs, both.seconds) == (6, 300)
    assert parse_budget("5m").runs > 100


def test_without_a_calibration_a_dry_run_says_what_to_do(project, invoke):
    result = invoke("tune", "-f", project / "repogen.yaml", "--dry-run", code=1)
    assert "no saved calibration of sleeper" in result.stderr


def test_a_dry_run_predicts_from_a_saved_calibration_and_recommends_nothing(project, invoke):
    path = project / "repogen.yaml"
    path.write_text(MANIFEST.replace("{p99: 8s}, rate: 400/s", "{p99: 20ms}, rate: 900/s"))
    journal = Journal(project / ".repogen" / "models" / "tune" / "sleeper.jsonl")
    evidence = Evidence("sleeper", "python", "CPU", "b" * 64, "2.51.0")
    journal.add("served", evidence=evidence, setting=Setting(8, 1, 20_000))
    journal.add("calibration", evidence=evidence, instances=1, runs=closed_runs(service(), 8))
    result = invoke("tune", "-f", path, "--dry-run")
    assert "predicted from a calibration, not measured" in result.stdout
    assert "delay 20ms, 1 instance, batches up to 8" in result.stdout
    told = json.loads(invoke("tune", "-f", path, "--dry-run", "--json").stdout)["tuned"][0]
    assert told["choice"] is None
    assert told["outlook"][0]["latency"] < 0.020


def test_a_second_run_beside_one_is_kept_out(project, invoke):
    from repogen.lock import writer

    invoke("sync", "-f", project / "repogen.yaml")
    with writer(project / ".repogen" / "models"):
        assert "another run writes" in invoke("tune", "-f", project / "repogen.yaml", "--url", "x:1", code=5).stderr


def test_a_model_without_tune_is_named(project, invoke):
    path = project / "repogen.yaml"
    path.write_text(MANIFEST.rpartition("    tune:")[0])
    assert "has no `tune:`" in invoke("tune", "-f", path, "-m", "sleeper", code=2).stderr
    assert "no model has a `tune:`" in invoke("tune", "-f", path, code=2).stderr


@pytest.mark.slow
class TestLive:
    pytestmark = needs_server

    def test_tunes_applies_and_leaves_the_server_as_it_was(self, project, triton, invoke):
        with Client(triton.grpc) as client:
            before = client.config("sleeper")
            html = project / "tuned.html"
            arguments = [
                "tune",
                "-f",
                project / "repogen.yaml",
                "--url",
                triton.grpc,
                "--json",
                "--html",
                html,
                "--apply",
            ]
            result = CliRunner().invoke(main, [*map(str, arguments), "--budget", "4 runs"])
            assert client.config("sleeper") == before
        told = json.loads(result.stdout)["tuned"][0]
        if told["choice"] is None:
            pytest.skip(f"this machine is too busy: {told['verdict']}")
        assert (result.exit_code, told["held"]) == (0, True)
        assert told["measurements"] <= 4
        assert told["evidence"]["backend"] == "python"
        assert html.read_text().startswith("<!doctype html>")
        entry = load_manifest(project / "repogen.yaml").models["sleeper"]
        assert entry.dynamic_batching.max_queue_delay == told["choice"]["setting"]["delay"]
        assert "# sleeps" in (project / "repogen.yaml").read_text()
        dry = json.loads(invoke("tune", "-f", project / "repogen.yaml", "--dry-run", "--json").stdout)["tuned"][0]
        assert dry["choice"] == told["choice"]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_the_config_comes_back_and_a_second_run_goes_on(self, project, triton, number):
        journal = Journal(project / ".repogen" / "models" / "tune" / "sleeper.jsonl")
        with Client(triton.grpc) as client:
            before = client.config("sleeper")
            process = subprocess.Popen(
                command(project, triton.grpc), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            wait_until(lambda: any(entry["kind"] == "calibration" for entry in journal.entries()), 120)
            wait_until(lambda: client.config("sleeper") != before, 60)
            time.sleep(0.3)
            process.send_signal(number)
            process.wait(60)
            if number == signal.SIGINT:
                assert process.returncode == 130
                assert client.config("sleeper") == before
            else:
                assert journal.borrowed() is not None
            again = subprocess.run(
                command(project, triton.grpc, "--budget", "2 runs"),
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
            assert again.returncode in (0, 1), again.stderr  # 1: the machine was too busy for a run to be believed
            assert "calibrating" not in again.stderr
            assert client.config("sleeper") == before
        assert journal.borrowed() is None
        assert os.environ["REPOGEN_CACHE"]
