"""Interrupt and kill `repogen tune` in each of its phases; the server's config must come back, trials must stay.

JSON on the last line: phases: [{phase, signal, restored, trials_kept}]; `restored` after SIGKILL is by the next run.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sleeper

from repogen import server
from repogen.triton import Client
from repogen.tune.journal import Journal

MANIFEST = """\
triton: "26.08"
repository: models
models:
  sleeper:
    source: sleeper.py
    backend: python
    max_batch_size: 16
    instances: [{kind: cpu}]
    inputs: {x: {dtype: FP32, dims: [4]}}
    outputs: {y: {dtype: FP32, dims: [4]}}
    dynamic_batching: {max_queue_delay: 5ms}
    tune: {slo: {p99: 8s}, rate: 500/s, instances: 2}
"""
PATIENCE = 240.0


class Stage:
    """A project in a folder, its server, and what is looked at from outside."""

    def __init__(self, folder: Path, triton: server.Embedded, client: Client) -> None:
        self.folder, self.triton, self.client = folder, triton, client
        self.journal = Journal(folder / ".repogen" / "models" / "tune" / "sleeper.jsonl")
        self.before = client.config(sleeper.NAME)

    def start(self, *more: str) -> "subprocess.Popen[bytes]":
        words = ["tune", "-f", str(self.folder / "repogen.yaml"), "--url", self.triton.grpc, *more]
        return subprocess.Popen(
            [sys.executable, "-m", "repogen", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.journal.entries()]

    def changed(self) -> bool:
        return bool(self.client.config(sleeper.NAME) != self.before)


PHASES: dict[str, Callable[[Stage], bool]] = {
    "borrowing": lambda stage: "borrowed" in stage.kinds(),
    "first calibration": lambda stage: "served" in stage.kinds() and stage.changed(),
    "second calibration": lambda stage: stage.kinds().count("calibration") == 1,
    "first trial": lambda stage: stage.kinds().count("calibration") == 2 and stage.changed(),
    "after a trial": lambda stage: "trial" in stage.kinds(),
}


def wait(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def fault(stage: Stage, phase: str, number: signal.Signals) -> dict[str, Any]:
    """Send `number` in `phase`, run tune once more, and say what became of the config and the trials."""
    stage.journal.path.unlink(missing_ok=True)
    process = stage.start()
    reached = wait(lambda: PHASES[phase](stage), process)
    begun = time.monotonic()
    if reached:
        process.send_signal(number)
    process.wait(PATIENCE)
    ended = time.monotonic() - begun
    trials = stage.kinds().count("trial")
    at_once = not stage.changed()
    again = stage.start("--budget", "3 runs")
    again.wait(PATIENCE)
    restored = not stage.changed() and stage.journal.borrowed() is None
    return {
        "phase": phase,
        "signal": number.name,
        "reached": reached,
        "restored": restored and (at_once or number == signal.SIGKILL),
        "restored_by": "itself" if at_once and number != signal.SIGKILL else "the next run",
        "trials_kept": stage.kinds().count("trial") >= trials,
        "trials": trials,
        "ended_after_s": round(ended, 2),
        "exit": process.returncode,
    }


def second_signal(stage: Stage) -> dict[str, Any]:
    """Two interrupts, 10 ms apart: the process must be gone at once, and the next run must put things right."""
    stage.journal.path.unlink(missing_ok=True)
    process = stage.start()
    reached = wait(lambda: PHASES["first calibration"](stage), process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    process.wait(PATIENCE)
    ended = time.monotonic() - begun
    again = stage.start("--budget", "3 runs")
    again.wait(PATIENCE)
    restored = not stage.changed() and stage.journal.borrowed() is None
    return {
        "phase": "first calibration",
        "signal": "SIGINT twice",
        "reached": reached,
        "restored": restored,
        "trials_kept": True,
        "ended_after_s": round(ended, 2),
        "exit": process.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*PHASES, "twice"], help="one phase; a row takes about a minute")
    only = parser.parse_args().only
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sleeper.py").write_text(sleeper.MODEL)
        (folder / "repogen.yaml").write_text(MANIFEST)
        subprocess.run([sys.executable, "-m", "repogen", "sync", "-f", str(folder / "repogen.yaml")], check=True)
        with server.start(folder / "models") as triton, Client(triton.grpc) as client:
            stage = Stage(folder, triton, client)
            for phase in [name for name in PHASES if only in (None, name)]:
                for number in (signal.SIGINT, signal.SIGKILL):
                    rows.append(fault(stage, phase, number))
                    print(rows[-1], flush=True)
            if only in (None, "twice"):
                rows.append(second_signal(stage))
    print(json.dumps({"phases": rows}))
    sys.exit(0 if all(row["restored"] and row["trials_kept"] and row["reached"] for row in rows) else 1)


if __name__ == "__main__":
    main()
