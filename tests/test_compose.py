"""docker-compose.yml without a Docker engine: the specification's schema, our promises, the real healthcheck."""

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "tests/data/compose-spec.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]

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


def test_one_service_a_profile_and_only_one_asks_for_gpus():
    assert {name: service["profiles"] for name, service in SERVICES.items()} == {
        "triton": ["gpu"],
        "triton-cpu": ["cpu"],
    }
    devices = SERVICES["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    shared = {key: value for key, value in SERVICES["triton"].items() if key not in {"profiles", "deploy"}}
    assert shared == {key: value for key, value in SERVICES["triton-cpu"].items() if key != "profiles"}


@pytest.mark.parametrize("name", SERVICES)
def test_the_release_is_pinned(name):
    assert "nvcr.io/nvidia/tritonserver:26.08-py3" in SERVICES[name]["image"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name):
    ports = SERVICES[name]["ports"]
    assert [port.rpartition(":")[2] for port in ports] == ["8000", "8001", "8002"]
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", SERVICES)
def test_the_repository_is_mounted_read_only(name):
    (volume,) = SERVICES[name]["volumes"]
    assert (volume["source"], volume["target"], volume["read_only"]) == (
        "./model_repository",
        "/models",
        True,
    )


@pytest.mark.parametrize("name", SERVICES)
def test_a_restart_loads_every_model_again(name):
    command = SERVICES[name]["command"]
    assert isinstance(command, list), "a string would go through word splitting"
    assert command[0] == "tritonserver"
    assert {"--model-repository=/models", "--model-control-mode=explicit", "--load-model=*"} < set(command)
    assert {"--disable-auto-complete-config", "--strict-readiness=true"} < set(command)
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_docker_waits_longer_than_triton(name):
    (timeout,) = (word for word in SERVICES[name]["command"] if word.startswith("--exit-timeout-secs="))
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > int(timeout.partition("=")[2])


@pytest.mark.parametrize("name", SERVICES)
def test_the_container_can_do_little(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "1000:1000"
    assert service["init"] is True
    assert {"tmpfs", "shm_size", "mem_limit", "pids_limit"} < set(service)
    assert not {"privileged", "ipc", "network_mode", "environment"} & set(service)


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
