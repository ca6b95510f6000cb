"""A real S3 server, moto's, as a process of its own on a free port of 127.0.0.1; its log tells what it was asked."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_s3 = pytest.mark.skipif(
    importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None,
    reason="moto or s3fs is not installed (pip install 'repogen[dev,s3]')",
)
BUCKET = "bucket"
_REQUEST = re.compile(r'"(?:\x1b\[[0-9;]*m)*(?P<verb>[A-Z]+) /(?P<path>\S*) HTTP')


@dataclass
class S3:
    """A running server: where it answers, and what it was asked since `forget`."""

    url: str
    log: Path
    start: int = 0

    def forget(self) -> None:
        self.start = self.log.stat().st_size

    def asked(self, *verbs: str) -> list[str]:
        """Return the requests since `forget`, as "PUT bucket/key?query", in their order."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            rows = list(_REQUEST.finditer(file.read().decode()))
        return [f"{row['verb']} {row['path']}" for row in rows if row["verb"] in verbs]

    def client(self):
        """Return a plain fsspec client, to look and to meddle."""
        import s3fs

        return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


def environment(url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-printed",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Run a server while the block runs."""
    port = free_port()
    log = folder / "s3.log"
    with log.open("wb") as output:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        url = f"http://127.0.0.1:{port}"
        _await(url, process)
        yield S3(url, log)
    finally:
        process.terminate()
        process.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reset(url: str) -> None:
    """Empty the server, and give it a bucket."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"), timeout=10).close()
    urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=10).close()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not _answers(url):
        assert process.poll() is None, f"the S3 server ended with {process.poll()}"
        assert time.monotonic() < deadline, "the S3 server does not answer"
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/moto-api/", timeout=2).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def s3(s3_process: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty bucket, and an environment that leads to it."""
    from repogen.object_store import connected

    for name, value in environment(s3_process.url).items():
        monkeypatch.setenv(name, value)
    reset(s3_process.url)
    connected.cache_clear()
    s3_process.forget()
    yield s3_process
    connected.cache_clear()


@pytest.fixture
def remote(project: Path, s3: S3) -> Path:
    """The project of `project`, its repository in the bucket."""
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("served/models", f"s3://{BUCKET}/served/models"))
    return project
