"""The shape of a rule: a pure question about a model, and the two examples that document and test it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from repogen.check.findings import Severity
from repogen.check.subject import Subject

Scope = Literal["config", "model", "entry", "root", "deployment"]
"""How often a rule is asked, and with what `subject.model`:

config  each model whose config.pbtxt could be parsed (`model.config` is set)
model   each folder of the root, which the server takes for a model, whatever is in it
entry   each entry of the root: folders, files and links
root    once; `model` is the root itself, nameless
deployment  each container of the compose and Kubernetes files beside (`subject.service` is set); `--profile production`
"""


@dataclass(frozen=True)
class Link:
    """A symbolic link of an example."""

    to: str


@dataclass(frozen=True)
class File:
    """A file or folder of an example that has a mode of its own."""

    content: str
    mode: int


Tree = Mapping[str, "str | bytes | Callable[[], bytes] | Link | File"]
"""A repository as data: relative path -> contents. A path that ends with `/` is a folder."""


@dataclass(frozen=True)
class Problem:
    """What a rule says of one place: a field of the config (`input[0].dims`), or a `file` relative to the model.

    `severity` is the rule's own unless set here.
    """

    message: str
    field: str = ""
    hint: str = ""
    file: str = ""
    line: int = 0
    severity: Severity | None = None


Check = Callable[[Subject], Iterable[Problem]]


@dataclass(frozen=True)
class Rule:
    """`bad` yields the code, `good` does not; both are checked against the server `server`.

    `stricter` says why this is an error although the server loads the model. `why` is for docs/rules.md.
    """

    code: str
    severity: Severity
    title: str
    why: str
    check: Check
    bad: Tree
    good: Tree
    scope: Scope = "config"
    server: str = "embedded"
    stricter: str = ""
