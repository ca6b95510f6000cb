"""The tensors between an ensemble's steps: who makes each, who takes it, and whether the ends fit. Pure."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from repogen.errors import ManifestError
from repogen.model import ServedModel, ServedTensor
from repogen.pipeline_schema import StepEntry

Where = Callable[..., str]


@dataclass(frozen=True)
class End:
    """One end of an edge: a member's tensor, where a step names it, and where it is declared."""

    step: int
    member: ServedModel
    tensor: ServedTensor
    where: str
    declared: str

    @property
    def full(self) -> tuple[int, ...]:
        """The shape that a client of the member sends or gets, the batch axis included."""
        return (-1, *self.tensor.dims) if self.member.max_batch_size else self.tensor.dims

    def __str__(self) -> str:
        batching = f"max_batch_size {self.member.max_batch_size}"
        kind = self.tensor.dtype.removeprefix("TYPE_")
        return f"{kind} {list(self.full)} in {self.member.name}.{self.tensor.name} ({self.declared}, {batching})"


@dataclass(frozen=True)
class Wiring:
    """Every tensor of an ensemble by its name: the one end that makes it, and the ends that take it."""

    made: Mapping[str, End]
    taken: Mapping[str, tuple[End, ...]]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.taken if name not in self.made)

    @property
    def loose(self) -> tuple[str, ...]:
        """Tensors that no step takes."""
        return tuple(name for name in self.made if name not in self.taken)

    def ends(self, name: str) -> tuple[End, ...]:
        made = self.made.get(name)
        return (*([made] if made else []), *self.taken.get(name, ()))


def wired(steps: Sequence[StepEntry], members: Mapping[str, ServedModel], where: Where, declared: Where) -> Wiring:
    """Return the tensors that `steps` make and take. Raises ManifestError for names that are wrong.

    `where` places a key of the ensemble, `declared` a tensor of a member: (model, part, tensor).
    """
    made: dict[str, End] = {}
    taken: dict[str, list[End]] = {}
    for index, step in enumerate(steps):
        member = members[step.model]
        for part, mapping, tensors in (
            ("inputs", step.inputs, member.inputs),
            ("outputs", step.outputs, member.outputs),
        ):
            known = {tensor.name: tensor for tensor in tensors}
            _check_names(mapping, known, member.name, part, lambda *key, at=index: where("steps", at, *key))
            for inner, name in mapping.items():
                place = where("steps", index, part, inner)
                end = End(index, member, known[inner], place, declared(member.name, part, inner))
                if part == "inputs":
                    taken.setdefault(name, []).append(end)
                elif name in made:
                    hint = "each tensor has one maker: give one of them another name"
                    raise ManifestError(f"{name!r} is made here and at {made[name].where}", where=place, hint=hint)
                else:
                    made[name] = end
    return Wiring(made, {name: tuple(ends) for name, ends in taken.items()})


def _check_names(
    mapping: Mapping[str, str], known: Mapping[str, ServedTensor], member: str, part: str, where: Where
) -> None:
    for inner in mapping:
        if inner not in known:
            message = f"{member} has no {part[:-1]} {inner!r}"
            raise ManifestError(message, where=where(part, inner), hint=closest(inner, known))
    missing = [name for name, tensor in known.items() if name not in mapping and not tensor.optional]
    if part == "inputs" and missing:
        hint = f"map it: inputs: {{{missing[0]}: …}}"
        raise ManifestError(f"the input {missing[0]!r} of {member} is given nothing", where=where(part), hint=hint)


def closest(name: str, known: Iterable[str]) -> str:
    """Return the hint to a name that does not exist."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there is {', '.join(names) or 'none'}"


def check_edges(wiring: Wiring) -> None:
    """Raise ManifestError at the first edge whose two ends have different types or shapes."""
    for name in dict.fromkeys((*wiring.taken, *wiring.made)):
        first, *others = wiring.ends(name)
        for other in others:
            if first.tensor.dtype != other.tensor.dtype:
                _refuse(name, "has two types", first, other, "cast it in a step between them, or declare one type")
            if agree(first.full, other.full):
                continue
            if agree(first.tensor.dims, other.tensor.dims):
                hint = "one of them batches, the other does not: dims without batching begin with -1 for the batch"
                _refuse(name, "has a batch axis at one end only", first, other, hint)
            _refuse(name, "has two shapes", first, other, "reshape it in a step between them, or mend the dims")


def _refuse(name: str, what: str, first: End, other: End, hint: str) -> None:
    raise ManifestError(f"{name!r} {what}: {first} and {other}", where=other.where, hint=hint)


def agree(first: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes can be one; -1 is any size."""
    return len(first) == len(other) and all(
        -1 in (left, right) or left == right for left, right in zip(first, other, strict=True)
    )


def check_reached(steps: Sequence[StepEntry], wiring: Wiring, where: Where) -> None:
    """Raise ManifestError where steps wait for one another."""
    ready, left = set(wiring.inputs), list(range(len(steps)))
    while runs := [index for index in left if ready.issuperset(steps[index].inputs.values())]:
        ready |= {name for index in runs for name in steps[index].outputs.values()}
        left = [index for index in left if index not in runs]
    if left:
        step = steps[left[0]]
        waits = next(name for name in step.inputs.values() if name not in ready)
        maker = wiring.made[waits]
        message = f"{step.model} waits for {waits!r} of {maker.member.name} ({maker.where}), which waits for it in turn"
        names = " -> ".join(steps[index].model for index in left)
        raise ManifestError(message, where=where("steps", left[0], "inputs"), hint=f"a circle: {names}")


def check_streams(steps: Sequence[StepEntry], wiring: Wiring, decoupled: Callable[[str], bool], where: Where) -> None:
    """Raise ManifestError where a step would have to pair up streams of unequal length."""
    origin: dict[str, int] = dict.fromkeys(wiring.inputs, -1)
    left = list(range(len(steps)))
    while left:
        index = next(it for it in left if origin.keys() >= set(steps[it].inputs.values()))
        left.remove(index)
        step = steps[index]
        origins = {origin[name] for name in step.inputs.values()}
        if len(origins) > 1:
            message = f"{step.model} would have to pair answers of a decoupled model with tensors from elsewhere"
            hint = "pass the other tensors through the decoupled model"
            raise ManifestError(message, where=where("steps", index, "inputs"), hint=hint)
        source = index if decoupled(step.model) else origins.pop()
        origin |= dict.fromkeys(step.outputs.values(), source)
