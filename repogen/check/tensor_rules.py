"""RG3xx: the tensors as the config states them, without a look at the model's file."""

import math
from collections.abc import Iterator
from typing import Any

from repogen.check.autofill import TENSORRT
from repogen.check.examples import python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject

_X = 'name: "x" data_type: TYPE_FP32 dims: [4]'
_Y = 'name: "y" data_type: TYPE_FP32 dims: [4]'
_INT64_MAX = 2**63 - 1
_IMAGE_RANK = 3
_IMAGES = (1, 2)  # FORMAT_NHWC, FORMAT_NCHW


def tensors(subject: Subject) -> Iterator[tuple[str, str, Any]]:
    """Return (field, what it is for people, tensor) of every input and output."""
    for part in ("input", "output"):
        for index, tensor in enumerate(getattr(subject.config, part)):
            yield f"{part}[{index}]", f"{part} {tensor.name!r}", tensor


def shape_chunks(dims: Any) -> list[int]:
    """Return the element counts between the free dims of a shape: [2, 3, -1, 4] is [6, 4]."""
    chunks = [1]
    for dim in dims:
        if dim == -1:
            chunks.append(1)
        else:
            chunks[-1] *= dim
    return chunks


def _unnamed(subject: Subject) -> Iterator[Problem]:
    for field, _, tensor in tensors(subject):
        if not tensor.name:
            yield Problem(f"{field} has no name", field=field)


def _untyped(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if tensor.data_type == 0:
            yield Problem(f"the {what} has no data_type", field=field, hint="data_type: TYPE_FP32, for example")


def _no_dims(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if not tensor.dims:
            hint = "a scalar is dims: [1] with reshape { shape: [] }, where the model is batched"
            yield Problem(f"the {what} has no dims", field=field, hint=hint)


def _bad_dims(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        for part, dims in (("dims", tensor.dims), ("reshape.shape", tensor.reshape.shape)):
            for index, dim in enumerate(dims):
                if dim < 1 and dim != -1:
                    where = f"{field}.{part}[{index}]"
                    yield Problem(f"the {what} has the dim {dim}", field=where, hint="a dim is at least 1, or -1")


def _empty_reshape(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if subject.config.max_batch_size == 0 and tensor.HasField("reshape") and not tensor.reshape.shape:
            hint = "a model without batching has no scalars: give the model's tensor the shape [1]"
            yield Problem(f"the {what} is reshaped to a scalar", field=f"{field}.reshape", hint=hint)


def _reshape(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if not tensor.HasField("reshape") or not tensor.dims or any(d < 1 and d != -1 for d in tensor.dims):
            continue
        if _wrapped(tensor.dims) != _wrapped(tensor.reshape.shape):
            have, new = list(tensor.dims), list(tensor.reshape.shape)
            yield Problem(
                f"the {what} cannot be reshaped from {have} to {new}",
                field=f"{field}.reshape",
                hint="both need the same number of elements, and between free dims too",
            )


def _wrapped(dims: Any) -> list[int]:
    """Return the chunks as the server counts them, in 64 bits."""
    return [(count + 2**63) % 2**64 - 2**63 for count in shape_chunks(dims)]


def _doubled(subject: Subject) -> Iterator[Problem]:
    for part in ("input", "output"):
        seen: set[str] = set()
        for index, tensor in enumerate(getattr(subject.config, part)):
            if tensor.name and tensor.name in seen:
                yield Problem(f"the {part} {tensor.name!r} stands twice", field=f"{part}[{index}].name")
            seen.add(tensor.name)


def _both_ways(subject: Subject) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in subject.config.input}
    for index, tensor in enumerate(subject.config.output):
        if tensor.name and tensor.name in inputs:
            yield Problem(f"{tensor.name!r} is an input and an output", field=f"output[{index}].name")


def _format(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.input):
        if tensor.format in _IMAGES and len(tensor.dims) != _IMAGE_RANK:
            yield Problem(
                f"the input {tensor.name!r} has a format, and {len(tensor.dims)} dims where an image has 3",
                field=f"input[{index}].format",
                hint="leave format out: only a few clients read it",
            )


def _tensorrt_only(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        for flag in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, flag) and subject.model.filled.platform != TENSORRT:
                yield Problem(f"{flag} of the {what} is for TensorRT plans only", field=f"{field}.{flag}")


def _non_linear_rank(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if tensor.is_non_linear_format_io and len(tensor.dims) != _IMAGE_RANK:
            yield Problem(f"the {what} is not linear, and then needs 3 dims", field=f"{field}.dims")


def _labels(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.output):
        if tensor.label_filename:
            path = subject.model.folder / tensor.label_filename.lstrip("/")
            if not path.is_file():
                yield Problem(
                    f"the labels of the output {tensor.name!r} are not there: {tensor.label_filename}",
                    field=f"output[{index}].label_filename",
                    hint="it is a text file beside config.pbtxt, a label a line",
                )


def _batch_input(subject: Subject) -> Iterator[Problem]:
    schema = subject.config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name
    allowed = (schema["TYPE_INT32"].number, schema["TYPE_FP32"].number)
    inputs = {tensor.name for tensor in subject.config.input}
    for index, said in enumerate(subject.config.batch_input):
        field = f"batch_input[{index}]"
        if len(said.source_input) != 1:
            yield Problem(f"{field} needs one source_input, not {len(said.source_input)}", field=field)
        if said.data_type not in allowed:
            yield Problem(f"{field} must be of TYPE_INT32 or TYPE_FP32", field=f"{field}.data_type")
        for source in said.source_input:
            if source not in inputs:
                yield Problem(f"{field} counts {source!r}, which is no input", field=f"{field}.source_input")


def _batch_output(subject: Subject) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in subject.config.input}
    outputs = {tensor.name for tensor in subject.config.output}
    for index, said in enumerate(subject.config.batch_output):
        field = f"batch_output[{index}]"
        if len(said.source_input) != 1:
            yield Problem(f"{field} needs one source_input, not {len(said.source_input)}", field=field)
        if not said.target_name:
            yield Problem(f"{field} has no target_name, which crashes the server", field=field)
        if len(set(said.target_name)) != len(said.target_name):
            yield Problem(f"{field} names an output twice", field=f"{field}.target_name")
        for name in said.target_name:
            if name not in outputs:
                yield Problem(f"{field} fills {name!r}, which is no output", field=f"{field}.target_name")
        for source in said.source_input:
            if source not in inputs:
                yield Problem(f"{field} follows {source!r}, which is no input", field=f"{field}.source_input")


def _ragged(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.input):
        if tensor.allow_ragged_batch and subject.config.max_batch_size == 0:
            field = f"input[{index}].allow_ragged_batch"
            yield Problem(f"the input {tensor.name!r} is ragged, but the model is not batched", field=field)


def _none(subject: Subject) -> Iterator[Problem]:
    for part in ("input", "output"):
        if not getattr(subject.config, part):
            yield Problem(
                f"the config has no {part}",
                hint="with auto-complete off, what is not in the config cannot be asked for",
            )


def _overflow(subject: Subject) -> Iterator[Problem]:
    for field, what, tensor in tensors(subject):
        if math.prod(abs(dim) for dim in tensor.dims) > _INT64_MAX:
            yield Problem(f"the {what} has more than 2^63 elements", field=f"{field}.dims")


RULES: tuple[Rule, ...] = (
    Rule(
        "RG301",
        "error",
        "A tensor has no name",
        "The server refuses the model.",
        _unnamed,
        bad=python_model(replaced={'name: "x" ': ""}),
        good=python_model(),
    ),
    Rule(
        "RG302",
        "error",
        "A tensor has no data type",
        "With auto-complete off the server refuses the model.",
        _untyped,
        bad=python_model(replaced={_X: 'name: "x" dims: [4]'}),
        good=python_model(),
    ),
    Rule(
        "RG303",
        "error",
        "A tensor has no dims",
        "With auto-complete off the server refuses the model.",
        _no_dims,
        bad=python_model(replaced={_Y: 'name: "y" data_type: TYPE_FP32'}),
        good=python_model(),
    ),
    Rule(
        "RG304",
        "error",
        "A dim is neither positive nor -1",
        "0 is refused too: an axis that may be empty is -1, and an empty request then works.",
        _bad_dims,
        bad=python_model(replaced={_X: 'name: "x" data_type: TYPE_FP32 dims: [0]'}),
        good=python_model(replaced={_X: 'name: "x" data_type: TYPE_FP32 dims: [-1]'}),
    ),
    Rule(
        "RG305",
        "error",
        "A tensor of a model without batching is reshaped to a scalar",
        "An empty shape can only be served where a batch dim stands before it.",
        _empty_reshape,
        bad=python_model(replaced={"size: 8": "size: 0", _X: _X.replace("[4]", "[1] reshape { shape: [] }")}),
        good=python_model(replaced={_X: _X.replace("[4]", "[1] reshape { shape: [] }")}),
    ),
    Rule(
        "RG306",
        "error",
        "dims and reshape do not hold the same elements",
        "Every stretch between free dims has to keep its number of elements.",
        _reshape,
        bad=python_model(replaced={_X: _X.replace("[4]", "[4] reshape { shape: [2, 3] }")}),
        good=python_model(replaced={_X: _X.replace("[4]", "[4] reshape { shape: [2, 2] }")}),
    ),
    Rule(
        "RG307",
        "error",
        "A tensor stands twice",
        "The server loads it; requests are then matched to one of the two, and backends differ in which.",
        _doubled,
        bad=python_model(f"input [{{ {_X.replace('[4]', '[9]')} }}]"),
        good=python_model(f"input [{{ {_X.replace('x', 'mask')} }}]"),
        stricter="a request must give the input once, so one of the two is never filled",
    ),
    Rule(
        "RG308",
        "warning",
        "One name is an input and an output",
        "Most backends address tensors by name alone.",
        _both_ways,
        bad=python_model(replaced={'name: "y"': 'name: "x"'}),
        good=python_model(),
    ),
    Rule(
        "RG309",
        "error",
        "An image format without three dims",
        "FORMAT_NHWC and FORMAT_NCHW are for dims of three, the batch dim not counted.",
        _format,
        bad=python_model(replaced={_X: 'name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [1, 3, 32, 32]'}),
        good=python_model(replaced={_X: 'name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, 32, 32]'}),
    ),
    Rule(
        "RG310",
        "error",
        "A flag of TensorRT plans on another backend",
        "is_shape_tensor and is_non_linear_format_io are refused elsewhere.",
        _tensorrt_only,
        bad=python_model(replaced={_X: f"{_X} is_shape_tensor: true"}),
        good=python_model(),
    ),
    Rule(
        "RG311",
        "error",
        "A tensor in a vectorised layout needs three dims",
        "The server refuses the model.",
        _non_linear_rank,
        bad=python_model(replaced={'"python"': '"tensorrt"', _X: f"{_X} is_non_linear_format_io: true"}),
        good=python_model(),
        server="26.08",
    ),
    Rule(
        "RG312",
        "error",
        "A file of labels is missing",
        "The server refuses the model, and crashes where the name is that of a folder.",
        _labels,
        bad=python_model(replaced={_Y: f'{_Y} label_filename: "labels.txt"'}),
        good=python_model(replaced={_Y: f'{_Y} label_filename: "labels.txt"'}, files={"m/labels.txt": "cat\ndog\n"}),
    ),
    Rule(
        "RG313",
        "error",
        "A batch_input is incomplete",
        "It counts one input of the model, and is of TYPE_INT32 or TYPE_FP32.",
        _batch_input,
        bad=python_model('batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 }]'),
        good=python_model(
            'batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x" }]'
        ),
    ),
    Rule(
        "RG314",
        "error",
        "A batch_output is incomplete",
        "It fills outputs of the model after the shape of one input.",
        _batch_output,
        bad=python_model('batch_output [{ target_name: "z" source_input: "x" }]'),
        good=python_model('batch_output [{ target_name: "y" source_input: "x" }]'),
    ),
    Rule(
        "RG315",
        "warning",
        "A ragged input of a model without batching",
        "allow_ragged_batch joins requests of different shapes; without batching there is nothing to join.",
        _ragged,
        bad=python_model(replaced={"size: 8": "size: 0", _X: f"{_X} allow_ragged_batch: true"}),
        good=python_model(replaced={_X: f"{_X} allow_ragged_batch: true"}),
    ),
    Rule(
        "RG316",
        "warning",
        "The config has no inputs, or no outputs",
        "With auto-complete off the server serves what the config says, and that is nothing.",
        _none,
        bad=python_model(replaced={f"output [{{ {_Y} }}]\n": ""}),
        good=python_model(),
    ),
    Rule(
        "RG317",
        "warning",
        "A tensor is larger than 64 bits can count",
        "The server multiplies the dims without a look at the overflow.",
        _overflow,
        bad=python_model(replaced={_X: _X.replace("[4]", "[4294967296, 4294967296]")}),
        good=python_model(),
    ),
)
