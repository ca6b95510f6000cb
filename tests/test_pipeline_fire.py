"""The models of an ensemble replaced under the real server: a short run of benchmarks/pipeline_fire.py."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.serverkit import needs_server


@pytest.mark.server
@needs_server[1]
def test_no_request_fails_and_no_answer_is_mixed(tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/pipeline_fire.py", "--rounds", "2", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["requests"] > 100
    assert (found["failed"], found["mixed"], found["went_back"], found["refused_unsafe"]) == (0, 0, 0, True)
