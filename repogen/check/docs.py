"""Print docs/rules.md: `python -m repogen.check.docs > docs/rules.md`."""

import sys
from collections.abc import Iterator
from difflib import unified_diff

from repogen.check.all_rules import RULES
from repogen.check.rule import File, Link, Rule, Tree

_PARTS = {
    "1": "Layout and names",
    "2": "The config as a whole",
    "3": "Tensors",
    "4": "Batching and sequences",
    "5": "Instances and backends' options",
    "6": "Ensembles",
    "7": "Warm-up",
    "8": "Plans and versions",
    "9": "Security",
}
_HEAD = """\
# Rules of `repogen check`

Made from the rules themselves by `python -m repogen.check.docs`; each example is also a test of its rule.

An **error** is refused by the server, or served wrongly. A **warning** misbehaves in some cases. A **note** is advice.
Where an error of ours loads on the server all the same, "Stricter than the server" says why it is an error.
Examples are the change that mends them: `-` is found, `+` is fine.

RG920 to RG933 are about the compose and Kubernetes files by which a repository is served. They are asked with
`--profile production --deployment FILE`, where they refuse; no server reads these files.
"""


def rules_page() -> str:
    """Return the page of every rule."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "| code | severity | |\n|---|---|---|"
    yield from (f"| [{rule.code}](#{rule.code.lower()}) | {rule.severity} | {rule.title} |" for rule in RULES)
    part = ""
    for rule in RULES:
        if rule.code[2] != part:
            part = rule.code[2]
            yield f"\n## {_PARTS[part]}"
        yield from _section(rule)


def _section(rule: Rule) -> Iterator[str]:
    yield f"\n### {rule.code}\n\n**{rule.title}** ({rule.severity}). {rule.why}"
    if rule.stricter:
        yield f"\nStricter than the server: {rule.stricter}."
    if rule.server != "embedded":
        yield f"\nThe example is for `--server {rule.server}`."
    if example := list(_example(rule.bad, rule.good)):
        yield "\n```diff"
        yield from example
        yield "```"


def _example(bad: Tree, good: Tree) -> Iterator[str]:
    """Return the files that differ between the two, as a diff from the bad to the good one."""
    for name in dict.fromkeys((*bad, *good)):
        before, after = _text(bad.get(name)), _text(good.get(name))
        if before is after or (before == after and not callable(before)):
            continue
        if isinstance(before, str) and isinstance(after, str) and not name.endswith("/"):
            changes = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
            yield f"  {name}"
            yield from (line for line in changes if not line.startswith(("---", "+++", "@@")))
        else:
            yield from (f"- {name}{_kind(before)}" for _ in range(before is not None))
            yield from (f"+ {name}{_kind(after)}" for _ in range(after is not None))


def _text(content: object) -> object:
    """Return a config that is given as bytes as text, what is not UTF-8 escaped."""
    if isinstance(content, bytes) and content.startswith(b"name:"):
        return content.decode(errors="backslashreplace")
    return content


def _kind(content: object) -> str:
    if isinstance(content, Link):
        return f" -> {content.to}"
    if isinstance(content, File):
        return f" (mode {content.mode:04o})"
    return ""


if __name__ == "__main__":
    sys.stdout.write(rules_page())
