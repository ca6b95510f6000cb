"""Sync a repository again and again under a real Triton that answers requests all the while.

    python benchmarks/under_fire.py [--syncs 50] [--modes explicit,poll] [--json]

Two models are asked without a pause; every answer tells which code and which config produced it. The syncs (each
the real command line, in a process of its own) change configs, code, versions, publish a model that cannot load,
and roll back. No request may fail, no answer may mix two generations, the broken one may never answer, and no
name but the models' may ever stand in the root. Prints {modes: [{mode, syncs, requests, failed, mixed,
foreign_names, ...}]}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repogen import server
from repogen.triton import Client

NAMES = ("left", "right")
CODE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

CODE = {code}

class TritonPythonModel:
    def initialize(self, args):
        self.config = float(json.loads(args["model_config"])["parameters"]["config"]["string_value"])
        {broken}

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = np.array([x[0], CODE, self.config], dtype=np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return answers
"""
ENTRY = """  {name}:
    source: {name}.py
    version: {version}
    inputs: {{x: {{dtype: FP32, dims: [1]}}}}
    outputs: {{y: {{dtype: FP32, dims: [3]}}}}
    parameters: {{config: "{config}"}}
"""


@dataclass
class State:
    """What one model's source and manifest entry say now."""

    code: int = 1
    config: int = 1
    version: int = 1
    broken: bool = False


@dataclass
class Seen:
    """What the clients and the watcher of the root saw."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    mixed: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    answers: dict[str, tuple[int, int]] = field(default_factory=dict)
    listings: int = 0


class Fire:
    """Two clients that ask without a pause, and one that lists the root, until the block ends."""

    def __init__(self, url: str, root: Path, published: dict[str, set[tuple[int, int]]]) -> None:
        self.seen = Seen()
        self._published = published
        self._over = threading.Event()
        asked = [threading.Thread(target=self._ask, args=(url, name)) for name in NAMES]
        self._threads = [*asked, threading.Thread(target=self._watch, args=(root,))]

    def __enter__(self) -> "Fire":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, url: str, name: str) -> None:
        with Client(url) as client:
            number = 0
            while not self._over.is_set():
                number += 1
                try:
                    y = client.infer(name, {"x": np.array([number % 1000], dtype=np.float32)}, deadline=20)["y"]
                except Exception as error:
                    self.seen.failed.append(f"{name}: {error}")
                    continue
                self.seen.requests += 1
                pair = (int(y[1]), int(y[2]))
                if int(y[0]) != number % 1000 or pair not in self._published[name]:
                    self.seen.mixed.add(f"{name}: {y.tolist()}")
                self.seen.answers[name] = pair

    def _watch(self, root: Path) -> None:
        while not self._over.is_set():
            self.seen.names.update(os.listdir(root))  # noqa: PTH208 - names are what is wanted
            self.seen.listings += 1
            time.sleep(0.0005)


def write(folder: Path, states: dict[str, State]) -> None:
    text = 'triton: "26.08"\nrepository: served/models\ndefaults:\n  instances: [{kind: cpu}]\nmodels:\n'
    for name, state in states.items():
        broken = "raise RuntimeError('made to fail')" if state.broken else "pass"
        (folder / f"{name}.py").write_text(CODE.format(code=state.code, broken=broken))
        text += ENTRY.format(name=name, config=state.config, version=state.version)
    (folder / "repogen.yaml").write_text(text)


def repogen(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "repogen", *arguments, "-f", str(folder / "repogen.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def play(mode: str, syncs: int, folder: Path) -> dict[str, Any]:
    """Return what one mode's run showed."""
    states = {name: State() for name in NAMES}
    published = {name: {(1, 1)} for name in NAMES}
    write(folder, states)
    done = repogen(folder, "sync")
    assert done.returncode == 0, done.stderr
    root = folder / "served" / "models"
    problems: list[str] = []
    with server.start(root, control=mode) as triton, Fire(triton.grpc, root, published) as fire:
        for number in range(syncs):
            problems += step(number, NAMES[number % 2], states, published, folder, triton.grpc, fire)
            if triton.poll() is not None:
                problems.append("the server ended")
                break
    seen = fire.seen
    foreign = sorted(seen.names - set(NAMES))
    return {
        "mode": mode, "syncs": syncs, "requests": seen.requests, "failed": len(seen.failed), "mixed": len(seen.mixed),
        "foreign_names": foreign, "listings": seen.listings,
        "problems": [*problems, *seen.failed[:5], *sorted(seen.mixed)[:5]],
    }  # fmt: skip


def step(
    number: int,
    name: str,
    states: dict[str, State],
    published: dict[str, set[tuple[int, int]]],
    folder: Path,
    url: str,
    fire: Fire,
) -> list[str]:
    """Change one model, sync, and return what did not go as it must."""
    state = states[name]
    before = State(**vars(state))
    kind = ("config", "code", "version", "broken", "rollback")[number // 2 % 5]
    if kind in ("config", "rollback"):
        state.config += 1
    if kind in ("code", "version", "broken"):
        state.code += 1
    state.version += kind == "version"
    state.broken = kind == "broken"
    if not state.broken:
        published[name].add((state.code, state.config))
    write(folder, states)
    patience = ["--url", url, "--load-timeout", "8" if state.broken else "60"]
    done = repogen(folder, "sync", *patience)
    if done.returncode != (4 if state.broken else 0):
        return [f"{number} {kind} {name}: exit {done.returncode}: {done.stderr[-300:]}"]
    if kind == "rollback":
        done = repogen(folder, "rollback", *patience)
        if done.returncode:
            return [f"{number} {kind} {name}: exit {done.returncode}: {done.stderr[-300:]}"]
    if kind in ("broken", "rollback"):
        states[name] = state = before
        write(folder, states)
    return expected(number, kind, name, (state.code, state.config), fire)


def expected(number: int, kind: str, name: str, pair: tuple[int, int], fire: Fire) -> list[str]:
    """Wait for an answer that was asked for after the sync came back: it must be of what was published."""
    del fire.seen.answers[name]
    time.sleep(0.05)  # one that was under way may have been answered by the former
    fire.seen.answers.pop(name, None)
    deadline = time.monotonic() + 10
    while name not in fire.seen.answers and time.monotonic() < deadline:
        time.sleep(0.01)
    found = fire.seen.answers.get(name)
    return [] if found == pair else [f"{number} {kind} {name}: answers {found}, not {pair}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncs", type=int, default=50)
    parser.add_argument("--modes", default="explicit,poll")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for mode in options.modes.split(","):
        with tempfile.TemporaryDirectory(prefix="repogen-fire-") as folder:
            begun = time.monotonic()
            rows.append(play(mode, options.syncs, Path(folder)) | {"seconds": round(time.monotonic() - begun, 1)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"modes": rows}, indent=1))
    return 1 if any(row["failed"] or row["mixed"] or row["foreign_names"] or row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
