"""RG57x: CUDA graphs of the tensorrt backend."""

from collections.abc import Iterator
from typing import Any

from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject
from repogen.check.tensorrt_rules import plan_model

_UNBATCHED = (2, 72)
"""The first Triton that captures CUDA graphs of models with max_batch_size 0."""
_FIELD = "optimization.cuda"


def _specs(subject: Subject) -> Iterator[tuple[str, Any]]:
    cuda = subject.config.optimization.cuda
    if subject.model.backend == "tensorrt" and cuda.graphs:
        for index, spec in enumerate(cuda.graph_spec):
            yield f"{_FIELD}.graph_spec[{index}]", spec


def _batch_size(subject: Subject) -> Iterator[Problem]:
    most = subject.config.max_batch_size
    for field, spec in _specs(subject):
        sizes = [("", spec.batch_size)]
        if spec.HasField("graph_lower_bound"):
            sizes.append(("graph_lower_bound.", spec.graph_lower_bound.batch_size))
        for part, size in sizes:
            if (size != 0) if most == 0 else not 1 <= size <= most:
                wanted = "0, since max_batch_size is" if most == 0 else f"from 1 to max_batch_size {most}"
                yield Problem(f"batch_size {size} must be {wanted}", field=f"{field}.{part}batch_size")


def _lower_bound(subject: Subject) -> Iterator[Problem]:
    for field, spec in _specs(subject):
        if spec.HasField("graph_lower_bound"):
            low, where = spec.graph_lower_bound, f"{field}.graph_lower_bound"
            if low.batch_size > spec.batch_size:
                yield Problem(f"its batch_size {low.batch_size} is above {spec.batch_size}", field=where)
            for name, shape in sorted(spec.input.items()):
                if said := _unlike(name, list(shape.dim), low):
                    yield Problem(said, field=where, hint="give each input at most its size in the graph_spec")


def _unlike(name: str, dims: list[int], low: Any) -> str:
    if name not in low.input:
        return f"it has no shape for {name!r}"
    lowest = list(low.input[name].dim)
    if len(lowest) != len(dims):
        return f"its shape for {name!r} has {len(lowest)} dims, the graph_spec's {len(dims)}"
    above = any(least > most for least, most in zip(lowest, dims, strict=True))
    return f"its shape {lowest} for {name!r} is above {dims}" if above else ""


def _dims(subject: Subject) -> Iterator[Problem]:
    for field, spec in _specs(subject):
        for name, shape in sorted(spec.input.items()):
            if any(dim < 0 for dim in shape.dim):
                message = f"the shape of {name!r} has a size below 0"
                yield Problem(message, field=f"{field}.input", hint="a graph is captured for one shape: write sizes")


def _never_captured(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if subject.model.backend != "tensorrt" or not config.optimization.cuda.graphs:
        return
    if config.max_batch_size == 0 and not subject.target.at_least(_UNBATCHED):
        message = "CUDA graphs are not captured where max_batch_size is 0, before release 26.08"
        yield Problem(message, field=f"{_FIELD}.graphs", hint="remove it, or serve with 26.08 or later")
    shapes = [said.name for said in (*config.input, *config.output) if said.is_shape_tensor]
    if shapes:
        message = f"CUDA graphs are not captured for models with shape tensors ({', '.join(shapes)})"
        yield Problem(message, field=f"{_FIELD}.graphs", hint="remove it")


def _without_graphs(subject: Subject) -> Iterator[Problem]:
    cuda = subject.config.optimization.cuda
    if subject.model.backend == "tensorrt" and cuda.graph_spec and not cuda.graphs:
        yield Problem("graph_spec does nothing while graphs is false", field=_FIELD, hint="write graphs: true")


def _elsewhere(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend not in ("tensorrt", "", "ensemble") and subject.config.optimization.cuda.graphs:
        yield Problem(
            f"optimization.cuda.graphs is for the tensorrt backend: {subject.model.backend} does not look at it",
            field=f"{_FIELD}.graphs",
            hint="remove it",
        )


def _graphs(spec: str) -> str:
    return f"optimization {{ cuda {{ graphs: true {spec} }} }}"


def _spec(batch: int, dim: int, low: str = "") -> str:
    return f'graph_spec [{{ batch_size: {batch} input {{ key: "x" value {{ dim: [{dim}] }} }} {low} }}]'


def _low(batch: int, dim: int) -> str:
    return f'graph_lower_bound {{ batch_size: {batch} input {{ key: "x" value {{ dim: [{dim}] }} }} }}'


_SERVER = "25.03"

RULES: tuple[Rule, ...] = (
    Rule(
        "RG570", "error", "A CUDA graph for a batch that cannot be",
        "Each graph is captured for a batch size from 1 to the maximum, 0 where the model does not batch.",
        _batch_size, bad=plan_model(_graphs(_spec(16, 4))), good=plan_model(_graphs(_spec(8, 4))), server=_SERVER,
    ),
    Rule(
        "RG571", "error", "A CUDA graph whose lower bound is not below it",
        "The bound names each input of the graph, with as many dims, none above the graph's own.",
        _lower_bound, bad=plan_model(_graphs(_spec(8, 4, _low(1, 5)))),
        good=plan_model(_graphs(_spec(8, 4, _low(1, 4)))), server=_SERVER,
    ),
    Rule(
        "RG572", "error", "A CUDA graph for no definite shape",
        "A graph is captured for one shape.",
        _dims, bad=plan_model(_graphs(_spec(8, -1))), good=plan_model(_graphs(_spec(8, 4))), server=_SERVER,
    ),
    Rule(
        "RG573", "warning", "CUDA graphs that are never captured",
        "The backend leaves them out for models with shape tensors, and before 26.08 for models that do not batch.",
        _never_captured, bad=plan_model(_graphs(""), "max_batch_size: 8", "max_batch_size: 0"),
        good=plan_model(_graphs("")), server=_SERVER,
    ),
    Rule(
        "RG574", "warning", "CUDA graphs are described but not switched on",
        "graph_spec is only read with graphs: true.",
        _without_graphs, bad=plan_model(f"optimization {{ cuda {{ {_spec(8, 4)} }} }}"),
        good=plan_model(_graphs(_spec(8, 4))), server=_SERVER,
    ),
    Rule(
        "RG575", "warning", "CUDA graphs on another backend",
        "Only the tensorrt backend captures them.",
        _elsewhere, bad=plan_model(_graphs(""), 'backend: "tensorrt"', 'backend: "onnxruntime"'),
        good=plan_model(_graphs("")), server=_SERVER,
    ),
)  # fmt: skip
