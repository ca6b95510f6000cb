"""ONNX's own backend suite through repogen and the real embedded Triton: fixed samples of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from tests.serverkit import needs_server

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def suite(tmp_path, *arguments):
    """Run the suite's program; return its summary."""
    command = [
        sys.executable,
        BENCHMARKS / "onnx_suite.py",
        "--state",
        tmp_path / "state",
        "--json",
        tmp_path / "s.json",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    return summary


def check(summary, models):
    assert summary["models"] == models
    assert summary["wrong"] == summary["crashed"] == 0
    assert summary["served_right"] + summary["refused"] == models
    assert summary["served_right"] >= 0.97 * summary["ort_right"]
    assert sum(summary["reasons"].values()) == summary["refused"]
    assert all(summary["reasons"])


@needs_server[0]
@needs_server[1]
def test_a_hundred_and_fifty_models_and_a_run_that_goes_on(tmp_path):
    check(suite(tmp_path, "--sample", "150", "--samples", tmp_path / "each.jsonl"), 150)
    assert len((tmp_path / "each.jsonl").read_text().splitlines()) == 150
    done = (tmp_path / "state").stat().st_mtime_ns, sorted((tmp_path / "state").iterdir())
    check(suite(tmp_path, "--sample", "150"), 150)  # all of it was done: nothing runs again
    assert done == ((tmp_path / "state").stat().st_mtime_ns, sorted((tmp_path / "state").iterdir()))


def test_the_folders_of_the_suite_are_in_it():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("suite_cases", BENCHMARKS / "suite_cases.py")
        cases = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cases)
        names = [case.name for case in cases.suite()]
    finally:
        sys.path.remove(str(BENCHMARKS))
    assert len(names) == len(set(names))
    kinds = {name.split(".")[0] for name in names}
    assert kinds == {"node", "simple", "pytorch-converted", "pytorch-operator"}
    assert sum(name.startswith("node.") for name in names) >= 1884
