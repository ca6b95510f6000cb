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
from tests.serverkit import onnx_file


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
        run.said("every 0.3 s", times=4)  # it tries again, and says no more of it
        assert sum("not an ONNX file" in line for line in run.lines) == 1
        assert tree(project / "served/models") == served
        (project / "add.onnx").write_bytes(good)
        run.said("nothing to do")
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.process.wait(20) == 0


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
