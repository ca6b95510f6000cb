"""A run of benchmarks/exports.py: every exported file judged, every metric looked for in a real /metrics."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serverkit import needs_server

pytestmark = [*needs_server, pytest.mark.models, pytest.mark.slow]


def test_nothing_is_invalid_and_no_metric_is_missing(tmp_path):
    figures = tmp_path / "figures.json"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/exports.py", "--json", figures],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}, check=False,
    )  # fmt: skip
    assert figures.exists(), done.stderr
    found = json.loads(figures.read_text())
    assert found["problems"] == {}
    assert (found["invalid"], found["metrics_missing"]) == (0, [])
    assert found["files"] > 40
    assert found["metrics_named"] > 5
