"""Eight processes that sync one repository, each with changes of its own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repogen.generations import history, state_folder
from repogen.repository import State, read_repository

SECONDS = float(os.environ.get("REPOGEN_CONCURRENT_SECONDS", "15"))
WORKERS = 8
MODEL = "class TritonPythonModel: ...\n"
ENTRY = """  m{worker}:
    source: model.py
    inputs: {{x: {{dtype: FP32, dims: [1]}}}}
    outputs: {{y: {{dtype: FP32, dims: [1]}}}}
    parameters: {{round: "{round}"}}
"""
WORKER = """
import fcntl, re, subprocess, sys, time
from pathlib import Path
worker, folder, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
end, round = time.monotonic() + seconds, 0
while time.monotonic() < end:
    round += 1
    with open(f"{folder}/edit.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # people edit one after the other; syncs do not know of this lock
        name = f"  m{worker}:"
        head, _, rest = Path(folder, "repogen.yaml").read_text().partition(name)
        Path(folder, "edited").write_text(head + name + re.sub(r'round: "[0-9]+"', f'round: "{round}"', rest, count=1))
        Path(folder, "edited").replace(Path(folder, "repogen.yaml"))
    done = subprocess.run(
        [sys.executable, "-m", "repogen", "sync", "-q", "-f", f"{folder}/repogen.yaml", "--wait", "120"],
        capture_output=True, text=True,
    )
    if done.returncode:
        print(f"worker {worker} round {round}: exit {done.returncode}: {done.stderr}", flush=True)
        sys.exit(1)
print(round)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    entries = "".join(ENTRY.format(worker=worker, round=0) for worker in range(WORKERS))
    (tmp_path / "repogen.yaml").write_text(
        f'triton: "26.08"\nrepository: served/models\ndefaults: {{instances: [{{kind: cpu}}]}}\nmodels:\n{entries}'
    )
    return tmp_path


@pytest.mark.slow
def test_eight_syncs_at_once_are_some_serial_order(folder: Path):
    begun = time.monotonic()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(worker), str(folder), str(SECONDS)], stdout=subprocess.PIPE, text=True
        )
        for worker in range(WORKERS)
    ]
    said = [worker.communicate(timeout=SECONDS + 240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * WORKERS, said
    rounds = [int(text) for text in said]
    root = folder / "served/models"
    found = read_repository(root)
    assert all(published.state is State.WHOLE for published in found.values())
    last = [
        int(re.search(r'key: "round"\s+value { string_value: "(\d+)"', found[f"m{n}"].text)[1]) for n in range(WORKERS)
    ]
    assert last == rounds
    past = history(state_folder(root))
    assert [generation.number for generation in past] == list(range(1, len(past) + 1))
    assert all(generation.state == "done" for generation in past)
    before: dict[str, int | None] = {}
    for generation in past:  # each begins where the one before it ended
        for step in generation.steps:
            assert step.before == before.get(step.name)
            before[step.name] = step.after
    assert not (state_folder(root) / "staging").exists()
    assert time.monotonic() - begun < SECONDS + 240
