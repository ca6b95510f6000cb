"""The whole chain on the five real models, with the real Triton."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repogen import pbtxt
from tests.conftest import ROOT
from tests.serverkit import needs_server

FIVE = ("magika", "silero_vad", "text_cls", "text_det", "text_rec")
MODELS = ROOT / "examples" / "models"

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not (MODELS / "magika.onnx").exists(), reason="python examples/fetch_models.py brings them"),
]


def repogen(*arguments: str | Path, **options):
    command = [sys.executable, "-m", "repogen", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False, **options)


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """The example manifest, publishing into a temporary repository, synced once."""
    folder = tmp_path_factory.mktemp("five")
    (folder / "models").symlink_to(MODELS)
    text = (ROOT / "examples" / "repogen.yaml").read_text()
    (folder / "repogen.yaml").write_text(text.replace("../model_repository", "model_repository"))
    done = repogen("sync", "-f", folder / "repogen.yaml")
    assert done.returncode == 0, done.stderr
    return folder


def configs(repository: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in sorted(repository.glob("*/config.pbtxt"))}


def test_the_committed_configs_are_what_the_example_renders(five):
    assert configs(ROOT / "model_repository") == configs(five / "model_repository")


def test_what_was_found_of_each(five):
    found = {name: pbtxt.parse(text) for name, text in configs(five / "model_repository").items()}
    assert tuple(sorted(found)) == FIVE
    assert [list(t.dims) for t in found["text_det"].input] == [[3, -1, -1]]
    assert found["text_rec"].max_batch_size == 16
    vad = found["silero_vad"]
    assert vad.max_batch_size == 0
    assert {t.name: list(t.dims) for t in vad.input} == {"input": [-1, -1], "state": [2, -1, 128], "sr": [1]}
    assert {t.name: t.data_type for t in vad.input}["sr"] == pbtxt.schema().TYPE_INT64
    assert [list(t.dims) for t in found["magika"].output] == [[214]]


def test_a_second_sync_changes_no_ctime(five):
    repository = five / "model_repository"
    before = {path: path.lstat().st_ctime_ns for path in (repository, *repository.rglob("*"))}
    done = repogen("sync", "-f", five / "repogen.yaml")
    assert "nothing to do" in done.stdout
    assert {path: path.lstat().st_ctime_ns for path in (repository, *repository.rglob("*"))} == before


def test_a_missing_folder_is_created_again(five):
    shutil.rmtree(five / "model_repository" / "magika")
    done = repogen("sync", "-f", five / "repogen.yaml", "--json")
    assert json.loads(done.stdout)["published"] == ["magika"]


@pytest.mark.server
@needs_server[1]
def test_serve_verify_bench(five):
    """Every config loads with auto-complete disabled, every answer is right, and the load test ends."""
    inner = (
        f"{sys.executable} -m repogen verify --json -q -f {five}/repogen.yaml > {five}/verify.json && "
        f"{sys.executable} -m repogen bench --json -q -f {five}/repogen.yaml -m text_rec --users 4 --duration 2 > {five}/bench.json"
    )
    done = repogen("serve", "-f", five / "repogen.yaml", "--", "sh", "-c", inner)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines() if "READY" in line] == [
        "text_det", "text_cls", "text_rec", "silero_vad", "magika",
    ]  # fmt: skip
    verified = json.loads((five / "verify.json").read_text())
    assert verified["wrong"] == 0
    assert {(row["model"], row["batch"]) for row in verified["compared"]} >= {
        ("text_det", 4), ("text_rec", 16), ("silero_vad", 0), ("magika", 32), ("text_cls", 2),
    }  # fmt: skip
    (result,) = json.loads((five / "bench.json").read_text())["results"]
    assert result["summary"]["errors"] == 0
    assert result["summary"]["rate"] > 1
    assert sum(count for _, count in result["served"]["batches"]) == result["served"]["executions"]
    assert left_running(five) == []


@pytest.fixture
def serving(five):
    """`repogen serve` as a process of its own, with its address; killed at the end whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "repogen", "serve", "-f", str(five / "repogen.yaml"), "-m", "text_cls", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def document(process: subprocess.Popen) -> dict:
    text = ""
    while True:
        line = process.stdout.readline()
        assert line, "serve ended early"
        text += line
        if line == "}\n":
            return json.loads(text)


@pytest.mark.server
@needs_server[1]
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_however_serve_ends(serving, number):
    found = document(serving)
    assert running(found["server_id"])
    serving.send_signal(number)
    code = serving.wait(10)
    assert code == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    deadline = time.monotonic() + 5
    while running(found["server_id"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(found["server_id"]) == []
    assert not list(Path("/dev/shm").glob(f"*{found['server_id']}*"))


@pytest.mark.server
@needs_server[1]
def test_other_commands_find_it_and_a_dead_server_is_told(serving, five):
    found = document(serving)
    done = repogen("verify", "-f", five / "repogen.yaml", "-m", "text_cls", "-q")
    assert done.returncode == 0, done.stderr
    os.kill(found["pid"], signal.SIGKILL)
    assert serving.wait(10) == 4
    done = repogen("verify", "-f", five / "repogen.yaml", "-m", "text_cls", "-q")
    assert done.returncode == 4
    assert "no server is known" in done.stderr


@pytest.mark.server
@needs_server[1]
def test_a_killed_and_restarted_server_serves_the_same_models(five):
    """Triton itself is started twice on one repository, with nobody to load anything the second time."""
    from repogen import server
    from repogen.desired import desired_models
    from repogen.embedded import embed
    from repogen.publish import write_model
    from repogen.render import render
    from repogen.triton import Client

    repository = five / "embedded"
    for model in desired_models(five / "repogen.yaml"):
        stand_in = embed(model, cpus=2)
        write_model(stand_in, render(stand_in), repository / model.name)
    served = []
    for _ in range(2):
        with server.start(repository) as triton, Client(triton.grpc) as client:
            served.append(sorted(name for name, _, state, _ in client.models() if state == "READY"))
            os.kill(triton.pid, signal.SIGKILL)
            while triton.poll() is None:
                time.sleep(0.05)
    assert served == [list(FIVE), list(FIVE)]


def running(mark: str) -> list[int]:
    """Return the pids of processes whose command line or environment names `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes() and process.name != str(os.getpid()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def left_running(folder: Path) -> list[int]:
    return running(str(folder))
