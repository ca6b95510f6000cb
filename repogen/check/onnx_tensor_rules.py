"""RG350 to RG361: the names and types that a config has for an ONNX model's tensors, against the model."""

from collections.abc import Iterable, Iterator
from typing import Any

from repogen.backends_data import BF16_ONNXRUNTIME
from repogen.check.onnx_examples import constant, model_bytes, node, onnx_model, tensor
from repogen.check.onnx_facts import OnnxFacts, Seen, readable_models, said_and_seen
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject
from repogen.dtypes import BY_TRITON

_NO_INVALID = "TYPE_INVALID"


def _extra_inputs(config: Any) -> list[str]:
    """Return the inputs that the server itself adds to a request."""
    batching = config.sequence_batching
    return [
        *(name for group in config.batch_input for name in group.target_name),
        *(control.name for control in batching.control_input),
        *(state.input_name for state in batching.state),
    ]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _unknown_input(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        accepted = [row.name for row in (*facts.inputs, *facts.overridable)]
        for index, said in enumerate(subject.config.input):
            if said.name in accepted or not said.name:
                continue
            fixed = said.name in facts.defaults
            why = f"{said.name!r} is a constant of {name}, which no request may give" if fixed else ""
            yield Problem(
                why or f"{name} has no input {said.name!r}",
                field=f"input[{index}].name",
                hint="remove it from the config" if fixed else f"the model has {_listed(accepted)}",
            )


def _missing_input(subject: Subject) -> Iterator[Problem]:
    given = [said.name for said in subject.config.input] + _extra_inputs(subject.config)
    for name, facts in readable_models(subject):
        for row in facts.inputs:
            if row.name not in given:
                unused = row.name in facts.unused
                note = " (the graph does not use it, but the backend asks for it all the same)" if unused else ""
                yield Problem(
                    f"the input {row.name!r} of {name} is not in the config{note}",
                    field="input",
                    hint=f'add input {{ name: "{row.name}" data_type: {row.dtype} ... }}',
                )


def _required_default(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        overridable = {row.name for row in facts.overridable}
        for index, said in enumerate(subject.config.input):
            if said.name in overridable and not said.optional:
                yield Problem(
                    f"{said.name!r} has a default value in {name}, so the backend does not count it as an input",
                    field=f"input[{index}]",
                    hint="remove it; or add `optional: true` where max_batch_size is 0",
                )


def _optional_input(subject: Subject) -> Iterator[Problem]:
    batched = subject.config.max_batch_size > 0
    for name, facts in readable_models(subject):
        required = {row.name for row in facts.inputs}
        for index, said in enumerate(subject.config.input):
            if said.optional and (said.name in required or batched):
                why = f"{name} has no default for it" if said.name in required else "max_batch_size is more than 0"
                yield Problem(
                    f"{said.name!r} is optional, but {why}",
                    field=f"input[{index}].optional",
                    hint="remove `optional`" if said.name in required else "remove the input: its default is then used",
                )


def _unknown_output(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        have = [row.name for row in facts.outputs]
        for index, said in enumerate(subject.config.output):
            if said.name not in have and said.name:
                hint = f"the model has {_listed(have)}"
                yield Problem(f"{name} has no output {said.name!r}", field=f"output[{index}].name", hint=hint)


def _no_outputs(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        if not subject.config.output:
            have = _listed(row.name for row in facts.outputs)
            yield Problem(f"no output of {name} is listed, so no request can ask for one", hint=f"the model has {have}")


def _unlisted_output(subject: Subject) -> Iterator[Problem]:
    listed = {said.name for said in subject.config.output}
    for name, facts in readable_models(subject):
        left_out = [row.name for row in facts.outputs if row.name not in listed]
        if listed and left_out:
            yield Problem(f"clients cannot ask for {_listed(left_out)} of {name}", field="output")


def _not_a_tensor(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        for part, seen in (("input", (*facts.inputs, *facts.overridable)), ("output", facts.outputs)):
            for row in seen:
                if row.kind != "tensor":
                    yield Problem(
                        f"the {part} {row.name!r} of {name} is of type {row.kind}, which the backend refuses",
                        field=part,
                        hint="export the model with plain tensors only (for scikit-learn: zipmap=False)",
                    )


def _type_not_carried(subject: Subject) -> Iterator[Problem]:
    for _, said, _, row in _typed(subject):
        if row.dtype not in BY_TRITON:
            hint = "cast it inside the graph to a type that Triton has"
            yield Problem(f"{row.name!r} is {row.dtype}, which Triton does not carry", field=said, hint=hint)
        elif row.dtype == "TYPE_BF16" and not subject.target.at_least(BF16_ONNXRUNTIME):
            message = f"{row.name!r} is BF16, which the onnxruntime backend carries only from release 26.03 on"
            yield Problem(message, field=said, hint="cast it to FP32 inside the graph, or serve with 26.03 or later")


def _typed(subject: Subject) -> Iterator[tuple[Any, str, OnnxFacts, Seen]]:
    for field, said, facts, row in said_and_seen(subject):
        yield said, f"{field}.data_type", facts, row


def _other_type(subject: Subject) -> Iterator[Problem]:
    from repogen.pbtxt import schema

    for said, field, facts, row in _typed(subject):
        have = schema().DataType.Name(said.data_type)
        if have not in (row.dtype, _NO_INVALID) and row.dtype in BY_TRITON:
            message = f"{row.name!r} is {row.dtype} in {facts.path.name}, {have} in the config"
            yield Problem(message, field=field, hint=f"write {row.dtype}")


def _with_default() -> bytes:
    inputs = [tensor("x"), tensor("k", (4,))]
    return model_bytes([node("Add", "x k")], inputs, constants=[constant("k", [1.0] * 4, "FLOAT")])


def _unused() -> bytes:
    return model_bytes(None, [tensor("x"), tensor("u")])


def _two_outputs() -> bytes:
    return model_bytes([node("Relu"), node("Neg", "x", "z")], None, [tensor("y"), tensor("z")])


def _sequence() -> bytes:
    from onnx import TensorProto, helper

    made = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    return model_bytes([node("Relu"), node("SequenceConstruct", "x", "s")], None, [tensor("y"), made])


def _bf16() -> bytes:
    return model_bytes([node("Identity")], [tensor("x", dtype="BFLOAT16")], [tensor("y", dtype="BFLOAT16")])


_X = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]'
_Y = 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'
_INPUT_K = 'input [{ name: "k" data_type: TYPE_FP32 dims: [4] }]'
_UNBATCHED = {"max_batch_size: 8": "max_batch_size: 0", "dims: [4]": "dims: [-1, 4]"}
_SERVER = "2.51"

RULES: tuple[Rule, ...] = (
    Rule(
        "RG350", "error", "The ONNX model has no such input",
        "The backend refuses a config that names an input that the graph does not have, or a constant of an old graph.",
        _unknown_input,
        bad=onnx_model(replaced={'name: "x"': 'name: "X"'}), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG351", "error", "An input of the ONNX model is not in the config",
        "The backend counts the inputs, unused ones included, and refuses a config with another number.",
        _missing_input,
        bad=onnx_model(file=_unused),
        good=onnx_model('input [{ name: "u" data_type: TYPE_FP32 dims: [4] }]', file=_unused), server=_SERVER,
    ),
    Rule(
        "RG352", "error", "An input with a default value is listed as required",
        "A constant that the graph also lists as an input is not counted as one by the backend.",
        _required_default, bad=onnx_model(_INPUT_K, file=_with_default), good=onnx_model(file=_with_default),
        server=_SERVER,
    ),
    Rule(
        "RG353", "error", "An input is optional where it cannot be",
        "The backend takes only inputs with a default value for optional, and none where it batches.",
        _optional_input,
        bad=onnx_model(replaced={_X: _X.replace("dims: [4]", "dims: [4] optional: true")}),
        good=onnx_model(
            'input [{ name: "k" data_type: TYPE_FP32 dims: [4] optional: true }]',
            replaced=_UNBATCHED, file=_with_default,
        ),
        server=_SERVER,
    ),
    Rule(
        "RG355", "error", "The ONNX model has no such output",
        "The backend refuses a config that names an output that the graph does not have.",
        _unknown_output,
        bad=onnx_model(replaced={'name: "y"': 'name: "nope"'}), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG356", "error", "No output is listed",
        "The model loads, and every request fails: at least one output should be requested.",
        _no_outputs, bad=onnx_model(replaced={_Y: ""}), good=onnx_model(), server=_SERVER,
        stricter="it loads and answers no request",
    ),
    Rule(
        "RG357", "note", "An output of the ONNX model is not listed",
        "The model loads, but a client that asks for the output is refused.",
        _unlisted_output,
        bad=onnx_model(file=_two_outputs),
        good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG359", "error", "An input or output of the ONNX model is not a tensor",
        "The backend refuses sequences, maps and optional types, even where the config does not list them.",
        _not_a_tensor, bad=onnx_model(file=_sequence), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG360", "error", "The backend does not carry a tensor's type",
        "Triton has no FP8 or complex types, and its onnxruntime backend has no BF16 before release 26.03.",
        _type_not_carried,
        bad=onnx_model(replaced={"TYPE_FP32": "TYPE_BF16"}, file=_bf16), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG361", "error", "A tensor's type differs from the ONNX model's",
        "The backend refuses the model. Its own message has the two sides the other way round.",
        _other_type,
        bad=onnx_model(replaced={"TYPE_FP32": "TYPE_INT64"}), good=onnx_model(), server=_SERVER,
    ),
)  # fmt: skip
