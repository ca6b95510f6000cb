"""Each rule's two examples are its tests."""

import pytest

from repogen.check.all_rules import RULES
from repogen.check.engine import check_repository
from repogen.check.examples import write_tree
from repogen.check.target import target_of


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_bad_example_is_found_and_the_good_one_is_not(rule, tmp_path):
    target = target_of(rule.server)
    found = [it for it in check_repository(write_tree(tmp_path / "bad", rule.bad), target) if it.code == rule.code]
    assert found
    assert {it.severity for it in found} == {rule.severity}
    assert all(it.message and it.where for it in found)
    after = check_repository(write_tree(tmp_path / "good", rule.good), target)
    assert [it for it in after if it.code == rule.code] == []


def test_codes_are_unique_and_say_their_part():
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))
    assert all(code.startswith("RG") and code[2:].isdigit() and len(code) == 5 for code in codes)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_good_example_has_no_error_at_all(rule, tmp_path):
    found = check_repository(write_tree(tmp_path / "good", rule.good), target_of(rule.server))
    assert [it for it in found if it.severity == "error"] == []
