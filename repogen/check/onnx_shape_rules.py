"""RG362 to RG367: the shapes that a config has for an ONNX model's tensors, against the model."""

from collections.abc import Iterator, Sequence
from typing import Any

from repogen.check.onnx_examples import model_bytes, node, onnx_model, tensor
from repogen.check.onnx_facts import OnnxFacts, readable_models, said_and_seen
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject


def _batch_axis(subject: Subject) -> Iterator[Problem]:
    if subject.config.max_batch_size == 0:
        return
    for field, said, facts, row in said_and_seen(subject):
        if row.dims and row.dims[0] != -1 and not _ragged(said):
            yield Problem(
                f"max_batch_size is {subject.config.max_batch_size}, but the first axis of {row.name!r} is fixed at "
                f"{row.dims[0]}: {facts.path.name} has {_shown(row.dims)}",
                field=field,
                hint="write max_batch_size: 0 and the full dims, or export the model with a free batch axis",
            )


def _ragged(said: Any) -> bool:
    return bool(getattr(said, "allow_ragged_batch", False))


def _other_shape(subject: Subject) -> Iterator[Problem]:
    batched = subject.config.max_batch_size > 0
    for field, said, facts, row in said_and_seen(subject):
        if not row.dims or 0 in row.dims or _ragged(said) or (batched and row.dims[0] != -1):
            continue
        dims = tuple(said.reshape.shape if said.HasField("reshape") else said.dims)
        full = (-1, *dims) if batched else dims
        exact = field.startswith("output")
        unlike = _unlike_axis(row.dims, full, exact=exact)
        if unlike is None:
            continue
        what = f"{facts.path.name} has {_shown(row.dims)} for {row.name!r}"
        yield Problem(
            f"{what}, the config {_shown(full)}{' with the batch axis' if batched else ''}{unlike}",
            field=f"{field}.reshape" if said.HasField("reshape") else f"{field}.dims",
            hint=_shape_hint(row.dims, dims, batched=batched),
        )


def _empty_axis(subject: Subject) -> Iterator[Problem]:
    for field, _, facts, row in said_and_seen(subject):
        if row.dims and 0 in row.dims:
            yield Problem(
                f"{row.name!r} has an axis of size 0 in {facts.path.name}: the server takes no 0 in dims, and the "
                "backend nothing else",
                field=f"{field}.dims",
                hint="export it with a free axis there, or serve it from a Python model",
            )


def _unlike_axis(model: Sequence[int], config: Sequence[int], *, exact: bool) -> str | None:
    """Say where two shapes differ as the backend compares them: a free axis of an input takes any size."""
    if len(model) != len(config):
        return ""
    for axis, (want, have) in enumerate(zip(model, config, strict=True)):
        if want != have and (exact or want != -1):
            return f": axis {axis} is {want} there, {have} here"
    return None


def _shape_hint(model: Sequence[int], dims: Sequence[int], *, batched: bool) -> str:
    if batched and tuple(dims) == tuple(model):
        return "leave the batch axis out of dims: max_batch_size stands for it"
    if batched and len(model) == 1:
        return "write dims: [1] with reshape { shape: [] }"
    return f"write dims: {_shown(model[1:] if batched else model)}"


def _shown(dims: Sequence[int]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _scalar_dims(subject: Subject) -> Iterator[Problem]:
    for field, said, _, row in said_and_seen(subject):
        dims = said.reshape.shape if said.HasField("reshape") else said.dims
        if not row.dims and not _ragged(said) and any(dim != 1 for dim in dims):
            what = (
                "is a scalar" if row.dims == () else "has no shape in the graph, so the backend takes it for a scalar"
            )
            hint = "write dims: [1] and max_batch_size: 0" if row.dims == () else "export it with a shape"
            yield Problem(f"{row.name!r} {what}: its dims cannot be {_shown(dims)}", field=f"{field}.dims", hint=hint)


def _scalar_batched(subject: Subject) -> Iterator[Problem]:
    if subject.config.max_batch_size == 0:
        return
    for field, _, _, row in said_and_seen(subject):
        if not row.dims:
            yield Problem(
                f"{row.name!r} has no axis that could hold a batch, but max_batch_size is "
                f"{subject.config.max_batch_size}",
                field=field,
                hint="write max_batch_size: 0",
            )


def _ragged_input(subject: Subject) -> Iterator[Problem]:
    for field, said, facts, row in said_and_seen(subject):
        if _ragged(said) and row.dims != (-1,):
            shape = _shown(row.dims or ())
            message = f"a ragged input must be [-1] in the graph, but {row.name!r} is {shape} in {facts.path.name}"
            yield Problem(message, field=f"{field}.allow_ragged_batch", hint="remove allow_ragged_batch")


def _rows(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if config.max_batch_size < 1 or not config.output:
        return
    for name, facts in readable_models(subject):
        tensors = (*facts.inputs, *facts.outputs)
        free = all(row.kind == "tensor" and row.dims and row.dims[0] == -1 for row in tensors)
        settled = facts.rows_follow and not facts.mixing
        if settled or not free or not facts.inputs or facts.refused or facts.custom:
            continue
        batchable, reason = _proved(facts)
        if batchable is None:
            yield Problem(
                f"it is not known whether {name} gives one row a request: {reason}",
                field="max_batch_size",
                hint="run `repogen inspect` on it where onnxruntime is installed",
                severity="warning",
            )
        elif not batchable:
            yield Problem(
                f"requests to {name} may not be merged: {reason}",
                field="max_batch_size",
                hint="write max_batch_size: 0",
            )


def _proved(facts: OnnxFacts) -> tuple[bool | None, str]:
    from repogen.errors import ModelError
    from repogen.files import sha256
    from repogen.onnx_graph import read_graph
    from repogen.proof import prove

    digest = sha256(facts.path)
    try:
        proof = prove(read_graph(facts.path, digest), digest=digest, hints={}, shapes={})
    except ModelError as error:
        return None, error.message
    return proof.batchable, proof.reason


def _two_rows() -> bytes:
    return model_bytes([node("Concat", "x x", axis=0)])


def _fixed() -> bytes:
    return model_bytes(None, [tensor("x", (1, 4))], [tensor("y", (1, 4))])


def _empty() -> bytes:
    return model_bytes(None, [tensor("x", ("N", 0))], [tensor("y", ("N", 0))])


def _scalar() -> bytes:
    return model_bytes([node("ReduceSum", keepdims=0)], None, [tensor("y", ())])


_X = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]'
_Y = 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'
_SERVER = "2.51"

RULES: tuple[Rule, ...] = (
    Rule(
        "RG362", "error", "Batching is on but the first axis is fixed",
        "With max_batch_size above 0 the first axis of every input and output must be free in the graph, "
        "also where its size is the maximum.",
        _batch_axis, bad=onnx_model(file=_fixed), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG363", "error", "A tensor's shape differs from the ONNX model's",
        "The backend compares what ONNX Runtime infers: literal axes must be the same, a free output axis must be -1.",
        _other_shape,
        bad=onnx_model(replaced={"dims: [4]": "dims: [-1, 4]"}), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG364", "error", "A scalar has dims other than 1",
        "The backend serves a scalar as [1]; a tensor without a shape it takes for a scalar too.",
        _scalar_dims,
        bad=onnx_model(
            replaced={"max_batch_size: 8": "max_batch_size: 0", _X: _X.replace("[4]", "[-1, 4]"),
                      _Y: _Y.replace("[4]", "[2]")},
            file=_scalar,
        ),
        good=onnx_model(
            replaced={"max_batch_size: 8": "max_batch_size: 0", _X: _X.replace("[4]", "[-1, 4]"),
                      _Y: _Y.replace("[4]", "[1]")},
            file=_scalar,
        ),
        server=_SERVER,
    ),
    Rule(
        "RG365", "error", "Batching is on but a tensor is a scalar",
        "The model loads, and requests of more than one sample fail or get answers of the wrong shape.",
        _scalar_batched,
        bad=onnx_model(replaced={_Y: _Y.replace("[4]", "[1]")}, file=_scalar), good=onnx_model(), server=_SERVER,
        stricter="it loads and fails at batch 2",
    ),
    Rule(
        "RG366", "error", "A ragged input is not one-dimensional in the graph",
        "The backend joins ragged inputs end to end, so the graph must take [-1].",
        _ragged_input,
        bad=onnx_model(replaced={_X: _X.replace("[4]", "[4] allow_ragged_batch: true")}), good=onnx_model(),
        server=_SERVER,
    ),
    Rule(
        "RG367", "error", "The model's answers do not follow the batch",
        "The model loads and answers wrongly without any message: the server takes the first rows for the first "
        "request. Where the graph alone does not settle it the model is run with made-up inputs.",
        _rows, bad=onnx_model(file=_two_rows), good=onnx_model(), server=_SERVER,
        stricter="it loads and mixes up the answers of merged requests",
    ),
    Rule(
        "RG368", "error", "An axis of size 0 in the graph",
        "No config fits it: dims of 0 are refused by the server, and -1 by the backend, which compares literal axes.",
        _empty_axis, bad=onnx_model(replaced={"dims: [4]": "dims: [-1]"}, file=_empty), good=onnx_model(),
        server=_SERVER,
    ),
)  # fmt: skip
