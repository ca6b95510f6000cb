"""docker-compose.yml without a Docker engine: the specification's schema, our promises, the real healthcheck."""

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from repogen.errors import ManifestError
from repogen.export.settings import Settings
from repogen.manifest import load_manifest
from tests.export.kit import exported

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "tests/data/compose-spec.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
TRITON = ("triton", "triton-cpu")

CURL = """#!/bin/sh
for url; do :; done
echo "$url" >> "$CURL_LOG"
case " $READY " in *" $(basename "$(dirname "$url")") "*) exit 0 ;; esac
echo "curl: (22) The requested URL returned error: 400" >&2
exit 22
"""


@pytest.fixture
def health(tmp_path):
    """Run the healthcheck in a shell on a folder of models, with a curl to which only some are ready."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    (stubs / "curl").write_text(CURL)
    (stubs / "curl").chmod(0o755)
    models = tmp_path / "models"
    models.mkdir()
    log = tmp_path / "curl.log"
    log.touch()

    def run(folders, ready):
        for name in folders:
            (models / name / "1").mkdir(parents=True)
        kind, script = SERVICES["triton"]["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        script = script.replace("$$", "$").replace("cd /models", f"cd '{models}'")
        environment = {"PATH": f"{stubs}:{os.defpath}", "READY": " ".join(ready), "CURL_LOG": str(log)}
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        return done.returncode, done.stdout, log.read_text().split("\n")[:-1]

    run.models = models
    return run


def test_the_file_satisfies_the_compose_specification():
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)


def test_the_schema_would_have_found_a_typo():
    broken = {**COMPOSE, "services": {"triton": {**SERVICES["triton"], "helthcheck": {}}}}
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        jsonschema.Draft202012Validator(SCHEMA).validate(broken)


def test_gpu_and_cpu_differ_by_the_gpus_alone():
    assert [SERVICES[name]["profiles"] for name in TRITON] == [["gpu"], ["cpu"]]
    devices = SERVICES["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    shared = {key: value for key, value in SERVICES["triton"].items() if key not in {"profiles", "deploy"}}
    assert shared == {key: value for key, value in SERVICES["triton-cpu"].items() if key != "profiles"}


def test_nothing_starts_unasked():
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == {
        "gpu", "cpu", "build", "load", "monitoring", "monitoring-gpu",
    }  # fmt: skip


@pytest.mark.parametrize("name", TRITON)
def test_the_release_is_pinned(name):
    assert "nvcr.io/nvidia/tritonserver:26.08-py3" in SERVICES[name]["image"]


@pytest.mark.parametrize("name", TRITON)
def test_triton_publishes_its_three_ports(name):
    assert [port.rpartition(":")[2] for port in SERVICES[name]["ports"]] == ["8000", "8001", "8002"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", TRITON)
def test_the_repository_is_mounted_read_only(name):
    (volume,) = SERVICES[name]["volumes"]
    assert (volume["source"], volume["target"], volume["read_only"]) == (
        "./model_repository",
        "/models",
        True,
    )


@pytest.mark.parametrize("name", TRITON)
def test_a_restart_loads_every_model_again(name):
    command = SERVICES[name]["command"]
    assert isinstance(command, list), "a string would go through word splitting"
    assert command[0] == "tritonserver"
    assert {"--model-repository=/models", "--model-control-mode=explicit", "--load-model=*"} < set(command)
    assert {"--disable-auto-complete-config", "--strict-readiness=true"} < set(command)
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", TRITON)
def test_docker_waits_longer_than_triton(name):
    (timeout,) = (word for word in SERVICES[name]["command"] if word.startswith("--exit-timeout-secs="))
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > int(timeout.partition("=")[2])


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_can_do_more_than_it_must(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert {"tmpfs", "mem_limit", "pids_limit"} < set(service)
    assert not {"privileged", "ipc", "network_mode", "cap_add"} & set(service)
    assert name == "dcgm-exporter" or service["user"].partition(":")[0] not in ("0", "root")


@pytest.mark.parametrize("name", TRITON)
def test_triton_gets_shared_memory_and_no_environment(name):
    assert {"shm_size", "cpus"} < set(SERVICES[name])
    assert "environment" not in SERVICES[name]
    assert SERVICES[name]["user"] == "1000:1000"


def test_what_others_mount_cannot_be_written():
    for name, service in SERVICES.items():
        binds = [it for it in service.get("volumes", []) if it["type"] == "bind"]
        assert name == "build" or all(it["read_only"] for it in binds), name


def test_passwords_come_from_files():
    """Compose refuses secrets out of the environment for a container whose root is read-only (docker/compose#12531)."""
    assert COMPOSE["secrets"] == {"grafana-admin": {"file": "${GRAFANA_ADMIN_PASSWORD_FILE:-./secrets/grafana-admin}"}}
    assert "alert-receiver" not in COMPOSE["secrets"]
    given = SERVICES["grafana"]["environment"]
    assert given["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana-admin"


def test_the_gpu_exporter_starts_without_its_script():
    """dcgm-exporter-entrypoint.sh runs ldconfig and setcap, under `set -e`, which a read-only root does not allow."""
    assert SERVICES["dcgm-exporter"]["entrypoint"] == ["/usr/bin/dcgm-exporter"]


def test_build_gets_the_parent_of_the_repository_and_its_owner():
    build = SERVICES["build"]
    (volume,) = build["volumes"]
    assert (volume["source"], volume["target"]) == (".", "/project")
    assert build["command"][-1] == "/project/examples/repogen.yaml"
    manifest = ROOT / "examples/repogen.yaml"
    assert load_manifest(manifest).repository == ROOT / "model_repository"


@pytest.mark.models
@pytest.mark.skipif(not (ROOT / "examples/models/text_rec.onnx").exists(), reason="python examples/fetch_models.py")
def test_the_file_is_what_export_renders_of_the_example(monkeypatch):
    from repogen.desired import models_of
    from repogen.export import compose

    monkeypatch.chdir(ROOT)
    manifest = load_manifest(Path("examples/repogen.yaml"))
    assert compose.files(models_of(manifest), Settings(manifest, Path())) == {
        "docker-compose.yml": (ROOT / "docker-compose.yml").read_text()
    }, "repogen export compose -f examples/repogen.yaml"


def test_a_project_of_its_own(project):
    manifest = (project / "repogen.yaml").read_text()
    digest = "sha256:" + "ab" * 32
    deploy = f"deploy: {{name: ours, digest: '{digest}', memory: 12GiB, shm: 512MiB, cpus: 3, load_time: 90s}}\n"
    (project / "repogen.yaml").write_text(manifest + deploy)
    made = yaml.safe_load(exported("compose", project)["docker-compose.yml"])
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    triton = made["services"]["triton-cpu"]
    assert made["name"] == "ours"
    assert triton["image"] == "${TRITON_IMAGE:-nvcr.io/nvidia/tritonserver:26.08-py3@" + digest + "}"
    assert triton["mem_limit"] == "${TRITON_MEMORY:-12g}"
    assert triton["shm_size"] == "${TRITON_SHM:-512m}"
    assert triton["cpus"] == "${TRITON_CPUS:-3}"
    assert triton["healthcheck"]["start_period"] == "90s"
    assert triton["volumes"][0]["source"] == "./served/models"
    assert made["services"]["locust-master"]["command"][-1] == "--model=${LOCUST_MODEL:-add}"


@pytest.mark.parametrize(("alerts", "secret"), [("slack", "webhook's URL"), ("pagerduty", "routing key")])
def test_alertmanager_gets_the_receivers_secret_as_a_file(project, alerts, secret):
    manifest = (project / "repogen.yaml").read_text()
    (project / "repogen.yaml").write_text(f"{manifest}deploy: {{alerts: {alerts}}}\n")
    text = exported("compose", project)["docker-compose.yml"]
    made = yaml.safe_load(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    assert made["services"]["alertmanager"]["secrets"] == ["alert-receiver"]
    assert made["secrets"]["alert-receiver"] == {"file": "${ALERT_RECEIVER_FILE:-./secrets/alert-receiver}"}
    assert secret in text


def test_the_production_check_asks_for_digests_and_nothing_else(project, tmp_path):
    from repogen.check.engine import check_repository
    from repogen.check.target import target_of

    def errors(deploy):
        text = (project / "repogen.yaml").read_text().partition("deploy:")[0]
        (project / "repogen.yaml").write_text(f"{text}deploy: {deploy}\n")
        (tmp_path / "made.yml").write_text(exported("compose", project)["docker-compose.yml"])
        found = check_repository(project / "empty", target_of("26.08"), deployments=[tmp_path / "made.yml"])
        assert {it.code for it in found} == {"RG921"}
        return {it.model for it in found if it.severity == "error"}

    (project / "empty").mkdir()
    assert errors("{}") == {"triton", "triton-cpu"}
    assert errors(f"{{digest: 'sha256:{'ab' * 32}'}}") == set()


def test_a_repository_on_s3_is_read_by_credentials_in_a_file(project):
    text = (project / "repogen.yaml").read_text()
    (project / "repogen.yaml").write_text(text.replace("served/models", "s3://bucket/prefix"))
    made = yaml.safe_load(exported("compose", project)["docker-compose.yml"])
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    triton = made["services"]["triton"]
    assert "--model-repository=s3://bucket/prefix" in triton["command"]
    assert "volumes" not in triton
    assert triton["environment"] == {"TRITON_CLOUD_CREDENTIAL_PATH": "/run/secrets/s3-credentials"}
    assert made["secrets"]["s3-credentials"]["file"].startswith("${TRITON_S3_CREDENTIALS")
    assert "v2/models/$$name/ready" in triton["healthcheck"]["test"][1]
    assert "for name in add;" in triton["healthcheck"]["test"][1]


def test_the_machines_root_is_never_mounted_to_build(project):
    text = (project / "repogen.yaml").read_text()
    (project / "repogen.yaml").write_text(text.replace("served/models", "/srv/models"))
    with pytest.raises(ManifestError, match=r"repogen.yaml:2 repository: .*share no folder"):
        exported("compose", project)


def test_healthy_when_every_model_is_ready(health):
    code, said, asked = health(["text_det", "silero_vad"], ready=["text_det", "silero_vad"])
    assert (code, said) == (0, "")
    assert asked == [f"http://127.0.0.1:8000/v2/models/{name}/ready" for name in ("silero_vad", "text_det")]


def test_unhealthy_when_one_model_is_not_ready(health):
    code, said, _ = health(["a", "b", "c"], ready=["a", "c"])
    assert code != 0
    assert said == "b is not ready\n"


def test_unhealthy_when_there_are_no_models(health):
    (health.models / ".gitkeep").touch()
    (health.models / "README.md").touch()
    code, said, asked = health([], ready=[])
    assert code != 0
    assert said == "no models in /models\n"
    assert asked == []


def test_unhealthy_when_the_mount_is_gone(health):
    health.models.rmdir()
    assert health([], ready=[])[0] != 0
