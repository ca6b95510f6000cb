"""Replace the models of an ensemble under a real Triton that answers requests all the while.

    python benchmarks/pipeline_fire.py [--rounds 10] [--json FILE]

The ensemble calls two models; each answer tells which generation of each made it. Each round replaces both (a new
version of each, the former kept loaded) or one of them in place, by a sync in a process of its own. No request may
fail, no answer may be of two generations, and each client sees the old and then the new: never the old again. Prints
{rounds, requests, failed, mixed, went_back, refused_unsafe}.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from repogen import server
from repogen.triton import Client

NAMES = ("first", "second")
CLIENTS = 4
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        made = [np.concatenate([x, np.full((len(x), 1), {generation}, np.float32)], axis=1) for x in given]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]) for y in made]
"""
HEAD = 'triton: "26.08"\nrepository: served/models\ndefaults:\n  instances: [{kind: cpu}]\nmodels:\n'
ENTRY = """  {name}:
    source: {name}.py
    version: {version}
    max_batch_size: 8
    inputs: {{x: {{dtype: FP32, dims: [{size}]}}}}
    outputs: {{y: {{dtype: FP32, dims: [{more}]}}}}
    versions: {{{policy}}}
"""
ENSEMBLE = """  both:
    backend: ensemble
    steps:
      - {model: first, inputs: {x: x}, outputs: {y: between}}
      - {model: second, inputs: {x: between}, outputs: {y: y}}
"""


@dataclass
class State:
    generation: int = 1
    version: int = 1


@dataclass
class Seen:
    requests: int = 0
    failed: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)  # each change of what was answered
    wrong: int = 0


class Fire:
    """Clients that ask the ensemble without a pause until the block ends."""

    def __init__(self, url: str) -> None:
        self._over = threading.Event()
        self.seen = [Seen() for _ in range(CLIENTS)]
        self._threads = [threading.Thread(target=self._ask, args=(url, seen)) for seen in self.seen]

    def __enter__(self) -> "Fire":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, url: str, seen: Seen) -> None:
        with Client(url) as client:
            while not self._over.is_set():
                number = seen.requests % 1000
                try:
                    answer = client.infer("both", {"x": np.array([[number]], np.float32)}, deadline=20)["y"][0]
                except Exception as error:
                    seen.failed.append(str(error))
                    continue
                seen.requests += 1
                seen.wrong += int(answer[0]) != number
                pair = (int(answer[1]), int(answer[2]))
                if not seen.pairs or seen.pairs[-1] != pair:
                    seen.pairs.append(pair)


def write(folder: Path, states: dict[str, State], policy: str = "latest: 2") -> None:
    text = HEAD
    for size, (name, state) in enumerate(states.items(), start=1):
        (folder / f"{name}.py").write_text(CODE.format(generation=state.generation))
        text += ENTRY.format(name=name, version=state.version, size=size, more=size + 1, policy=policy)
    (folder / "repogen.yaml").write_text(text + ENSEMBLE)


def sync(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "repogen", "sync", *arguments, "-f", str(folder / "repogen.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def play(rounds: int, folder: Path) -> dict[str, object]:
    states = {name: State() for name in NAMES}
    write(folder, states)
    assert (done := sync(folder)).returncode == 0, done.stderr
    published = [(1, 1)]
    problems = []
    refused = False
    with server.start(folder / "served" / "models") as triton, Fire(triton.grpc) as fire:
        for number in range(rounds):
            if number % 2 == 0:  # both, each in a new version
                for state in states.values():
                    state.generation, state.version = state.generation + 1, state.version + 1
            else:  # one, in the version that it has
                states[NAMES[number // 2 % 2]].generation += 1
            write(folder, states)
            done = sync(folder, "--url", triton.grpc)
            published.append((states["first"].generation, states["second"].generation))
            if done.returncode:
                problems.append(f"{number}: exit {done.returncode}: {done.stderr[-400:]}")
        unsafe = {name: State(state.generation + 1, state.version) for name, state in states.items()}
        write(folder, unsafe)  # both in place: nothing keeps the former
        refused = sync(folder, "--url", triton.grpc).returncode == 1
    return summary(rounds, fire, published, problems, refused)


def summary(
    rounds: int, fire: Fire, published: list[tuple[int, int]], problems: list[str], refused: bool
) -> dict[str, object]:
    order = {pair: place for place, pair in enumerate(published)}
    places = [[order[pair] for pair in seen.pairs if pair in order] for seen in fire.seen]
    mixed = {pair for seen in fire.seen for pair in seen.pairs if pair not in order}
    return {
        "rounds": rounds,
        "requests": sum(seen.requests for seen in fire.seen),
        "failed": sum(len(seen.failed) for seen in fire.seen),
        "mixed": len(mixed),
        "went_back": sum(row != sorted(row) for row in places),
        "wrong": sum(seen.wrong for seen in fire.seen),
        "refused_unsafe": refused,
        "problems": [*problems, *(text for seen in fire.seen for text in seen.failed[:2]), *map(str, sorted(mixed))][
            :8
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repogen-fire-") as folder:
        found = play(options.rounds, Path(folder))
    print("  ".join(f"{key} {value}" for key, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    bad = ("failed", "mixed", "went_back", "wrong", "problems")
    return 1 if any(found[key] for key in bad) or not found["refused_unsafe"] else 0


if __name__ == "__main__":
    sys.exit(main())
