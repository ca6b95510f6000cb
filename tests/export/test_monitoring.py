"""The rendered files: judged by promtool and amtool, tested by their own unit tests, and true to the runbook."""

import json
import re
import subprocess
from collections import Counter

import pytest
import yaml

from repogen.desired import models_of
from repogen.errors import ManifestError
from repogen.export.monitoring import files
from repogen.export.settings import Settings
from repogen.export.watched import Timing, span
from repogen.manifest import load_manifest
from tests.conftest import ROOT, tree
from tests.export.kit import exported
from tests.export.watchkit import MISSING, WHY, await_, needs_tools, receiving, tell, watching
from tests.serverkit import onnx_file

MANIFEST = """\
triton: "26.08"
repository: served/models
gpu: "9.0"
deploy: {name: vision}
models:
  plan.v2:
    source: add.onnx
    backend: tensorrt
    max_batch_size: 8
    shapes: {W: {min: 1, opt: 4, max: 8}}
    instances: [{kind: gpu, count: 2, gpus: [0, 1]}]
    dynamic_batching: {max_queue_delay: 2ms, queue_policy: {max_queue_size: 64}}
    tune: {slo: {p99.9: 20ms}, rate: 200/s}
  alone:
    source: add.onnx
    max_batch_size: 0
    shapes: {W: {min: 1, opt: 4, max: 8}}
"""
CONTRACT = {
    "prometheus/prometheus.yml",
    "prometheus/rules.yml",
    "prometheus/rules_test.yml",
    "alertmanager/alertmanager.yml",
    "grafana/provisioning/datasources/prometheus.yml",
    "grafana/provisioning/dashboards/dashboards.yml",
    "grafana/dashboards/vision.json",
}
RUNBOOK = (ROOT / "docs/runbook.md").read_text()


@pytest.fixture
def gpus(tmp_path):
    """A project with everything that rules depend on: GPUs, an objective, a bounded queue, batches."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    onnx_file(
        folder / "add.onnx",
        [("Add", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    (folder / "repogen.yaml").write_text(MANIFEST)
    return folder


@pytest.fixture
def full(gpus):
    return exported("monitoring", gpus)


@pytest.fixture
def plain(project):
    """One model on the CPU, with nothing promised of it."""
    return exported("monitoring", project)


@pytest.fixture(params=["full", "plain"])
def written(request, tmp_path):
    folder = tmp_path / "monitoring"
    for name, text in request.getfixturevalue(request.param).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def tool(*command, ok=True):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts(files):
    groups = yaml.safe_load(files["prometheus/rules.yml"])["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def board(files):
    return json.loads(next(text for name, text in files.items() if name.startswith("grafana/dashboards/")))


def test_the_paths_are_those_that_compose_and_kubernetes_expect(full):
    assert set(full) == CONTRACT


def test_the_same_manifest_gives_the_same_bytes_and_nothing_is_written(gpus, full):
    before = tree(gpus)
    assert exported("monitoring", gpus) == full
    assert tree(gpus) == before


@needs_tools
def test_prometheus_and_alertmanager_take_the_files(written):
    assert "SUCCESS" in tool("promtool", "check", "rules", written / "prometheus/rules.yml")
    tool("promtool", "check", "config", written / "prometheus/prometheus.yml")
    tool("amtool", "check-config", written / "alertmanager/alertmanager.yml")


@needs_tools
def test_the_rules_pass_their_unit_tests(written):
    tool("promtool", "test", "rules", written / "prometheus/rules_test.yml")


@needs_tools
def test_every_alert_is_held_by_its_unit_test(gpus, tmp_path):
    """Make all alerts deaf, then shrill: the unit tests must notice each. Short waits, so that there is less to play."""
    manifest = load_manifest(gpus / "repogen.yaml")
    short = Timing(soon=45, sustained=120, long=120, start=30)
    full = files(models_of(manifest), Settings(manifest, gpus), short)
    (tmp_path / "rules_test.yml").write_text(full["prometheus/rules_test.yml"])
    rules = yaml.safe_load(full["prometheus/rules.yml"])
    (tmp_path / "rules.yml").write_text(full["prometheus/rules.yml"])
    tool("promtool", "test", "rules", tmp_path / "rules_test.yml")
    for expr in ("vector(1) > 2", "vector(1)"):
        for group in rules["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    rule["expr"] = expr
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
        said = tool("promtool", "test", "rules", tmp_path / "rules_test.yml", ok=False)
        assert [alert["alert"] for alert in alerts(full) if f'alertname="{alert["alert"]}"' not in said] == []


def test_there_is_a_unit_test_for_each_alert(full):
    names = [case["name"] for case in yaml.safe_load(full["prometheus/rules_test.yml"])["tests"]]
    assert names[1:] == [f"{alert['alert']} fires" for alert in alerts(full)]


def test_every_alert_has_an_entry_in_the_runbook_and_every_entry_an_alert(full):
    names = [alert["alert"] for alert in alerts(full)]
    assert sorted(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == sorted(names)
    for alert in alerts(full):
        assert alert["annotations"]["runbook_url"].endswith(f"docs/runbook.md#{alert['alert'].lower()}")
        entry = RUNBOOK.split(f"## {alert['alert']}\n")[1].split("\n## ")[0]
        assert re.findall(r"^\*\*(.+?):\*\*", entry, re.MULTILINE) == ["Means", "Look at", "Do"]
        assert alert["labels"]["severity"] in ("critical", "warning", "info")


def test_what_is_promised_comes_from_the_manifest(full, plain):
    rules = yaml.safe_load(full["prometheus/rules.yml"])["groups"][0]["rules"]
    assert rules == [
        {"record": "triton:queue_target_seconds", "expr": "vector(0.01)"},
        {"record": "triton:slo_seconds", "expr": "vector(0.02)", "labels": {"model": "plan.v2", "quantile": "0.999"}},
        {"record": "triton:max_batch_size", "expr": "vector(8)", "labels": {"model": "plan.v2"}},
        {"record": "triton:max_queue_size", "expr": "vector(64)", "labels": {"model": "plan.v2"}},
    ]
    without = {"TritonLatencyHigh", "TritonQueueFull"}
    gpu = {"TritonGpuMemoryFull", "TritonGpuSaturated", "TritonGpuUnseen", "GpuError"}
    assert {one["alert"] for one in alerts(full)} - {one["alert"] for one in alerts(plain)} == without | gpu


def test_the_targets_are_services_of_the_compose_file(full):
    config = yaml.safe_load(full["prometheus/prometheus.yml"])
    assert [job["job_name"] for job in config["scrape_configs"]] == [
        "triton", "triton-models", "node", "dcgm", "prometheus", "alertmanager",
    ]  # fmt: skip
    services = set(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])
    named = set(re.findall(r'"([a-z-]+):\d+"', full["prometheus/prometheus.yml"]))
    assert named <= services
    models = config["scrape_configs"][1]
    assert models["static_configs"][0]["targets"] == ["plan.v2", "alone"]


def test_a_machine_without_gpus_is_not_asked_for_them(plain):
    assert "dcgm" not in plain["prometheus/prometheus.yml"]
    assert not [name for name, text in plain.items() if re.search(r"nv_gpu|DCGM", text)]


def test_metrics_of_gpus_which_no_test_can_see_are_those_that_the_docs_admit(full, plain):
    def named(files):
        return {name for text in files.values() for name in re.findall(r"\b(?:nv_\w+|DCGM_\w+)", text)}

    said = (ROOT / "docs/monitoring.md").read_text().split("## What was run")[1]
    assert named(full) - named(plain) == set(re.findall(r"`(nv_\w+|DCGM_\w+)`", said))


def test_the_dashboard_has_a_row_for_each_model(full):
    panels = board(full)["panels"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["All models", "plan.v2", "alone", "GPUs", "Hosts"]
    assert board(full)["uid"] == "vision"
    assert max(Counter(panel["id"] for panel in panels).values()) == 1
    taken = Counter(
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert max(taken.values()) == 1, "two panels overlap"


def test_the_dashboard_asks_for_recorded_series_of_its_own_rules(full):
    recorded = set(re.findall(r"- record: (\S+)", full["prometheus/rules.yml"]))
    exprs = [target["expr"] for panel in board(full)["panels"] for target in panel.get("targets", ())]
    assert {name for expr in exprs for name in re.findall(r"(?:triton|host):\w+(?::\w+)?", expr)} <= recorded
    assert not [expr for expr in exprs if "rate(" in expr]


def test_grafanas_own_library_reads_the_whole_dashboard(full, tmp_path):
    pytest.importorskip("grafana_foundation_sdk", reason="pip install 'repogen[dev]'")
    from benchmarks.exports import dashboard

    file = tmp_path / "a.json"
    file.write_text(json.dumps(board(full)))
    assert dashboard(file) == ""
    file.write_text(json.dumps({**board(full), "titel": "typo"}))
    assert "titel" in dashboard(file)


@pytest.mark.parametrize(
    ("alerts", "receiver"),
    [
        ("slack", {"slack_configs": [{"api_url_file": "/run/secrets/alert-receiver", "send_resolved": True}]}),
        ("pagerduty", {"pagerduty_configs": [{"routing_key_file": "/run/secrets/alert-receiver", "send_resolved": True}]}),
        ("http://bridge:9000/x", {"webhook_configs": [{"url": "http://bridge:9000/x", "send_resolved": True}]}),
    ],
)  # fmt: skip
def test_the_manifest_says_who_is_told(project, tmp_path, alerts, receiver):
    with (project / "repogen.yaml").open("a") as manifest:
        manifest.write(f"deploy: {{alerts: '{alerts}'}}\n")
    text = exported("monitoring", project)["alertmanager/alertmanager.yml"]
    assert yaml.safe_load(text)["receivers"] == [{"name": "team", **receiver}, {"name": "nobody"}]
    if not MISSING:
        (tmp_path / "alertmanager.yml").write_text(text)
        tool("amtool", "check-config", tmp_path / "alertmanager.yml")


def test_by_default_nobody_is_told_and_the_file_says_so(plain):
    text = plain["alertmanager/alertmanager.yml"]
    assert yaml.safe_load(text)["receivers"] == [{"name": "team"}, {"name": "nobody"}]
    assert "nobody yet" in text


@pytest.mark.parametrize("alerts", ["mail", "https://user:word@bridge/", "https://bridge/?token=x"])
def test_a_receiver_that_is_not_known_or_carries_a_secret_is_refused(project, alerts):
    with (project / "repogen.yaml").open("a") as manifest:
        manifest.write(f"deploy: {{alerts: '{alerts}'}}\n")
    with pytest.raises(ManifestError, match=r"deploy\.alerts"):
        exported("monitoring", project)


@needs_tools
def test_the_real_alertmanager_tells_the_webhook(project, tmp_path):
    with receiving() as (url, told), (project / "repogen.yaml").open("a") as manifest:
        manifest.write(f"deploy: {{alerts: '{url}'}}\n")
        manifest.flush()
        loaded = load_manifest(project / "repogen.yaml")
        made = files(models_of(loaded), Settings(loaded, project), Timing(scrape=1))
        with watching(made, {}, tmp_path) as found:
            firing = {"labels": {"alertname": "TritonFailing", "model": "add", "severity": "critical"}}
            tell(f"http://{found.alertmanager}/api/v2/alerts", [firing])
            await_(lambda: told, 20, "the webhook")
    assert [one["labels"] for one in told[0]["alerts"]] == [firing["labels"]]


def test_ones_own_template_stands_in_for_ours(gpus):
    (gpus / "ours/monitoring").mkdir(parents=True)
    (gpus / "ours/monitoring/alertmanager.yml.j2").write_text("route: {receiver: mine}\n")
    (gpus / "repogen.yaml").write_text(f"templates: ours\n{MANIFEST}")
    assert exported("monitoring", gpus)["alertmanager/alertmanager.yml"] == "route: {receiver: mine}\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (15, "15s"), (90, "90s"), (300, "5m"), (7200, "2h")])
def test_durations_are_prometheus_own(seconds, text):
    assert span(seconds) == text


def test_what_is_missing_is_said():
    assert all(name in WHY for name in MISSING)
