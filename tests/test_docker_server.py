"""`repogen serve --docker` with a docker on the PATH that says what Docker says."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from repogen import docker_server
from repogen.errors import ServerError
from tests.fake_triton import FakeTriton
from tests.serverkit import wait_until

DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_SAID.calls"
for verb in up rm port ps logs; do
  case " $* " in *" $verb "*) break ;; esac
done
[ "$verb" = up ] && touch "$DOCKER_SAID/started" && sleep "${DOCKER_SLOW:-0}"
[ "$verb" = ps ] && [ ! -e "$DOCKER_SAID/started" ] && exit 0
cat "$DOCKER_SAID/$verb.out" 2>/dev/null
cat "$DOCKER_SAID/$verb.err" >&2 2>/dev/null
if [ "$verb" = port ]; then
  for number; do :; done
  cat "$DOCKER_SAID/port.$number"
fi
exit "$(cat "$DOCKER_SAID/$verb.code" 2>/dev/null || echo 0)"
"""
LOADING_FAILED = (
    "E1201 07:00:00.000000 1 model_lifecycle.cc:641] \"failed to load 'rec' version 1: Internal: "
    "unable to load model 'rec'\"\n"
)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker that answers each verb with `say(verb, out, err, code)`; `docker.calls()` are its command lines."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER)
    (tmp_path / "bin/docker").chmod(0o755)
    said = tmp_path / "said"
    said.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_SAID", str(said))
    (tmp_path / "docker-compose.yml").write_text("services: {}\n")

    def say(verb, out="", err="", code=0):
        (said / f"{verb}.out").write_text(out)
        (said / f"{verb}.err").write_text(err)
        (said / f"{verb}.code").write_text(str(code))

    say.file = tmp_path / "docker-compose.yml"
    say.folder = said
    say.calls = lambda: (tmp_path / "said.calls").read_text().splitlines()
    return say


@pytest.mark.parametrize(
    ("err", "said"),
    [
        ("docker: unknown command: docker compose", "docker has no compose"),
        ("docker: 'compose' is not a docker command.", "docker has no compose"),
        (
            "unable to get image: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
            "no Docker daemon",
        ),
        ("permission denied while trying to connect to the Docker daemon socket", "this user may not talk to Docker"),
        ('Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]', "the GPU"),
        ("Bind for 127.0.0.1:8000 failed: port is already allocated", "one of the ports is taken"),
        ("invalid mount config for type bind: bind source path does not exist: /r", "there is no repository to mount"),
        ("manifest for nvcr.io/nvidia/tritonserver:99 not found: manifest unknown", "the image cannot be pulled"),
        ("failed to register layer: no space left on device", "the disk of Docker is full"),
    ],
)
def test_what_docker_says_is_explained_and_taken_down(docker, err, said):
    docker("up", err=f"Network repogen_default  Created\n{err}\n", code=1)
    with pytest.raises(ServerError, match=said) as caught, docker_server.start(docker.file, gpu=True, timeout=5):
        pass
    assert caught.value.hint
    assert err in caught.value.message, "Docker's own words stay"
    assert docker.calls()[-1].endswith("--profile gpu rm --stop --force triton")


def test_a_model_that_fails_is_named_by_tritons_log(docker):
    docker("up", err="container repogen-triton-cpu-1 is unhealthy\n", code=1)
    docker("logs", out=LOADING_FAILED)
    with pytest.raises(ServerError, match="did not become ready: rec: ") as caught:
        docker_server.start(docker.file, gpu=False, timeout=5).__enter__()
    assert "repogen check" in caught.value.hint


def test_anything_else_is_repeated(docker):
    docker("up", err="something new\n", code=1)
    with pytest.raises(ServerError, match="docker compose failed: something new"):
        docker_server.start(docker.file, gpu=False, timeout=5).__enter__()


def test_no_file(tmp_path):
    with pytest.raises(ServerError, match="no such compose file.*repogen export compose"):
        docker_server.start(tmp_path / "none.yml", gpu=False, timeout=5).__enter__()


def test_no_docker(tmp_path, monkeypatch):
    (tmp_path / "docker-compose.yml").write_text("services: {}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="docker is not on the PATH"):
        docker_server.start(tmp_path / "docker-compose.yml", gpu=False, timeout=5).__enter__()


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_the_docker_of_this_machine_is_understood(tmp_path):
    """Without a daemon or the plugin it fails in one of the ways that are known; with both the file is empty."""
    (tmp_path / "docker-compose.yml").write_text("services: {triton-cpu: {profiles: [cpu]}}\n")
    with pytest.raises(ServerError) as caught:
        docker_server.start(tmp_path / "docker-compose.yml", gpu=False, timeout=5).__enter__()
    assert caught.value.hint


@pytest.fixture
def up(docker, tmp_path):
    """A container that runs, or so docker says, with a Triton behind its gRPC port."""
    with FakeTriton() as running:
        docker("ps", out="0123456789ab\n")
        for number, address in ((8000, "127.0.0.1:1"), (8001, running.url), (8002, "127.0.0.1:2")):
            (docker.folder / f"port.{number}").write_text(f"{address}\n")
        yield running.url


def test_serve_runs_a_command_beside_it_and_takes_it_down(up, docker, project, tmp_path, invoke):
    child = ["sh", "-c", f"echo $REPOGEN_URL > {tmp_path}/url"]
    said = invoke("serve", "-f", project / "repogen.yaml", "--docker", "--compose", docker.file, "--", *child).stdout
    assert (tmp_path / "url").read_text() == f"{up}\n"
    assert "READY  add" in said
    assert "development only" not in said
    calls = docker.calls()
    assert "--profile cpu up --detach --wait --wait-timeout=300 triton-cpu" in calls[1]
    assert calls[-1].endswith("--profile cpu rm --stop --force triton-cpu")


def test_models_on_gpus_take_the_gpu_profile(up, docker, project, invoke):
    text = (project / "repogen.yaml").read_text()
    (project / "repogen.yaml").write_text(text.replace("kind: cpu", "kind: gpu"))
    invoke("serve", "-f", project / "repogen.yaml", "--docker", "--compose", docker.file, "--", "true")
    assert "--profile gpu up" in docker.calls()[1]


def test_a_container_that_ends_is_told(up, docker, project, invoke):
    docker("ps", out="")
    docker("logs", out=LOADING_FAILED)
    said = invoke("serve", "-f", project / "repogen.yaml", "--docker", "--compose", docker.file, code=4).stderr
    assert "Triton ended by itself" in said
    assert "rec: " in said
    assert docker.calls()[-1].endswith("--profile cpu rm --stop --force triton-cpu")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_it_down(up, docker, project, number):
    command = ["-m", "repogen", "serve", "-f", str(project / "repogen.yaml"), "--docker", "--compose", str(docker.file)]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"READY" in process.stdout.readline()
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert docker.calls()[-1].endswith("--profile cpu rm --stop --force triton-cpu")


def test_a_signal_while_it_starts_takes_it_down_too(docker, project, monkeypatch):
    monkeypatch.setenv("DOCKER_SLOW", "30")
    command = ["-m", "repogen", "serve", "-f", str(project / "repogen.yaml"), "--docker", "--compose", str(docker.file)]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE) as process:
        wait_until((docker.folder / "started").exists, 30)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert docker.calls()[-1].endswith("--profile cpu rm --stop --force triton-cpu")


def test_what_ran_before_stays(up, docker, project, invoke):
    (docker.folder / "started").touch()
    invoke("serve", "-f", project / "repogen.yaml", "--docker", "--compose", docker.file, "--", "true")
    assert not any(" rm " in call for call in docker.calls())


def test_one_model_alone_cannot_be_asked_of_docker(docker, project, invoke):
    arguments = ["serve", "-f", project / "repogen.yaml", "--docker", "--compose", docker.file, "-m", "add"]
    assert "whole repository" in invoke(*arguments, code=2).stderr
