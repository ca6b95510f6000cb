"""Build in the image that `docker/builder.Dockerfile` makes of a release's TensorRT container."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

IMAGE = "repogen-builder"


def command(*, folders: Sequence[Path], output: Path, release: str) -> list[str]:
    """Return `docker run`: folders mounted read-only where they lie, files written as this user, no network."""
    mounts = [f"--volume={folder}:{folder}:ro" for folder in dict.fromkeys(folders) if folder != output]
    return [
        "docker",
        "run",
        "--rm",
        "--interactive",
        "--init",
        "--gpus=all",
        "--network=none",
        f"--user={os.getuid()}:{os.getgid()}",
        "--env=HOME=/tmp",
        *mounts,
        f"--volume={output}:{output}",
        f"{os.environ.get('REPOGEN_BUILDER_IMAGE', IMAGE)}:{release}",
        "python3",
        "-m",
        "repogen.builders.tensorrt",
    ]


def image_command(release: str, context: Path) -> list[str]:
    """Return the command that makes the image once for each release, from a checkout at `context`."""
    return [
        "docker",
        "build",
        f"--build-arg=RELEASE={release}",
        f"--tag={IMAGE}:{release}",
        f"--file={context / 'docker' / 'builder.Dockerfile'}",
        str(context),
    ]


def missing() -> str:
    return "" if shutil.which("docker") else "docker is not on the PATH"
