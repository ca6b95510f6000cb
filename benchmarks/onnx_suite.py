"""Put ONNX's own backend suite through repogen and the real embedded Triton, and compare with its expected answers.

    python benchmarks/onnx_suite.py --sample 150          a fixed sample
    python benchmarks/onnx_suite.py --shard 0/4           a quarter of the suite; run again, it goes on where it was

Each model is read, proved and rendered as `repogen inspect` does it. What Triton can serve is served, in batches, and
must give the suite's answers within the suite's tolerances; everything else is refused with one reason. "ort_right"
are the models that ONNX Runtime answers rightly by itself, with tensor types that Triton has. Exit 1 when a served
model answers wrong or a server or a child dies.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import suite_cases
import suite_server
from suite_cases import Case

from repogen.cache import cache_folder

_QUOTED = re.compile(r"'[^']*'")
_TOGETHER = 48  # models a server


@dataclass(frozen=True)
class Outcome:
    """What became of one model: `served`, `refused`, `wrong` or `crashed`, and why."""

    case: str
    result: str
    reason: str = ""
    ort_right: bool = False


def main() -> int:
    options = _options()
    cases = _chosen(options)
    state = _State(options)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="repogen-suite-") as scratch:
        todo = [case for case in cases if case.name not in state.done]
        _say(f"{len(cases)} models, {len(cases) - len(todo)} of them done before")
        ready = []
        for case in todo:
            found = suite_cases.analysed(case, Path(scratch) / "models" / case.name)
            if found.model is None:
                state.add(Outcome(case.name, found.result, found.reason, found.ort_right))
            else:
                ready.append(found)
        _say(f"{len(todo) - len(ready)} refused, {len(ready)} to serve, {time.perf_counter() - begun:.0f} s")
        for start in range(0, len(ready), _TOGETHER):
            group = ready[start : start + _TOGETHER]
            for name, result, reason in suite_server.served(group, Path(scratch)):
                state.add(Outcome(name, result, reason, ort_right=True))
            _say(f"{start + len(group)} of {len(ready)} served, {time.perf_counter() - begun:.0f} s")
    outcomes = [state.done[case.name] for case in cases]
    summary = _summary(outcomes)
    _print(summary)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 1 if summary["wrong"] or summary["crashed"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="only so many models, spread evenly over the suite")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th model, from the i-th on")
    parser.add_argument("--json", type=Path, help="write the summary there")
    parser.add_argument("--samples", type=Path, help="write one JSON line a model there")
    parser.add_argument("--state", type=Path, help="folder of what was done before; by default in repogen's cache")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--only", help="only models whose name has this in it")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[Case]:
    cases = suite_cases.suite()
    if options.only:
        cases = [case for case in cases if options.only in case.name]
    if options.sample and options.sample < len(cases):
        step = len(cases) / options.sample
        cases = [cases[int(index * step)] for index in range(options.sample)]
    part, parts = (int(number) for number in options.shard.split("/"))
    return cases[part::parts]


class _State:
    """What was found of each model, one JSON line each, so that a run that was stopped can go on."""

    def __init__(self, options: argparse.Namespace) -> None:
        folder = options.state or cache_folder() / "onnx_suite"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{options.shard.replace('/', '-of-')}.jsonl"
        self._samples = options.samples
        if options.fresh:
            self._path.unlink(missing_ok=True)
        self.done = {outcome.case: outcome for outcome in self._read()}
        if self._samples:
            self._samples.write_text("".join(f"{json.dumps(asdict(found))}\n" for found in self.done.values()))

    def _read(self) -> Iterator[Outcome]:
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            if line.endswith("}"):  # else it was being written when the run was stopped
                yield Outcome(**json.loads(line))

    def add(self, outcome: Outcome) -> None:
        self.done[outcome.case] = outcome
        for path in filter(None, (self._path, self._samples)):
            with path.open("a") as file:
                file.write(f"{json.dumps(asdict(outcome))}\n")


def _summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    results = Counter(outcome.result for outcome in outcomes)
    reasons = Counter(_kind(outcome.reason) for outcome in outcomes if outcome.result == "refused")
    unserved = [outcome for outcome in outcomes if outcome.ort_right and outcome.result != "served"]
    return {
        "models": len(outcomes),
        "ort_right": sum(outcome.ort_right for outcome in outcomes),
        "served_right": results["served"],
        "refused": results["refused"],
        "wrong": results["wrong"],
        "crashed": results["crashed"],
        "reasons": dict(reasons.most_common()),
        "exceptions": {outcome.case: f"{outcome.result}: {outcome.reason}" for outcome in unserved},
    }


def _kind(reason: str) -> str:
    """Return a reason without the names in it."""
    return re.sub(r"\d+", "N", _QUOTED.sub("…", reason)).strip()[:140]


def _print(summary: dict[str, Any]) -> None:
    right, served = summary["ort_right"], summary["served_right"]
    rows = [
        ("models", summary["models"]),
        ("ONNX Runtime right, types that Triton has", right),
        ("served and right", f"{served}  ({served / right:.1%} of those)" if right else served),
        ("wrong", summary["wrong"]),
        ("crashed", summary["crashed"]),
        ("refused", summary["refused"]),
        *((f"  {reason}", count) for reason, count in summary["reasons"].items()),
    ]
    for what, count in rows:
        print(f"{what:<100} {count}")
    for case, reason in summary["exceptions"].items():
        print(f"not served although ONNX Runtime is right: {case}: {reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
