"""Does `repogen check` find an error exactly where the real tritonserver refuses to load?

Hundreds of small repositories (each rule's examples, boundary cases, seeded mutations) are checked by repogen and
loaded by the tritonserver 2.51 of the nvidia-pytriton wheel, one after another, over gRPC.

    python benchmarks/check_agreement.py --json agreement.json --samples agreement.jsonl
"""

import argparse
import json
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agreement.bases import BASES
from agreement.cases import CASES, OWN_SERVER
from agreement.judge import NEVER_READY, Judge, Verdict, starts
from agreement.mutate import mutations

from repogen.check.all_rules import RULES
from repogen.check.engine import check_repository
from repogen.check.examples import write_tree
from repogen.check.findings import Finding
from repogen.check.rule import Tree
from repogen.check.target import target_of

MOST_STRICTER = 15
PATIENCE = 60.0
_UNJUDGED = frozenset({"RG506", "RG507"})
"""Rules whose examples start more processes than a machine may have room for."""


@dataclass(frozen=True)
class Outcome:
    """One repository: what repogen found, and what the server did."""

    name: str
    errors: tuple[str, ...]
    verdict: Verdict

    @property
    def missed(self) -> bool:
        return not self.errors and not self.verdict.loaded

    @property
    def stricter(self) -> bool:
        return bool(self.errors) and self.verdict.loaded


def examples() -> dict[str, Tree]:
    """Return the two examples of each rule that is about the embedded server."""
    found = {}
    for rule in RULES:
        on_it = rule.server == "embedded" and rule.scope != "deployment"  # no server reads the files that start it
        if on_it and rule.code not in _UNJUDGED and all(map(_judged, (rule.bad, rule.good))):
            found[f"{rule.code} bad"] = rule.bad
            found[f"{rule.code} good"] = rule.good
    return found


def _judged(tree: Tree) -> bool:
    """Return whether no model of the tree is for a backend that the embedded server lacks."""
    texts = [content for name, content in tree.items() if name.endswith("config.pbtxt") and isinstance(content, str)]
    return not any("onnx" in text or "tensorrt" in text for text in texts)


def checked(tree: Tree) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="repogen-check-") as folder:
        return check_repository(write_tree(Path(folder) / "repository", tree), target_of("embedded"))


def judge_all(cases: Mapping[str, Tree], servers: int, progress: bool) -> list[Outcome]:
    """Check and load every case, on `servers` servers at a time: an unload sleeps for a second."""
    with ExitStack() as stack, ThreadPoolExecutor(servers) as pool:
        free: queue.Queue[Judge] = queue.Queue()
        for _ in range(servers):
            free.put(stack.enter_context(Judge()))

        def one(name: str) -> Outcome:
            tree = cases[name]
            errors = tuple(sorted({found.code for found in checked(tree) if found.severity == "error"}))
            if name in OWN_SERVER or name.startswith(("RG101", "RG102")):
                return Outcome(name, errors, starts(tree))
            judge = free.get()
            try:
                verdict = judge.loads(tree)
                if not errors and verdict.reason.startswith(NEVER_READY):
                    verdict = judge.loads(tree, deadline=PATIENCE)  # a busy machine is no refusal
                return Outcome(name, errors, verdict)
            finally:
                free.put(judge)

        outcomes = []
        try:
            for number, outcome in enumerate(pool.map(one, cases), start=1):
                outcomes.append(outcome)
                if progress:
                    _tell(number, len(cases), outcome)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # else Ctrl-C waits for every case that is left
            raise
        return outcomes


def _tell(number: int, total: int, outcome: Outcome) -> None:
    if outcome.missed:
        print(f"MISSED {outcome.name}: {outcome.verdict.reason}", file=sys.stderr, flush=True)
    if number % 50 == 0:
        print(f"{number} of {total}", file=sys.stderr, flush=True)


def stricter_rules(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Return how many loaded repositories each rule alone, or with other stricter ones, calls wrong."""
    return Counter(code for outcome in outcomes if outcome.stricter for code in outcome.errors)


def unexplained(stricter: Iterable[str]) -> list[str]:
    """Return the rules that were stricter than the server and do not say why they are."""
    reasons = {rule.code: rule.stricter for rule in RULES}
    return [code for code in stricter if not reasons.get(code)]


def print_table(outcomes: Sequence[Outcome]) -> None:
    cells = Counter((bool(outcome.errors), outcome.verdict.loaded) for outcome in outcomes)
    print(f"{'':24}{'server loads':>14}{'server refuses':>16}")
    for has_errors, label in ((False, "check: no error"), (True, "check: error")):
        print(f"{label:24}{cells[has_errors, True]:>14}{cells[has_errors, False]:>16}")
    reasons = {rule.code: rule for rule in RULES}
    print("\nStricter than the server, by rule:")
    for code, count in sorted(stricter_rules(outcomes).items()):
        print(f"  {code}  {count:>4}  {reasons[code].title}: {reasons[code].stricter or 'NO REASON GIVEN'}")
    for outcome in outcomes:
        if outcome.missed:
            print(f"MISSED {outcome.name}: {outcome.verdict.reason}")


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    stricter = stricter_rules(outcomes)
    return {
        "repositories": len(outcomes),
        "agree": sum(not outcome.missed and not outcome.stricter for outcome in outcomes),
        "stricter": len(stricter),
        "missed": sum(outcome.missed for outcome in outcomes),
        "stricter_rules": dict(sorted(stricter.items())),
        "stricter_repositories": sum(outcome.stricter for outcome in outcomes),
    }


def _write_samples(path: Path, outcomes: Sequence[Outcome], cases: Mapping[str, Tree]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for outcome in outcomes:
            tree = {name: text for name, text in cases[outcome.name].items() if name.endswith("config.pbtxt")}
            row = {
                "name": outcome.name,
                "errors": outcome.errors,
                "loaded": outcome.verdict.loaded,
                "reason": outcome.verdict.reason,
                "configs": {name: text if isinstance(text, str) else repr(text) for name, text in tree.items()},
            }
            file.write(json.dumps(row) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=int, default=5, help="tritonservers at a time")
    parser.add_argument("--only-mutations", action="store_true", help="leave the written cases out")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--samples", type=Path, help="write every case and its outcome here, one JSON a line")
    options = parser.parse_args()
    cases: dict[str, Tree] = {} if options.only_mutations else {**examples(), **CASES}
    written = len(cases)
    cases.update(mutations(BASES, options.mutations, options.seed))
    print(f"{written} written repositories, {options.mutations} mutations (seed {options.seed})", file=sys.stderr)
    begun = time.monotonic()
    outcomes = judge_all(cases, options.servers, progress=True)
    print_table(outcomes)
    counts = summary(outcomes)
    print(f"\n{json.dumps(counts)}\n{time.monotonic() - begun:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    if options.samples:
        _write_samples(options.samples, outcomes, cases)
    broken = unexplained(stricter_rules(outcomes))
    if broken:
        print(f"stricter without a reason: {', '.join(broken)}", file=sys.stderr)
    stricter = len(stricter_rules(outcomes))
    return 1 if counts["missed"] or broken or stricter > MOST_STRICTER else 0


if __name__ == "__main__":
    sys.exit(main())
