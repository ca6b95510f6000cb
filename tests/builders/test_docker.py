"""The commands that build in a container, to the word: no engine is at hand to try them."""

import os
import shlex
from pathlib import Path

from repogen.builders import BUILDERS, docker, local

ROOT = Path(__file__).parents[2]


def test_the_container_sees_the_model_read_only_and_may_write_the_output_alone(monkeypatch):
    monkeypatch.delenv("REPOGEN_BUILDER_IMAGE", raising=False)
    command = docker.command(
        folders=[Path("/models/a"), Path("/models/a"), Path("/plugins")], output=Path("/cache/out"), release="26.08"
    )
    assert shlex.join(command) == (
        "docker run --rm --interactive --init --gpus=all --network=none "
        f"--user={os.getuid()}:{os.getgid()} --env=HOME=/tmp "
        "--volume=/models/a:/models/a:ro --volume=/plugins:/plugins:ro --volume=/cache/out:/cache/out "
        "repogen-builder:26.08 python3 -m repogen.builders.tensorrt"
    )


def test_another_image_may_be_named(monkeypatch):
    monkeypatch.setenv("REPOGEN_BUILDER_IMAGE", "registry.example/builder")
    command = docker.command(folders=[], output=Path("/o"), release="25.03")
    assert "registry.example/builder:25.03" in command


def test_the_image_is_made_of_the_same_release():
    assert shlex.join(docker.image_command("26.08", Path("/src"))) == (
        "docker build --build-arg=RELEASE=26.08 --tag=repogen-builder:26.08 --file=/src/docker/builder.Dockerfile /src"
    )
    text = (ROOT / "docker" / "builder.Dockerfile").read_text()
    assert "FROM nvcr.io/nvidia/tensorrt:${RELEASE}-py3" in text
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name


def test_a_machine_without_docker_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker.missing() == "docker is not on the PATH"
    assert local.missing() == ""


def test_every_builder_is_a_module_with_both_functions():
    assert {"local", "docker"} == BUILDERS.keys()
    for module in (local, docker):
        assert callable(module.command)
        assert callable(module.missing)
