"""Decide how an ensemble is served: its own tensors, batching and config come of the models that it calls. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from repogen.errors import ManifestError
from repogen.manifest import Manifest, ModelEntry, TensorEntry
from repogen.model import ExtraFile, InputHint, ServedModel, ServedTensor, ShapeRange
from repogen.settings import config_fields
from repogen.wiring import End, Where, Wiring, check_edges, check_reached, check_streams, closest, wired

NEWEST = -1
PLACEHOLDER = ".keep"
_WHY_IT_IS_THERE = b"An ensemble has no file of its own, and Triton wants its version folder all the same.\n"


def is_ensemble(entry: ModelEntry) -> bool:
    return entry.backend == "ensemble"


def with_members(manifest: Manifest, names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` and all that they are made of, in the manifest's order."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found and name in manifest.models:
            found.add(name)
            left += [step.model for step in manifest.models[name].steps]
    return tuple(name for name in manifest.models if name in found)


def in_order(manifest: Manifest) -> tuple[str, ...]:
    """Return the manifest's ensembles, each after those that it calls. Raises ManifestError for a circle."""
    ordered: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        entry = manifest.models[name]
        for index, step in enumerate(entry.steps):
            where = manifest.where("models", name, "steps", index, "model")
            if step.model not in manifest.models:
                hint = closest(step.model, (other for other in manifest.models if other != name))
                raise ManifestError(f"there is no model {step.model!r}", where=where, hint=hint)
            if step.model in (*above, name):
                circle = " -> ".join((*above, name, step.model))
                raise ManifestError(f"the ensemble calls itself, in the end: {circle}", where=where)
            if is_ensemble(manifest.models[step.model]):
                visit(step.model, (*above, name))
        if name not in ordered:
            ordered.append(name)

    for name, entry in manifest.models.items():
        if is_ensemble(entry):
            visit(name, ())
    return tuple(ordered)


def decide_ensemble(
    name: str, entry: ModelEntry, members: Mapping[str, ServedModel], where: Where, declared: Where
) -> ServedModel:
    """Return how an ensemble of `members` is served. Raises ManifestError naming both ends of the edge at fault."""
    wiring = wired(entry.steps, members, where, declared)
    check_reached(entry.steps, wiring, where)
    check_edges(wiring)
    check_streams(entry.steps, wiring, lambda model: _decoupled(members[model]), where)
    inputs, outputs = _borders(entry, wiring, where)
    max_batch, note = _max_batch_size(entry, wiring, where)
    config = config_fields(entry, backend="ensemble", max_batch_size=max_batch, where=where)
    if any(_decoupled(members[step.model]) for step in entry.steps):
        config["model_transaction_policy"] = {"decoupled": True}
    config["ensemble_scheduling"] = {"step": [_step(step, members[step.model]) for step in entry.steps]}
    tensors = {it: _tensor(it, wiring.ends(it), max_batch) for it in (*inputs, *outputs)}
    return ServedModel(
        name=name,
        backend="ensemble",
        source=" + ".join(step.model for step in entry.steps),
        max_batch_size=max_batch,
        inputs=tuple(tensors[it] for it in inputs),
        outputs=tuple(tensors[it] for it in outputs),
        instances=(),
        dynamic_batching=None,
        files=(),
        extra_files=(ExtraFile(f"{entry.version}/{PLACEHOLDER}", _WHY_IT_IS_THERE),),
        version=entry.version,
        keep_versions=entry.keep_versions,
        parameters=dict(entry.parameters),
        config=config,
        shapes=_ranges(inputs, tensors, wiring),
        hints={it: hint for it in inputs if (hint := _hint(it, entry, wiring))},
        notes=(f"max_batch_size {max_batch}: {note}", f"takes {', '.join(inputs)}; answers {', '.join(outputs)}"),
    )


def _borders(entry: ModelEntry, wiring: Wiring, where: Where) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that cross the ensemble's border: those that the entry lists, else those that are left open."""
    _check_listed(entry.inputs, wiring.inputs, "inputs", where)
    _check_listed(entry.outputs, tuple(wiring.made), "outputs", where)
    for name in wiring.inputs if entry.inputs else ():
        if name not in entry.inputs:
            hint = f"{closest(name, (*wiring.made, *entry.inputs))}; or add it to inputs"
            message = f"nothing makes {name!r}, and it is no input"
            raise ManifestError(message, where=wiring.taken[name][0].where, hint=hint)
    for name in wiring.loose if entry.outputs else ():
        if name not in entry.outputs:
            hint = f"{closest(name, (*wiring.taken, *entry.outputs))}; or add it to outputs, or do not map it"
            message = f"nothing takes {name!r}, and it is no output"
            raise ManifestError(message, where=wiring.made[name].where, hint=hint)
    return tuple(entry.inputs) or wiring.inputs, tuple(entry.outputs) or wiring.loose


def _check_listed(listed: Mapping[str, TensorEntry], there: Sequence[str], part: str, where: Where) -> None:
    for name, said in listed.items():
        if said.dtype is not None or said.dims is not None:
            hint = "remove dtype and dims: they are those of the models that it calls"
            raise ManifestError("is derived from the steps, not written", where=where(part, name), hint=hint)
        if name not in there:
            what = f"takes {name!r} from outside" if part == "inputs" else f"makes {name!r}"
            raise ManifestError(f"no step {what}", where=where(part, name), hint=closest(name, there))


def _max_batch_size(entry: ModelEntry, wiring: Wiring, where: Where) -> tuple[int, str]:
    ends = [end for name in (*wiring.taken, *wiring.made) for end in wiring.ends(name)]
    batching = [end for end in ends if end.member.max_batch_size]
    single = next((end for end in ends if not end.member.max_batch_size), None)
    asked = entry.max_batch_size
    if asked is None:
        if single is not None or not batching:
            who = single.member.name if single else ""
            return 0, f"{who} takes one request at a time; a batch inside is what its models make of it"
        least = min(batching, key=lambda end: end.member.max_batch_size)
        return least.member.max_batch_size, f"the least of its models, that of {least.member.name}"
    for end in batching:
        if asked > end.member.max_batch_size:
            message = f"{asked} is asked, but {end.member.name} takes {end.member.max_batch_size} ({end.declared})"
            raise ManifestError(message, where=where("max_batch_size"), hint=f"write {end.member.max_batch_size}")
    for name in (*wiring.inputs, *wiring.made) if asked else ():
        end = wiring.ends(name)[0]
        if len(end.full) < 2:  # noqa: PLR2004 - the batch axis and one more
            message = f"{asked} is asked, but {end} has no axis beside the batch's"
            raise ManifestError(message, where=where("max_batch_size"), hint="write 0, or give it dims [-1, 1]")
    for end in ends if asked else ():
        if not end.member.max_batch_size and end.full[:1] != (-1,):
            message = f"{asked} is asked, but {end} has no free first axis for the batch"
            raise ManifestError(message, where=where("max_batch_size"), hint="write 0, or let that model batch")
    return asked, "as asked" if asked else "as asked: requests have no batch axis of their own"


def _tensor(name: str, ends: Sequence[End], max_batch: int) -> ServedTensor:
    """Return the ensemble's own tensor: literal where one of the ends is."""
    dims = [max(sizes) for sizes in zip(*(end.full for end in ends), strict=True)]
    inner = tuple(dims[1:] if max_batch else dims)
    labels = tuple(f"{name}.{axis}" if dim < 0 else "" for axis, dim in enumerate(inner))
    return ServedTensor(name, ends[0].tensor.dtype, inner, labels=labels)


def _ranges(inputs: Sequence[str], tensors: Mapping[str, ServedTensor], wiring: Wiring) -> dict[str, ShapeRange]:
    """Return what is known of the sizes of the ensemble's free axes: what its models say of theirs."""
    found: dict[str, ShapeRange] = {}
    for name in inputs:
        for end in wiring.taken[name]:
            batch = ("",) if end.member.max_batch_size else ()
            labels = (*batch, *end.tensor.labels)[-len(tensors[name].dims) :]
            for own, label in zip(tensors[name].labels, labels, strict=False):
                if own and label in end.member.shapes:
                    found.setdefault(own, end.member.shapes[label])
    return found


def _hint(name: str, entry: ModelEntry, wiring: Wiring) -> InputHint | None:
    if (said := entry.inputs.get(name)) and (said.values or said.range):
        return InputHint(said.values, said.range)
    known = (end.member.hints.get(end.tensor.name) for end in wiring.taken[name])
    return next((hint for hint in known if hint), None)


def _decoupled(model: ServedModel) -> bool:
    policy: Mapping[str, Any] = model.config.get("model_transaction_policy") or {}
    return bool(policy.get("decoupled"))


def _step(step: Any, member: ServedModel) -> dict[str, Any]:
    version = step.version or (member.version if keeps_former(member) else NEWEST)
    return {
        "model_name": step.model,
        "model_version": str(version),
        "input_map": dict(step.inputs),
        "output_map": dict(step.outputs),
    }


def keeps_former(member: ServedModel) -> bool:
    """Return whether a model serves its former version beside the new one: an ensemble can then name either."""
    policy: Mapping[str, Any] = member.config.get("version_policy") or {}
    return (
        "all" in policy
        or int(policy.get("latest", {}).get("num_versions", 1)) > 1
        or len(policy.get("specific", {}).get("versions", ())) > 1
    )
