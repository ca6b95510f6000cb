"""The real Prometheus, Alertmanager and node exporter on loopback, with the files that an export renders."""

import json
import math
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.export.kit import stop

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "prometheus-node-exporter")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
WHY = (
    f"{', '.join(MISSING)} not installed (apt-get install prometheus prometheus-alertmanager prometheus-node-exporter)"
)
needs_tools = pytest.mark.skipif(bool(MISSING), reason=WHY)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url: str):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class Watching:
    prometheus: str
    alertmanager: str

    def query(self, expr: str) -> list[dict]:
        """Return the samples of a query that are numbers."""
        asked = urllib.parse.urlencode({"query": expr})
        found = get(f"http://{self.prometheus}/api/v1/query?{asked}")["data"]["result"]
        return [one for one in found if not math.isnan(float(one["value"][1]))]

    def firing(self) -> set[tuple[str, str]]:
        """Return (alert, model) of what Alertmanager has."""
        found = get(f"http://{self.alertmanager}/api/v2/alerts?silenced=true&inhibited=true&active=true")
        return {(one["labels"]["alertname"], one["labels"].get("model", "")) for one in found}


@contextmanager
def running(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen]:
    with log.open("wb") as sink:
        process = subprocess.Popen([str(part) for part in command], stdout=sink, stderr=sink, start_new_session=True)
    try:
        yield process
    finally:
        stop(process)


@contextmanager
def watching(files: Mapping[str, str], places: Mapping[str, str], folder: Path) -> Iterator[Watching]:
    """Run all three until the block ends; `places` are the addresses of Triton here, by their name in compose."""
    ours = {name: f"127.0.0.1:{free_port()}" for name in ("prometheus:9090", "alertmanager:9093", "node-exporter:9100")}
    for name, text in files.items():
        for before, after in {**ours, **places}.items():
            text = text.replace(before, after)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    prometheus, alertmanager, node = ours.values()
    commands = {
        "node": ["prometheus-node-exporter", f"--web.listen-address={node}"],
        "alertmanager": [
            "prometheus-alertmanager",
            f"--config.file={folder / 'alertmanager/alertmanager.yml'}",
            f"--storage.path={folder / 'alerts'}",
            f"--web.listen-address={alertmanager}",
            "--cluster.listen-address=",
        ],
        "prometheus": [
            "prometheus",
            f"--config.file={folder / 'prometheus/prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address={prometheus}",
        ],
    }
    with ExitStack() as stack:
        for name, command in commands.items():
            stack.enter_context(running(command, folder / f"{name}.log"))
        found = Watching(prometheus, alertmanager)
        for url in (f"http://{prometheus}/-/ready", f"http://{alertmanager}/-/ready"):
            await_(lambda url=url: _answers(url), 20, url)
        yield found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def await_(condition, seconds: float, what: object = "") -> float:
    """Wait until `condition` holds; return after how long."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.25)
    return time.monotonic() - begun


@contextmanager
def receiving() -> Iterator[tuple[str, list]]:
    """Be a webhook until the block ends: its URL, and what it was told."""
    told: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/alerts", told
        finally:
            listening.shutdown()
            thread.join()


def tell(url: str, message: object) -> None:
    body = json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=5).close()


@contextmanager
def asking(url: str, model: str, request: Mapping, *, users: int, pause: float = 0.0) -> Iterator[None]:
    """Let so many users ask a model one request after the other until the block ends."""
    from repogen.errors import ServerError
    from repogen.triton import Client

    over = threading.Event()

    def ask() -> None:
        with Client(url) as client:
            while not over.is_set():
                with suppress(ServerError):  # rejected: that is what an overload is
                    client.infer(model, request)
                over.wait(pause)

    threads = [threading.Thread(target=ask) for _ in range(users)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
