"""Compare what should be served with what a repository holds. Pure."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repogen import pbtxt
from repogen.model import ServedModel
from repogen.render import model_files, render
from repogen.repository import Published, State

_ORDER = ("create", "rewrite", "keep", "drifted", "foreign", "remove")
WRITES = ("create", "rewrite")


@dataclass(frozen=True)
class Change:
    """What happens to one model, and why; `diff` is of `config.pbtxt`.

    `keep` writes nothing. `drifted` (edited by hand) and `foreign` (not ours) stop a sync that would
    overwrite them. `remove` is in the repository but not in the manifest.
    """

    name: str
    action: str
    reason: str
    config: str = ""
    diff: str = ""
    model: ServedModel | None = None


@dataclass(frozen=True)
class Plan:
    """What a sync would do, model by model, sorted by name."""

    repository: Path
    changes: tuple[Change, ...]

    @property
    def writes(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action in WRITES)

    @property
    def blocked(self) -> tuple[Change, ...]:
        """Models of the manifest whose folder would have to be overwritten although repogen did not write it so."""
        return tuple(change for change in self.changes if change.model and change.action not in (*WRITES, "keep"))

    @property
    def bytes_to_write(self) -> int:
        return sum(file.size for change in self.writes if change.model for file in change.model.files)

    def counts(self) -> dict[str, int]:
        found = [change.action for change in self.changes]
        return {action: found.count(action) for action in _ORDER if action in found}


def make_plan(
    desired: Sequence[ServedModel], existing: Mapping[str, Published], root: Path, *, overwrite: bool = False
) -> Plan:
    """Return the plan that turns `existing` into `desired`.

    `overwrite` rewrites folders that were edited by hand or are not ours. Raises RenderError.
    """
    changes = [_change(model, existing.get(model.name), overwrite=overwrite) for model in desired]
    names = {model.name for model in desired}
    changes += [_left_over(published) for name, published in existing.items() if name not in names]
    return Plan(root, tuple(sorted(changes, key=lambda change: change.name)))


def _change(model: ServedModel, published: Published | None, *, overwrite: bool) -> Change:
    config = render(model)
    if published is None:
        return Change(model.name, "create", f"{model.source} is not in the repository", config, "", model)
    diff = _diff(published.text, config, model.name)
    if published.state in (State.DRIFTED, State.FOREIGN) and not overwrite:
        edited = published.state is State.DRIFTED
        reason = "edited by hand since it was published" if edited else "not written by repogen"
        return Change(model.name, published.state.value, reason, config, diff, model)
    if published.state is State.PARTIAL:
        return Change(model.name, "create", "only its config.pbtxt is there", config, diff, model)
    if published.text == config and published.state is State.WHOLE:
        return Change(model.name, "keep", "nothing changed", config, "", model)
    return Change(model.name, "rewrite", _why(model, published, config), config, diff, model)


def _why(model: ServedModel, published: Published, config: str) -> str:
    if published.state is not State.WHOLE:
        return f"{published.state.value}, overwritten as asked"
    wanted = model_files(model)
    altered = sorted(
        name for name in wanted.keys() | published.files.keys() if wanted.get(name) != published.files.get(name)
    )
    fields = _altered_fields(published.text, config)
    parts = [f"{', '.join(altered)} changed"] if altered else []
    parts += [f"config: {', '.join(fields)}"] if fields else []
    return "; ".join(parts) or "rendered differently"


def _altered_fields(before: str, after: str) -> list[str]:
    old: Any = pbtxt.parse(before)
    new: Any = pbtxt.parse(after)
    for config in (old, new):
        config.parameters.pop(pbtxt.FINGERPRINT, None)
    fields = {field.name for field, _ in (*old.ListFields(), *new.ListFields())}
    return sorted(field for field in fields if getattr(old, field) != getattr(new, field))


def _left_over(published: Published) -> Change:
    if published.state is State.FOREIGN:
        return Change(published.name, "foreign", "not written by repogen, left alone")
    return Change(published.name, "remove", "no longer in the manifest, kept")


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        f"{name}/config.pbtxt (now)",
        f"{name}/config.pbtxt (planned)",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)
