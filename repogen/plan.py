"""Compare what should be served with what a repository holds. Pure, but for a look at sizes."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repogen.fingerprint import model_files
from repogen.model import ModelFile, ServedModel
from repogen.rendered import rendered
from repogen.repository import VERSION, Published, State, Stray, fingerprint_of

_ORDER = ("create", "rebuild", "rewrite", "keep", "drifted", "foreign", "remove")
Arranged = Callable[[ServedModel], ServedModel]
WRITES = ("create", "rebuild", "rewrite")
UNASKED = 0.3
"""The share of a repository's models that may go without a second yes."""


@dataclass(frozen=True)
class Change:
    """What happens to one model, and why; `diff` is of `config.pbtxt`.

    `keep` writes nothing. `rebuild` builds a file first. `drifted` (edited by hand) and `foreign` (not ours) stop
    a sync that would overwrite them. `remove` is in the repository but not in the manifest, and goes with --prune.
    """

    name: str
    action: str
    reason: str
    config: str = ""
    diff: str = ""
    model: ServedModel | None = None
    alters: bool = True  # whether it may answer otherwise than before


@dataclass(frozen=True)
class Plan:
    """What a sync would do, model by model, sorted by name."""

    repository: Path
    changes: tuple[Change, ...]
    prune: bool = False
    strays: tuple[Stray, ...] = ()
    url: str = ""  # of a repository on an object store; `repository` stands for it on this machine

    @property
    def place(self) -> str:
        return self.url or str(self.repository)

    @property
    def writes(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action in WRITES)

    @property
    def removes(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action == "remove" and self.prune)

    @property
    def blocked(self) -> tuple[Change, ...]:
        """Models of the manifest whose folder would have to be overwritten although repogen did not write it so."""
        return tuple(change for change in self.changes if change.model and change.action not in (*WRITES, "keep"))

    @property
    def pending(self) -> bool:
        """Whether something must be built first."""
        return any(change.model and change.model.pending for change in self.changes)

    @property
    def removes_many(self) -> bool:
        """Whether so much of the repository would go that it looks like a mistake."""
        ours = [change for change in self.changes if change.action not in ("create", "foreign")]
        return len(self.removes) > UNASKED * len(ours)

    @property
    def bytes_to_write(self) -> int:
        models = [change.model for change in self.writes if change.model]
        files = [file.size for model in models for file in (*model.files, *model.carried)]
        return sum(files) + sum(len(extra.content) for model in models for extra in model.extra_files)

    def counts(self) -> dict[str, int]:
        found = [change.action for change in self.changes]
        return {action: found.count(action) for action in _ORDER if action in found}


def make_plan(
    desired: Sequence[ServedModel],
    existing: Mapping[str, Published],
    root: Path,
    *,
    overwrite: bool = False,
    prune: bool = False,
    strays: tuple[Stray, ...] = (),
    url: str = "",
    arranged: Arranged = lambda model: model,
) -> Plan:
    """Return the plan that turns `existing` into `desired`.

    `overwrite` rewrites folders that were edited by hand or are not ours; `prune` removes what the manifest
    does not name; `arranged` gives a model the file names that it has there. Raises RenderError.
    """
    changes = [_change(model, existing.get(model.name), arranged, overwrite=overwrite) for model in desired]
    names = {model.name for model in desired}
    left = [published for name, published in existing.items() if name not in names]
    changes += [_left_over(published, prune=prune, overwrite=overwrite) for published in left]
    return Plan(root, tuple(sorted(changes, key=lambda change: change.name)), prune, strays, url)


def removal_order(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the removals with each ensemble before its members."""
    ensembles = [change for change in changes if "ensemble_scheduling" in change.config]
    return (*ensembles, *(change for change in changes if change not in ensembles))


def in_order(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes with each ensemble after the members that change with it."""
    by_name = {change.name: change for change in changes}
    found: dict[str, Change] = {}

    def visit(change: Change, above: frozenset[str]) -> None:
        for member in members(change.model):
            if member in by_name and member not in above:
                visit(by_name[member], above | {change.name})
        found.setdefault(change.name, change)

    for change in changes:
        visit(change, frozenset({change.name}))
    return tuple(found.values())


def members(model: ServedModel | None) -> tuple[str, ...]:
    """Return the names of the models that an ensemble is made of; () for any other model."""
    config: Mapping[str, Any] = model.config if model else {}
    scheduling = config.get("ensemble_scheduling") or config.get("ensembleScheduling") or {}
    return tuple(step.get("model_name") or step.get("modelName") or "" for step in scheduling.get("step", ()))


def _change(model: ServedModel, published: Published | None, arranged: Arranged, *, overwrite: bool) -> Change:
    """Return what happens to one model; where its source was a pattern, the reason says what was chosen."""
    if model.chosen is None:
        return _compared(model, published, arranged, overwrite=overwrite)
    awaited = f"{model.chosen.awaited} is still being written"
    if published and model.chosen.awaited and _is_newer(published, model.version):
        return Change(model.name, "keep", awaited, published.text, "", replace(model, pending=()))
    change = _compared(model, published, arranged, overwrite=overwrite)
    if change.action == "keep":
        return replace(change, reason=f"{change.reason}, {awaited}") if model.chosen.awaited else change
    if change.action == "create":  # what is new is shown with all its notes, and this is one
        return change
    return replace(change, reason=f"{change.reason}; {model.chosen.why}")


def _is_newer(published: Published, version: int) -> bool:
    """Return whether what serves is newer: its own file is just being written once more."""
    found = (name.split("/")[0] for name in published.files)
    served = max((int(part) for part in found if VERSION.fullmatch(part)), default=0)
    return published.state is State.WHOLE and served > version


def _compared(model: ServedModel, published: Published | None, arranged: Arranged, *, overwrite: bool) -> Change:
    model = arranged(replace(model, carried=_carried(model, published)))
    config = rendered(model)
    if published is None:
        reason = _created(model, f"{model.source} is not in the repository")
        return Change(model.name, "create", reason, config, "", model)
    if model.pending:  # the files are not known yet, and with them the fingerprint
        config = config.replace(fingerprint_of(config), published.fingerprint or "after the build")
    diff = _diff(published.text, config, model.name)
    if published.state in (State.DRIFTED, State.FOREIGN) and not overwrite:
        reason = _edited(model, published, config) if published.state is State.DRIFTED else "not written by repogen"
        return Change(model.name, published.state.value, reason, config, diff, model)
    if model.pending:
        return Change(model.name, "rebuild", _created(model, ""), config, diff, model)
    if published.state is State.PARTIAL:
        return Change(model.name, "create", "only its config.pbtxt is there", config, diff, model)
    if published.text == config and published.state is State.WHOLE:
        return Change(model.name, "keep", "nothing changed", config, "", model)
    alters = bool(_altered_files(model, published)) or _altered_fields(published.text, config) != ["version_policy"]
    return Change(model.name, "rewrite", _why(model, published, config), config, diff, model, alters)


def _created(model: ServedModel, otherwise: str) -> str:
    return "; ".join(f"builds {build.name} ({build.what}): {build.reason}" for build in model.pending) or otherwise


def _carried(model: ServedModel, published: Published | None) -> tuple[ModelFile, ...]:
    """Return the files of other versions that stay beside the model's own: the newest ones, and all that serve."""
    if published is None or published.state not in (State.WHOLE, State.DRIFTED):
        return ()
    found = {int(part) for name in published.files if VERSION.fullmatch(part := name.split("/")[0]) and "/" in name}
    older = sorted((version for version in found if version < model.version), reverse=True)
    if not older and found <= {model.version}:
        return ()
    policy = _policy(model)
    count = max(model.keep_versions, policy.latest.num_versions if policy.HasField("latest") else 0) - 1
    kept = set(older if policy.HasField("all") else older[:count])
    kept |= found & set(policy.specific.versions)
    kept -= {model.version}
    files = {name: digest for name, digest in published.files.items() if name.split("/")[0] in map(str, kept)}
    return tuple(
        ModelFile(name, published.folder / name, digest, published.size(name)) for name, digest in sorted(files.items())
    )


def _policy(model: ServedModel) -> Any:
    from repogen import pbtxt

    return pbtxt.intended(model, "").version_policy


def _edited(model: ServedModel, published: Published, config: str) -> str:
    what = _why(model, published, config, drifted=True)
    return f"edited by hand since it was published ({what})"


def _why(model: ServedModel, published: Published, config: str, *, drifted: bool = False) -> str:
    if published.state is not State.WHOLE and not drifted:
        return f"{published.state.value}, overwritten as asked"
    parts = _altered_files(model, published)
    fields = _altered_fields(published.text, config)
    parts += [f"config: {', '.join(fields)}"] if fields else []
    return "; ".join(parts) or ("config.pbtxt, in what Triton does not read" if drifted else "rendered differently")


def _altered_files(model: ServedModel, published: Published) -> list[str]:
    wanted = model_files(model)
    changed = sorted(name for name in wanted.keys() & published.files.keys() if wanted[name] != published.files[name])
    parts = [f"{', '.join(changed)} changed"] if changed else []
    added, gone = wanted.keys() - published.files.keys(), published.files.keys() - wanted.keys()
    parts += [f"{', '.join(sorted(names))} {verb}" for verb, names in (("added", added), ("gone", gone)) if names]
    return parts


def _altered_fields(before: str, after: str) -> list[str]:
    from google.protobuf.text_format import ParseError

    from repogen import pbtxt

    try:
        old: Any = pbtxt.parse(before)
    except ParseError as error:
        return [f"not readable, {error}"]
    new: Any = pbtxt.parse(after)
    for config in (old, new):
        config.parameters.pop(pbtxt.FINGERPRINT, None)
    fields = {field.name for field, _ in (*old.ListFields(), *new.ListFields())}
    return sorted(field for field in fields if getattr(old, field) != getattr(new, field))


def _left_over(published: Published, *, prune: bool, overwrite: bool) -> Change:
    if published.state is State.FOREIGN:
        return Change(published.name, "foreign", "not written by repogen, left alone")
    if published.state is State.DRIFTED and not overwrite:
        reason = "no longer in the manifest and edited by hand, kept (--prune with --overwrite removes it)"
        return Change(published.name, "drifted", reason)
    kept = "" if prune else ", kept (--prune removes it)"
    return Change(published.name, "remove", f"no longer in the manifest{kept}", config=published.text)


def _diff(before: str, after: str, name: str) -> str:
    if before == after:
        return ""
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        f"{name}/config.pbtxt (now)",
        f"{name}/config.pbtxt (planned)",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)
