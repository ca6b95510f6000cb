"""A short run of benchmarks/under_fire.py: real syncs under a real Triton that answers all the while."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.serverkit import needs_server

pytestmark = needs_server


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_no_request_fails_and_no_answer_mixes_generations(mode, tmp_path):
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/under_fire.py", "--syncs", "10", "--modes", mode, "--json", figures],
        capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert figures.exists(), done.stderr
    (found,) = json.loads(figures.read_text())["modes"]
    assert found["problems"] == []
    assert (found["failed"], found["mixed"], found["foreign_names"]) == (0, 0, [])
    assert found["syncs"] == 10
    assert found["requests"] > 100
