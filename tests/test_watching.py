"""`repogen sync --watch` as people run it: a process that goes on until a signal ends it."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from repogen.watch import signature
from tests.conftest import tree
from tests.s3server import BUCKET, needs_s3
from tests.serverkit import needs_server, onnx_file


class Watching:
    """The process, and what it has said so far."""

    def __init__(self, process):
        self.process, self.lines = process, []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def said(self, text, times=1, seconds=60):
        deadline = time.monotonic() + seconds
        while sum(text in line for line in self.lines) < times:
            assert time.monotonic() < deadline, f"{text!r} was not said:\n{''.join(self.lines)}"
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.05)


@contextmanager
def watching(manifest, *arguments):
    command = [sys.executable, "-m", "repogen", "sync", "-f", str(manifest), "--watch", "300ms", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Watching(process)
        finally:
            process.kill()


def other_model(path, op):
    onnx_file(path, [(op, ["x", "x"], ["y"], {})], [("x", "FLOAT", ["N", "W"])], [("y", "FLOAT", ["N", "W"])])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_changed_source_is_published_and_a_signal_ends_it(project, number):
    with watching(project / "repogen.yaml") as run:
        run.said("every 0.3 s")
        other_model(project / "add.onnx", "Mul")
        run.said("every 0.3 s", times=2)
        assert (project / "served/models/add/1/model.onnx").read_bytes() == (project / "add.onnx").read_bytes()
        os.kill(run.process.pid, number)
        assert run.process.wait(20) == 0
    assert "ended" in "".join(run.lines)


def test_an_error_is_told_once_and_does_not_end_it(project):
    good = (project / "add.onnx").read_bytes()
    with watching(project / "repogen.yaml") as run:
        run.said("every 0.3 s")
        served = tree(project / "served/models")
        (project / "add.onnx").write_bytes(b"<html>")
        run.said("not an ONNX file")
        told = len(run.lines)
        time.sleep(3)
        assert run.lines[told + 1 :] == [], "it tries again, and says no more of it"
        assert sum("not an ONNX file" in line for line in run.lines) == 1
        assert tree(project / "served/models") == served
        (project / "add.onnx").write_bytes(good)
        run.said("nothing to do")
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.process.wait(20) == 0


def test_a_server_that_is_not_there_is_told_once_and_waited_for(project):
    with watching(project / "repogen.yaml", "--url", "127.0.0.1:1") as run:
        run.said("no Triton answers")
        run.said("every 0.3 s")
        time.sleep(3)
        assert sum("create" in line for line in run.lines) == 2, "one plan: the model's line and the last one"
        assert sum("error" in line for line in run.lines) == 1
        other_model(project / "add.onnx", "Mul")
        (project / "repogen.yaml").write_text("models: {")
        run.said("not valid YAML")


def test_it_is_not_busy(project):
    with watching(project / "repogen.yaml") as run:
        run.said("every 0.3 s")
        before = _cpu(run.process.pid)
        time.sleep(3)
        assert _cpu(run.process.pid) - before < 0.6
        assert sum("nothing to do" in line or "published" in line for line in run.lines) == 1


def _cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_what_changes_the_signature(project):
    manifest = project / "repogen.yaml"
    first = signature(manifest)
    assert signature(manifest) == first
    (project / "weights.bin").write_bytes(b"1")
    second = signature(manifest)
    assert second != first
    (project / "weights.bin").unlink()
    assert signature(manifest) == first
    manifest.write_text(manifest.read_text() + "# \n")
    assert signature(manifest) != first
    manifest.write_text("models: {")
    assert signature(manifest) not in (first, second)


@needs_s3
def test_a_new_object_in_a_bucket_is_published(project, s3):
    client = s3.client()
    client.pipe_file(f"{BUCKET}/models/add.onnx", (project / "add.onnx").read_bytes())
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add", f"source: s3://{BUCKET}/models/add"))
    with watching(manifest) as run:
        run.said("every 0.3 s")
        other_model(project / "add.onnx", "Mul")
        client.pipe_file(f"{BUCKET}/models/add.onnx", (project / "add.onnx").read_bytes())
        run.said("published", times=2)
        run.said("every 0.3 s", times=2)
        assert (project / "served/models/add/1/model.onnx").read_bytes() == (project / "add.onnx").read_bytes()


@needs_s3
def test_a_new_name_in_a_bucket_is_a_new_version(project, s3):
    client = s3.client()
    client.pipe_file(f"{BUCKET}/add/add_v1.onnx", (project / "add.onnx").read_bytes())
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add.onnx", f"source: s3://{BUCKET}/add/"))
    with watching(manifest) as run:
        run.said("every 0.3 s")
        other_model(project / "add.onnx", "Mul")
        client.pipe_file(f"{BUCKET}/add/add_v2.onnx", (project / "add.onnx").read_bytes())
        run.said("every 0.3 s", times=2)
        assert (project / "served/models/add/2/model.onnx").read_bytes() == (project / "add.onnx").read_bytes()
        assert (project / "served/models/add/1/model.onnx").exists()


def test_a_file_is_published_once_it_is_whole(project):
    (project / "exports").mkdir()
    (project / "add.onnx").rename(project / "exports/add_v1.onnx")
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add.onnx", "source: exports/*.onnx"))
    other_model(project / "whole.onnx", "Mul")
    content = (project / "whole.onnx").read_bytes()
    with watching(manifest) as run:
        run.said("every 0.3 s")
        with (project / "exports/add_v2.onnx").open("wb", buffering=0) as file:
            for index in range(len(content)):
                file.write(content[index : index + 1])
                time.sleep(2 / len(content))
                assert not (project / "served/models/add/2").exists()
        run.said("2/model.onnx added")
        run.said("every 0.3 s", times=2)
        assert (project / "served/models/add/2/model.onnx").read_bytes() == content
    assert "error" not in "".join(run.lines), "half a file was never looked into"


def test_no_pause_is_refused(project, invoke):
    assert "0s is no pause" in invoke("sync", "--watch", "0s", "-f", project / "repogen.yaml", code=2).stderr


def test_what_never_rests_is_not_waited_for_for_ever():
    from repogen.commands.watching import _settle

    looks = iter(range(1000))
    _settle(lambda: str(next(looks)), threading.Event(), 0.001)
    assert next(looks) < 100
    steady = iter(["1", "2", "2", "3"])
    _settle(lambda: next(steady), threading.Event(), 0.001)
    assert next(steady) == "3"


class TestOnTheRealServer:
    pytestmark = needs_server

    def test_a_new_version_is_loaded_while_the_old_one_serves(self, tmp_path, invoke):
        """A new name in the folder; nobody but the watch does anything; no request fails and each version stays."""
        from repogen import server
        from repogen.triton import Client
        from tests.test_live import MODEL, put

        manifest = put(tmp_path, "a")
        (tmp_path / "a.py").rename(tmp_path / "a_v1.py")
        text = manifest.read_text().replace("source: a.py", "source: a_v*.py\n    versions: {latest: 2}")
        manifest.write_text(text)
        invoke("sync", "-f", manifest)
        with server.start(tmp_path / "served/models") as triton, Client(triton.grpc) as client:
            asked, over = [], threading.Event()
            thread = threading.Thread(target=_ask, args=(triton.grpc, asked, over))
            thread.start()
            try:
                with watching(manifest, "--url", triton.grpc) as run:
                    run.said("every 0.3 s")
                    slow = "__import__('time').sleep(2)"
                    (tmp_path / "a_v2.py").write_text(MODEL.format(number=2, start=slow, run="pass"))
                    run.said("a_v2.py as version 2")
                    before = len(asked)
                    run.said("every 0.3 s", times=2)
                    during = asked[before:]
                    assert _answer(client) == 2
                    assert [_answer_of(triton.grpc, version) for version in ("1", "2")] == [1, 2], "both are served"
            finally:
                over.set()
                thread.join()
        assert during.count(1) > 10, "the old one answered while the new one was loaded"
        assert set(asked) == {1, 2}, "no request failed"
        assert asked == sorted(asked), "from one moment on the new one answers"


def _answer(client):
    import numpy as np

    return int(client.infer("a", {"x": np.zeros(3, dtype=np.float32)})["y"][0])


def _answer_of(url, version):
    import numpy as np
    from tritonclient.grpc import InferenceServerClient, InferInput

    asked = InferInput("x", [3], "FP32").set_data_from_numpy(np.zeros(3, dtype=np.float32))
    with InferenceServerClient(url) as client:
        return int(client.infer("a", [asked], model_version=version).as_numpy("y")[0])


def _ask(url, asked, over):
    from repogen.errors import RepogenError
    from repogen.triton import Client

    with Client(url) as client:
        while not over.wait(0.01):
            try:
                asked.append(_answer(client))
            except RepogenError as error:
                asked.append(f"failed: {error}")
