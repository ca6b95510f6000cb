"""Write a tuned setting into the manifest: comments stay, and the evidence stands beside it."""

from __future__ import annotations

import difflib
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repogen.errors import ManifestError, Refused
from repogen.model import ServedModel
from repogen.tune.journal import Evidence
from repogen.tune.setting import Setting
from repogen.tune.trial import Trial
from repogen.tune.tuning import Tuned, build_digest
from repogen.units import duration_text


def refuse_other_evidence(tuned: Tuned, model: ServedModel, *, force: bool) -> list[str]:
    """Return in what the evidence differs from what the manifest serves; refuse any without `force`."""
    device = {"cpu": "CPU", "gpu": "GPU"}
    kinds = ", ".join(sorted({device.get(group.kind, group.kind) for group in model.instances}))
    served = Evidence(model.name, model.backend, kinds, build_digest(model))
    found = tuned.evidence.differences(served)
    if found and not force:
        raise Refused(
            f"the trials of {model.name} say nothing of what the manifest serves: {'; '.join(found)}",
            hint="tune on a server that runs it, or --force, and the comment will say so",
        )
    return found


def apply(
    path: Path, model: str, tuned: Tuned, *, report: str = "", differences: Sequence[str] = (), pipeline: str = ""
) -> str:
    """Edit the manifest at `path`; return the comment that was written. What is served changes with the next sync.

    `pipeline`: the ensemble as a step of which the model was tuned; the figures are those of the whole.
    """
    from ruamel.yaml import YAML

    choice = tuned.answer.choice
    if choice is None or not tuned.answer.held:
        raise Refused(f"nothing was found for {model} that could be applied")
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    text = path.read_text(encoding="utf-8")
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    try:
        entry = document["models"][model]
    except (KeyError, TypeError):
        raise ManifestError(f"there is no model {model!r}", where=str(path)) from None
    comment = _comment(tuned, choice, report, differences, pipeline)
    _edit(entry, choice.setting, tuned.question.current, defaults=document.get("defaults") or {})
    _replace_comment(entry, comment)
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    _write(path, _kept(text, buffer.getvalue()))
    return comment


def _kept(before: str, after: str) -> str:
    """Return `after` with the very lines of `before` where they say the same: blanks are the author's business."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(
        None, [tuple(row.split()) for row in old], [tuple(row.split()) for row in new], autojunk=False
    )
    lines: list[str] = []
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        lines += old[old_from:old_to] if kind == "equal" else new[new_from:new_to]
    return "".join(lines)


def _edit(entry: Any, setting: Setting, current: Setting, *, defaults: Any) -> None:
    if setting.max_batch < 2:  # noqa: PLR2004 - a step that merges nothing has only its instances
        _edit_instances(entry, setting, defaults)
        return
    if setting.batching:
        said = entry.get("dynamic_batching")
        if not hasattr(said, "keys"):
            entry["dynamic_batching"] = said = _flow_map()
        said["max_queue_delay"] = duration_text(setting.delay)
        if setting.preferred:
            said["preferred_batch_size"] = _flow(setting.preferred)
        else:
            said.pop("preferred_batch_size", None)
            inherited = defaults.get("dynamic_batching")
            if hasattr(inherited, "keys") and inherited.get("preferred_batch_size"):
                said["preferred_batch_size"] = _flow(())
    else:
        entry["dynamic_batching"] = False
    if setting.max_batch != current.max_batch or "max_batch_size" in entry:
        entry["max_batch_size"] = setting.max_batch
    if setting.instances != current.instances:
        _edit_instances(entry, setting, defaults)


def _edit_instances(entry: Any, setting: Setting, defaults: Any) -> None:
    import copy

    if "instances" not in entry:
        inherited = defaults.get("instances")
        entry["instances"] = copy.deepcopy(inherited) if inherited else _flow(())
    if not entry["instances"]:
        entry["instances"].append(_flow_map())
    group = entry["instances"][0]
    group["count"] = max(setting.instances // max(len(group.get("gpus") or ()), 1), 1)


def _comment(tuned: Tuned, choice: Trial, report: str, differences: Sequence[str], pipeline: str) -> str:
    goal, seen, evidence = tuned.question.goal, choice.measured, tuned.evidence
    slo = f" (objective {goal.slo * 1e3:g} ms)" if goal.slo else ""
    span = f"[{seen.low * 1e3:.2f}, {seen.high * 1e3:.2f}]"
    whole = f" of the pipeline {pipeline}" if pipeline else ""
    words = [
        f"{_MARK} {tuned.date}: {goal.name}{whole} {seen.latency * 1e3:.2f} ms {span} at {choice.rate:g}/s{slo}",
        f"measured on {evidence.backend}, {evidence.device}, Triton {evidence.server}, {tuned.machine}",
    ]
    if report:
        words.append(f"report: {report}")
    if differences:
        words.append(f"FORCED: this is evidence of another target: {'; '.join(differences)}")
    return "\n".join(words)


_MARK = "tuned"


def _replace_comment(entry: Any, comment: str) -> None:
    """Put the comment before `dynamic_batching`; one of an earlier tuning goes."""
    key = "dynamic_batching" if "dynamic_batching" in entry else "instances"
    place = list(entry).index(key)
    before = list(entry)[place - 1] if place else None
    _drop_ours(entry.ca.items.get(before) if before else None)
    column = entry.lc.col if entry.lc.col is not None else 4
    entry.yaml_set_comment_before_after_key(key, before=comment, indent=column)


def _drop_ours(tokens: Any) -> None:
    """Take the lines of an earlier tuning out of the comment that trails a key."""
    for token in tokens or ():
        if not hasattr(token, "value"):
            continue
        lines, kept, ours = token.value.split("\n"), [], False
        for line in lines:
            bare = line.strip().removeprefix("#").strip()
            ours = bare.startswith(f"{_MARK} 2") or (ours and bare.startswith(("measured on", "report:", "FORCED:")))
            if not ours:
                kept.append(line)
        token.value = "\n".join(kept)


def _flow(values: Sequence[Any]) -> Any:
    from ruamel.yaml.comments import CommentedSeq

    made = CommentedSeq(values)
    made.fa.set_flow_style()
    return made


def _flow_map() -> Any:
    from ruamel.yaml.comments import CommentedMap

    made = CommentedMap()
    made.fa.set_flow_style()
    return made


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, with the rights that it had."""
    mode = path.stat().st_mode
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(mode & 0o7777)
    Path(file.name).replace(path)
