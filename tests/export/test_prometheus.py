"""The real Prometheus and Alertmanager on the real embedded Triton: data for every query, alerts that come and go."""

import json
import os
import re
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest

from repogen import server
from repogen.desired import models_of
from repogen.embedded import embed
from repogen.export.monitoring import files
from repogen.export.settings import Settings
from repogen.export.watched import Timing
from repogen.manifest import load_manifest
from repogen.publish import write_model
from repogen.render import render
from repogen.triton import Client
from tests.export.watchkit import Watching, asking, await_, get, needs_tools, watching
from tests.serverkit import needs_server, onnx_file

pytestmark = [*needs_server, needs_tools, pytest.mark.slow, pytest.mark.xdist_group("prometheus")]

WIDTH = 512
X = np.zeros((1, WIDTH), "f4")
MANIFEST = """\
triton: "26.08"
repository: served/models
deploy: {queue_target: 500us}
defaults: {instances: [{kind: cpu}]}
models:
  calm:
    source: heavy.onnx
    max_batch_size: 4
    dynamic_batching: {max_queue_delay: 1ms}
    tune: {slo: {p99: 5s}}
  busy:
    source: heavy.onnx
    max_batch_size: 4
    dynamic_batching: {}
  hasty:
    source: heavy.onnx
    max_batch_size: 4
    dynamic_batching: {queue_policy: {timeout: 1ms}}
  tight:
    source: heavy.onnx
    max_batch_size: 4
    dynamic_batching: {queue_policy: {max_queue_size: 2}}
"""


@dataclass(frozen=True)
class World:
    files: dict[str, str]
    triton: server.Embedded
    watching: Watching


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Everything runs, looked at every second, and each model has a little to do."""
    folder = tmp_path_factory.mktemp("watched")
    layers = 64
    names = ["x", *(f"h{number}" for number in range(layers - 1)), "y"]
    onnx_file(
        folder / "heavy.onnx",
        [("MatMul", [names[i], "w"], [names[i + 1]], {}) for i in range(layers)],
        [("x", "FLOAT", ["N", WIDTH])],
        [("y", "FLOAT", ["N", WIDTH])],
        {"w": np.eye(WIDTH, dtype="f4")},
    )
    (folder / "repogen.yaml").write_text(MANIFEST)
    manifest = load_manifest(folder / "repogen.yaml")
    models = models_of(manifest)
    made = files(models, Settings(manifest, folder), Timing(scrape=1, soon=3, sustained=6, long=12, start=3))
    (folder / "stand-in").mkdir()
    for model in models:
        stand_in = embed(model, cpus=os.cpu_count() or 1)
        write_model(stand_in, render(stand_in), folder / "stand-in" / model.name)
    with ExitStack() as stack:
        flags = ["--metrics-config=summary_latencies=true"]
        triton = stack.enter_context(server.start(folder / "stand-in", extra_args=flags))
        for model in models:
            stack.enter_context(asking(triton.grpc, model.name, {"x": X}, users=1, pause=0.1))
        places = {"triton:8002": triton.metrics, "triton:8000": triton.http}
        found = stack.enter_context(watching(made, places, folder / "monitoring"))
        await_(
            lambda: not any(world_is_down(found)) and found.query("triton:batch_size"), 30, lambda: found.query("up")
        )
        yield World(made, triton, found)


def world_is_down(found):
    up = found.query("up")
    return [one["metric"] for one in up if float(one["value"][1]) == 0] if len(up) >= 8 else ["targets are missing"]


def queries(world):
    (text,) = (text for name, text in world.files.items() if name.startswith("grafana/dashboards/"))
    board = json.loads(text)
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def records(world):
    return sorted(set(re.findall(r"- record: (\S+)", world.files["prometheus/rules.yml"])))


def test_every_rule_and_every_query_of_the_dashboard_has_data(world):
    asked = {*queries(world), *records(world)}
    assert len(asked) > 40
    empty = lambda: sorted(expr for expr in asked if not world.watching.query(expr))  # noqa: E731
    await_(lambda: not empty(), 15, empty)


def test_every_rule_is_healthy(world):
    found = get(f"http://{world.watching.prometheus}/api/v1/rules")["data"]["groups"]
    rules = [rule for group in found for rule in group["rules"]]
    assert len(rules) > 30
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_every_metric_of_triton_that_is_named_exists(world):
    with urllib.request.urlopen(f"http://{world.triton.metrics}/metrics") as answer:
        real = set(re.findall(r"^(nv_\w+)", answer.read().decode(), re.MULTILINE))
    named = set(re.findall(r"\bnv_\w+", world.files["prometheus/rules.yml"]))
    named |= {name for expr in queries(world) for name in re.findall(r"\bnv_\w+", expr)}
    assert len(named) > 8
    assert sorted(named - real) == []


def test_readiness_is_each_models_own(world):
    ready = {one["metric"]["model"]: float(one["value"][1]) for one in world.watching.query("triton:ready")}
    assert ready == {"calm": 1, "busy": 1, "hasty": 1, "tight": 1}


def test_an_overload_fires_the_right_alerts_and_they_resolve(world):
    wanted = {("TritonRejecting", "hasty"), ("TritonQueueFull", "tight"), ("TritonQueueing", "busy")}
    assert not wanted & world.watching.firing()
    with (
        asking(world.triton.grpc, "hasty", {"x": X}, users=8, pause=0.005),
        asking(world.triton.grpc, "tight", {"x": X}, users=8, pause=0.005),
        asking(world.triton.grpc, "busy", {"x": X}, users=12),
    ):
        await_(lambda: wanted <= world.watching.firing(), 60, world.watching.firing)
        fired = world.watching.firing()
    turned_away = {model for alert, model in fired if alert in ("TritonRejecting", "TritonQueueFull")}
    assert turned_away == {"hasty", "tight"}
    await_(lambda: not wanted & world.watching.firing(), 40, world.watching.firing)


def test_a_model_that_is_taken_away_is_missed_and_its_return_is_seen(world):
    alert = ("TritonModelNotReady", "calm")
    with Client(world.triton.grpc) as client:
        client.unload("calm")
        try:
            await_(lambda: alert in world.watching.firing(), 30, world.watching.firing)
            assert not world.watching.query('nv_inference_request_success{model="calm"}')  # gone, not at 0
        finally:
            client.load("calm")
    await_(lambda: alert not in world.watching.firing(), 30, world.watching.firing)
    (unready,) = world.watching.query('triton:unready_seconds{model="calm"}')
    assert float(unready["value"][1]) > 1
    assert world.watching.query('triton:started{model="calm"} == 1')
