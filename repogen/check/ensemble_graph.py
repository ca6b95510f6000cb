"""The tensors that flow between the steps of an ensemble."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from repogen.check.subject import Model, Subject


@dataclass
class Flow:
    """One tensor of an ensemble: whether a step writes it, from what, and who reads it."""

    written: bool = False
    sources: list[str] = field(default_factory=list)
    readers: int = 0
    ready: bool = False


def flows(config: Any) -> dict[str, Flow]:
    """Return every tensor that a step reads or writes, `ready` where the ensemble's inputs lead to it."""
    found: dict[str, Flow] = {}
    for step in config.ensemble_scheduling.step:
        for name in step.input_map.values():
            found.setdefault(name, Flow()).readers += len(step.output_map)
        for name in step.output_map.values():
            flow = found.setdefault(name, Flow())
            flow.written = True
            flow.sources += step.input_map.values()
    for tensor in config.input:
        if tensor.name in found:
            found[tensor.name].ready = True
    _spread(found)
    return found


def _spread(found: dict[str, Flow]) -> None:
    changed = True
    while changed:
        changed = False
        for flow in found.values():
            if not flow.ready and flow.sources and all(found[name].ready for name in flow.sources):
                flow.ready = changed = True


def steps(subject: Subject) -> Iterator[tuple[str, Any, Model | None]]:
    """Return (field, step, the model that it calls where the repository has it with a config)."""
    for index, step in enumerate(subject.config.ensemble_scheduling.step):
        part = subject.repository.models.get(step.model_name)
        called = part if part is not None and part.config is not None else None
        yield f"ensemble_scheduling.step[{index}]", step, called


@dataclass(frozen=True)
class Side:
    """What one model says of a tensor of the ensemble."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    batched: bool
    place: str

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims

    def __str__(self) -> str:
        return f"{self.model!r} ({self.place})"


@dataclass(frozen=True)
class Meeting:
    """Two models that mean the same tensor: the first that named it, and another."""

    field: str
    tensor: str
    first: Side
    other: Side


def meetings(subject: Subject) -> Iterator[Meeting]:
    """Return each tensor's first mention beside every later one, in the server's order."""
    config = subject.config
    batched = config.max_batch_size > 0
    known: dict[str, Side] = {}
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            place = place_of(subject.model, f"{kind}[{index}]")
            known.setdefault(tensor.name, Side(subject.model.name, tensor.data_type, tuple(dims), batched, place))
    for where, step, part in steps(subject):
        if part is None:
            continue
        batches = part.config.max_batch_size > 0
        for kind, tensors, mapping in (
            ("input", part.config.input, step.input_map),
            ("output", part.config.output, step.output_map),
        ):
            for index, tensor in enumerate(tensors):
                if tensor.name in mapping:
                    place = place_of(part, f"{kind}[{index}]")
                    said = Side(part.name, tensor.data_type, tuple(tensor.dims), batches, place)
                    met = mapping[tensor.name]
                    if met in known:
                        yield Meeting(f"{where}.{kind}_map", met, known[met], said)
                    known.setdefault(met, said)


def place_of(model: Model, field: str) -> str:
    """Return file and line of a field of a model's config: the other end of what a step says."""
    return f"{model.name}/config.pbtxt:{model.line_of(field)}"


def agree(first: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes can be one, free dims being any."""
    return len(first) == len(other) and all(
        -1 in (left, right) or left == right for left, right in zip(first, other, strict=True)
    )


def decoupled_joins(subject: Subject) -> Iterator[str]:
    """Return each step that takes tensors of unequal numbers of responses: from different decoupled steps."""
    origin = {tensor.name: 0 for tensor in subject.config.input}
    waiting = [(where, step, part) for where, step, part in steps(subject) if part is not None]
    label = 0
    while waiting:
        ready = [row for row in waiting if all(name in origin for name in row[1].input_map.values())]
        if not ready:
            return
        for where, step, part in ready:
            waiting.remove((where, step, part))
            origins = {origin[name] for name in step.input_map.values()}
            if len(origins) > 1:
                yield where
            if part is not None and is_decoupled(subject, part, set()):
                label += 1
                origins = {label}
            for name in step.output_map.values():
                origin.setdefault(name, min(origins, default=0))


def is_decoupled(subject: Subject, model: Model, seen: set[str]) -> bool:
    """Return whether a model gives any number of responses; an ensemble does where one of its steps does."""
    if model.backend != "ensemble":
        return bool(model.config.model_transaction_policy.decoupled) if model.config is not None else False
    if model.name in seen:
        return False
    inner = Subject(model, subject.repository, subject.target)
    return any(is_decoupled(inner, part, {*seen, model.name}) for _, _, part in steps(inner) if part is not None)


def reaches(subject: Subject, start: str, goal: str, seen: set[str]) -> bool:
    """Return whether the ensemble `start` calls `goal`, through other ensembles too."""
    model = subject.repository.models.get(start)
    if model is None or model.config is None or start in seen:
        return False
    seen.add(start)
    called = {step.model_name for step in model.config.ensemble_scheduling.step}
    return goal in called or any(reaches(subject, name, goal, seen) for name in called)
