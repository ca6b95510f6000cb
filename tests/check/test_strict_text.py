"""What only Python's parser lets pass is found all the same."""

import re

import pytest

from repogen.check.strict_text import minus_zeros, strict_error
from repogen.check.subject import read_repository


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a: "\\q"', r"\\q is no escape"),
        ("\n a: '\\u12'", r"\\u is no escape"),
        ('a: "\\x"', r"\\x is no escape"),
        ("a: +5", "no '\\+'"),
        ("a:\u00a0 5", "outside a string"),
        ("é: 5", "outside a string"),
    ],
)
def test_refused(text, message):
    found = strict_error(text)
    assert found is not None
    assert re.search(message, found[0])
    assert found[1] == text.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    ['a: "\\n\\t\\"\\\\ \\x41 \\101 \\u00e9 \\U0001F600 é"', "# + é \\q\na: -5", "a: 1", ""],
)
def test_let_pass(text):
    assert strict_error(text) is None


def test_minus_zero_becomes_a_minus_that_every_parser_refuses():
    assert minus_zeros('a: -0 b: "-0" c: -0x0 d: -05') == 'a : -1 b : "-0" c : -1 d : -05'
    assert minus_zeros("a: -5 b: 10") == "a: -5 b: 10"


@pytest.mark.parametrize(
    ("line", "parses"),
    [
        ("dynamic_batching { max_queue_delay_microseconds: -0 }", False),
        ("optimization { graph { level: -0 } }", True),
        ("optimization { priority: 99999999999 }", False),
        ("# a comment with é and \\q", True),
    ],
)
def test_the_whole_config_is_judged_so(line, parses, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text(line, encoding="utf-8")
    model = read_repository(tmp_path).models["m"]
    assert (model.error is None) == parses
    assert (model.config is not None) == parses
