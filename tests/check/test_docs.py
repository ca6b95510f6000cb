"""docs/rules.md is made from the rules."""

from pathlib import Path

from repogen.check.all_rules import RULES
from repogen.check.docs import rules_page

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == rules_page(), "python -m repogen.check.docs > docs/rules.md"


def test_every_rule_has_its_section_with_an_example():
    page = rules_page()
    for rule in RULES:
        section = page.split(f"\n### {rule.code}\n")[1].split("\n### ")[0]
        assert rule.title in section
        assert "```diff" in section
        assert (rule.stricter in section) if rule.stricter else ("Stricter" not in section)


def test_a_stricter_rule_is_an_error():
    assert all(rule.severity == "error" for rule in RULES if rule.stricter)
