"""Killed from outside at any system call, or with any of them failing: each model is whole, and the next run mends it."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from repogen.generations import state_folder
from repogen.staging import needs_recovery
from tests.conftest import ROOT, tree

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed (apt-get install strace)"
)


@pytest.mark.parametrize("offset", [0, 7])
def test_a_sample_of_the_crash_matrix(tmp_path, offset):
    """Each 40th point; `python benchmarks/crash_matrix.py` goes through all of them."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/crash_matrix.py", "--every", "40", "--offset", str(offset), "--json", figures],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert figures.exists(), done.stderr
    found = json.loads(figures.read_text())
    assert found["problems"] == []
    assert found["kill_points"] >= 14
    assert found["faults_injected"] >= 50


CALLS = [("mkdir", 3), ("fsync", 2), ("fsync", 6), ("rename", 1), ("rename", 3), ("renameat2", 1), ("rmdir", 1)]


@pytest.mark.parametrize(("call", "number"), CALLS, ids=str)
def test_the_command_itself_killed_and_run_again(project, invoke, call, number):
    root = project / "served/models"
    invoke("sync", "-f", project / "repogen.yaml")
    old = tree(root)
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("max_batch_size: 4", "max_batch_size: 2"))
    invoke("plan", "-f", manifest)  # what is proved and rendered is remembered: the calls are those of publishing
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "repogen", "sync", "-f", manifest], capture_output=True, check=False
    )
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    between = tree(root)
    invoke("sync", "-f", manifest)
    new = tree(root)
    assert new != old
    assert between in (old, new)
    assert not needs_recovery(root)
    state = state_folder(root)
    assert sorted(path.name for path in state.iterdir()) == ["generations", "kept", "lock"]
    assert [path.name for path in (state / "generations").iterdir() if path.suffix != ".json"] == []
