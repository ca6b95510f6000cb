"""RG70x: the requests that warm a model up."""

from collections.abc import Iterator
from typing import Any

from repogen.check.ensemble_graph import agree
from repogen.check.examples import python_model
from repogen.check.rule import Check, Problem, Rule
from repogen.check.sequence_rules import byte_size
from repogen.check.subject import Subject

_ENOUGH = 2**34
_STRING = 13


def _samples(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Return (field, sample) of the samples that the server runs: those of a batch of at least one."""
    if subject.model.backend != "ensemble":
        for index, sample in enumerate(subject.config.model_warmup):
            if sample.batch_size > 0:
                yield f"model_warmup[{index}]", sample


def _inputs(subject: Subject) -> Iterator[tuple[str, Any, str, Any]]:
    """Return (field, sample, name, input) of every input of the samples that run."""
    for field, sample in _samples(subject):
        for index, (name, given) in enumerate(sample.inputs.items()):
            yield f"{field}.inputs[{index}]", sample, name, given


def _known(subject: Subject) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in subject.config.input}


def _too_large(subject: Subject) -> Iterator[Problem]:
    most = max(subject.config.max_batch_size, 1)
    for field, sample in _samples(subject):
        if sample.batch_size > most:
            yield Problem(
                f"a warm-up batch of {sample.batch_size}, and the model takes {most}: it crashes the server",
                field=f"{field}.batch_size",
            )


def _missing(subject: Subject) -> Iterator[Problem]:
    for field, sample in _samples(subject):
        for tensor in subject.config.input:
            if tensor.name not in sample.inputs and not tensor.optional:
                yield Problem(f"the warm-up {sample.name!r} gives no input {tensor.name!r}", field=f"{field}.inputs")


def _nothing(subject: Subject) -> Iterator[Problem]:
    for field, sample in _samples(subject):
        if subject.config.max_batch_size > 0 and not any(name in sample.inputs for name in _known(subject)):
            message = f"the warm-up {sample.name!r} gives no input, so there is no batch, and it crashes the server"
            yield Problem(message, field=field)


def _unknown(subject: Subject) -> Iterator[Problem]:
    for field, sample, name, _ in _inputs(subject):
        if name not in _known(subject):
            yield Problem(f"the warm-up {sample.name!r} gives {name!r}, which is no input", field=field)


def _free(subject: Subject) -> Iterator[Problem]:
    for field, _, name, given in _inputs(subject):
        if any(dim < 0 for dim in given.dims):
            yield Problem(f"the warm-up of {name!r} has free dims", field=f"{field}.value.dims", hint="give numbers")


def _shape(subject: Subject) -> Iterator[Problem]:
    known = _known(subject)
    for field, _, name, given in _inputs(subject):
        if name in known and not agree(tuple(given.dims), tuple(known[name].dims)):
            yield Problem(
                f"the warm-up of {name!r} has dims {list(given.dims)}, the input {list(known[name].dims)}",
                field=f"{field}.value",
                hint="the batch dim is not among them",
            )


def _type(subject: Subject) -> Iterator[Problem]:
    known = _known(subject)
    for field, _, name, given in _inputs(subject):
        if name in known and given.data_type != known[name].data_type:
            message = f"the warm-up of {name!r} is of another data_type than the input"
            yield Problem(message, field=f"{field}.value")


def _no_data(subject: Subject) -> Iterator[Problem]:
    for field, _, name, given in _inputs(subject):
        if given.WhichOneof("input_data_type") is None:
            hint = "zero_data: true, random_data: true or input_data_file"
            yield Problem(f"the warm-up of {name!r} has no data", field=f"{field}.value", hint=hint)


def _file(subject: Subject) -> Iterator[Problem]:
    for field, _, name, given in _inputs(subject):
        if given.WhichOneof("input_data_type") == "input_data_file" and (message := _of_file(subject, given)):
            yield Problem(f"the warm-up file of {name!r} {message}", field=f"{field}.value.input_data_file")


def _of_file(subject: Subject, given: Any) -> str:
    path = subject.model.folder / "warmup" / given.input_data_file
    if not path.is_file():
        return f"is not there: warmup/{given.input_data_file}"
    if given.data_type == _STRING:
        return _of_strings(path.read_bytes(), given)
    needed, have = byte_size(given), path.stat().st_size
    return f"has {have} bytes where {needed} are needed" if have < needed else ""


def _of_strings(data: bytes, given: Any) -> str:
    """Return what is wrong with strings, each behind its length of four bytes."""
    expected, at = 1, 0
    for dim in given.dims:
        expected *= max(dim, 0)
    for found in range(expected):
        if at + 4 > len(data) or at + 4 + int.from_bytes(data[at : at + 4], "little") > len(data):
            return f"ends in its string {found + 1} of {expected}: each begins with its length in 4 bytes"
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    return "" if at == len(data) else f"goes on after its {expected} strings"


def _huge(subject: Subject) -> Iterator[Problem]:
    for field, sample, name, given in _inputs(subject):
        size = byte_size(given, string=4) * min(sample.batch_size, max(subject.config.max_batch_size, 1))
        if size > _ENOUGH:
            message = f"the warm-up of {name!r} takes {size / 2**30:.0f} GiB, and may crash the server"
            yield Problem(message, field=f"{field}.value.dims")


def _skipped(subject: Subject) -> Iterator[Problem]:
    for index, sample in enumerate(subject.config.model_warmup):
        if sample.batch_size == 0:
            field = f"model_warmup[{index}]"
            yield Problem(f"the warm-up {sample.name!r} has no batch_size, and is skipped in silence", field=field)


def _warmup(given: str = "dims: [4] zero_data: true", *, batch: str = "batch_size: 1", kind: str = "TYPE_FP32") -> str:
    return f'model_warmup [{{ name: "w" {batch} inputs {{ key: "x" value {{ data_type: {kind} {given} }} }} }}]'


def _rule(code: str, title: str, why: str, check: Check, bad: str, stricter: str = "") -> Rule:
    return Rule(code, "error", title, why, check, python_model(bad), python_model(_warmup()), stricter=stricter)


RULES: tuple[Rule, ...] = (
    _rule(
        "RG701",
        "A warm-up batch is larger than the model takes",
        "Nothing checks it: the request overruns the batch, and the server crashes.",
        _too_large,
        _warmup(batch="batch_size: 16"),
    ),
    _rule(
        "RG702",
        "A warm-up gives too few inputs",
        "The warm-up request fails, and with it the load.",
        _missing,
        _warmup().replace('"x"', '"X"'),
    ),
    Rule(
        "RG703",
        "error",
        "A warm-up without any input",
        "A batched request takes its batch from its inputs. Where all of them are optional and none is given, the "
        "server crashes.",
        _nothing,
        bad=python_model(
            'model_warmup [{ name: "w" batch_size: 1 }]',
            replaced={"dims: [4] }]\noutput": "dims: [4] optional: true }]\noutput"},
        ),
        good=python_model(_warmup()),
    ),
    _rule(
        "RG704",
        "A warm-up has free dims",
        "There are no data of an unknown size.",
        _free,
        _warmup("dims: [-1] zero_data: true"),
    ),
    _rule(
        "RG705",
        "A warm-up of another shape than the input",
        "The warm-up request fails, and with it the load.",
        _shape,
        _warmup("dims: [1, 4] zero_data: true"),
    ),
    _rule(
        "RG706",
        "A warm-up of another type than the input",
        "The warm-up request fails, and with it the load.",
        _type,
        _warmup(kind="TYPE_INT32"),
    ),
    _rule(
        "RG707",
        "A warm-up without data",
        "Each input needs zero_data, random_data or input_data_file.",
        _no_data,
        _warmup("dims: [4]"),
    ),
    _rule(
        "RG708",
        "A warm-up file is missing or too short",
        "It lies below warmup/ in the model's folder, and holds at least one sample.",
        _file,
        _warmup('dims: [4] input_data_file: "first.bin"'),
    ),
    Rule(
        "RG709",
        "error",
        "A warm-up larger than memory",
        "The data of a warm-up are made at load; where that fails the server crashes.",
        _huge,
        bad=python_model(
            _warmup("dims: [100000000000] zero_data: true"), replaced={"dims: [4] }]\noutput": "dims: [-1] }]\noutput"}
        ),
        good=python_model(_warmup()),
        stricter="it may still fit into the memory of a very large machine",
    ),
    Rule(
        "RG710",
        "warning",
        "A warm-up that never runs",
        "batch_size has no default: without it the sample is skipped, and nothing says so.",
        _skipped,
        bad=python_model(_warmup(batch="")),
        good=python_model(_warmup()),
    ),
    Rule(
        "RG711",
        "warning",
        "A warm-up gives an input that the model does not have",
        "It is ignored.",
        _unknown,
        bad=python_model(
            _warmup().replace(
                "inputs {", 'inputs { key: "w" value { data_type: TYPE_FP32 dims: [1] zero_data: true } } inputs {'
            )
        ),
        good=python_model(_warmup()),
    ),
)
