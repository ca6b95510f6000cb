"""`check` against the real tritonserver: a sample of benchmarks/check_agreement.py."""

import random
import sys
from pathlib import Path

import pytest

from tests.serverkit import needs_server

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import check_agreement
from agreement.bases import BASES
from agreement.cases import CASES, OWN_SERVER, SLOW
from agreement.mutate import mutations

WRITTEN, MUTATED = 120, 100
"""The sample: small enough for a minute, another one with each seed."""


@pytest.fixture
def quick_cases():
    written = {**check_agreement.examples(), **CASES}
    slow = {*SLOW, *OWN_SERVER, *(name for name in written if name.startswith(("RG101", "RG102", "RG106", "RG110")))}
    quick = sorted(set(written) - slow)
    chosen = random.Random(7).sample(quick, WRITTEN)
    changed = {name: tree for name, tree in mutations(BASES, MUTATED * 2, 7) if not name.endswith(":folder")}
    return {**{name: written[name] for name in chosen}, **dict(list(changed.items())[:MUTATED])}


@pytest.mark.parametrize("name", sorted(BASES))
def test_the_bases_of_the_mutations_have_no_error(name):
    assert [it for it in check_agreement.checked(BASES[name]) if it.severity == "error"] == []


def test_mutations_are_the_same_for_the_same_seed_and_change_something():
    assert dict(mutations(BASES, 50, 3)) == dict(mutations(BASES, 50, 3))
    assert dict(mutations(BASES, 50, 3)) != dict(mutations(BASES, 50, 4))
    changed = sum(tree != BASES[name.split(":")[1]] for name, tree in mutations(BASES, 50, 3))
    assert changed > 40


@pytest.mark.slow
class TestServer:
    pytestmark = needs_server

    def test_check_has_an_error_exactly_where_the_server_refuses(self, quick_cases):
        outcomes = check_agreement.judge_all(quick_cases, servers=6, progress=False)
        assert len(outcomes) == WRITTEN + MUTATED
        assert [(it.name, it.verdict.reason) for it in outcomes if it.missed] == []
        stricter = check_agreement.stricter_rules(outcomes)
        assert check_agreement.unexplained(stricter) == []
        assert len(stricter) <= check_agreement.MOST_STRICTER
        assert sum(it.verdict.loaded for it in outcomes) > 50  # or the server is not judging
        assert sum(not it.verdict.loaded for it in outcomes) > 50
