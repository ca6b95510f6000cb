"""RG45x, RG55x: the options of models that the onnxruntime backend serves."""

import re
from collections.abc import Iterator
from typing import Any

from repogen.backends_data import CPU_ACCELERATORS, GPU_ACCELERATORS, PRECISION_MODES, TENSORRT_ACCELERATOR_KEYS
from repogen.check.onnx_examples import model_bytes, node, onnx_model, tensor
from repogen.check.onnx_facts import readable_models
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject

_INTEGERS = ("execution_mode", "intra_op_thread_count", "inter_op_thread_count")
_BOOLEANS = ("enable_mem_arena", "enable_mem_pattern")
_STOI = re.compile(r"\s*[+-]?\d+")
_INT_MAX = 2**31 - 1
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_ACCELERATORS = "optimization.execution_accelerators"


def _decoupled(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend == "onnxruntime" and subject.config.model_transaction_policy.decoupled:
        yield Problem(
            "the backend gives one answer a request, but the model is decoupled: plain requests are refused",
            field="model_transaction_policy.decoupled",
            hint="remove model_transaction_policy",
        )


def _bare_sequences(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if subject.model.backend != "onnxruntime" or not config.HasField("sequence_batching"):
        return
    if config.max_batch_size > 0 and not config.sequence_batching.control_input and not config.sequence_batching.state:
        yield Problem(
            "sequence_batching has no controls and no state, so the model cannot tell one sequence from another, "
            "and requests of more than one sample are refused",
            field="sequence_batching",
            hint="write dynamic_batching { } in its place",
        )


def _sequence_input(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.sequence_batching
    for name, facts in readable_models(subject):
        inputs = {row.name: row for row in facts.inputs}
        for part in ("control_input", "state"):
            for index, said in enumerate(getattr(batching, part)):
                wanted = said.name if part == "control_input" else said.input_name
                where = f"sequence_batching.{part}[{index}]"
                if wanted not in inputs:
                    hint = f"the model has {', '.join(map(repr, inputs))}"
                    yield Problem(f"{name} has no input {wanted!r}", field=where, hint=hint)
                elif part == "control_input" and (shape := _inner(inputs[wanted].dims, subject.config)) != (1,):
                    yield Problem(f"the control {wanted!r} must have dims [1], {name} has {list(shape)}", field=where)


def _inner(dims: tuple[int, ...] | None, config: Any) -> tuple[int, ...]:
    return tuple(dims or ())[1 if config.max_batch_size > 0 else 0 :]


def _gpu_instances(subject: Subject) -> bool:
    """Return whether an instance may run on a GPU: accelerators for GPUs are only then looked at."""
    kinds = {group.Kind.Name(group.kind) for group in subject.config.instance_group} or {"KIND_AUTO"}
    return subject.target.gpu and bool(kinds & {"KIND_AUTO", "KIND_GPU"})


def _wrong_accelerators(subject: Subject) -> Iterator[Problem]:
    """Give what the backend says of the accelerators when it looks at them."""
    asked = subject.config.optimization.execution_accelerators
    for index, gpu in enumerate(asked.gpu_execution_accelerator):
        field = f"{_ACCELERATORS}.gpu_execution_accelerator[{index}]"
        if gpu.name not in GPU_ACCELERATORS:
            known = ", ".join(sorted(GPU_ACCELERATORS))
            yield Problem(f"{gpu.name!r} is not an accelerator for GPUs", field=f"{field}.name", hint=f"use {known}")
        elif gpu.name == "tensorrt":
            yield from _tensorrt_keys(gpu, field)


def _tensorrt_keys(accelerator: Any, field: str) -> Iterator[Problem]:
    for key, value in sorted(accelerator.parameters.items()):
        if key not in TENSORRT_ACCELERATOR_KEYS:
            known = ", ".join(sorted(TENSORRT_ACCELERATOR_KEYS))
            yield Problem(f"the TensorRT accelerator has no parameter {key!r}", field=f"{field}.parameters", hint=known)
        elif key == "precision_mode" and value not in PRECISION_MODES:
            hint = ", ".join(sorted(PRECISION_MODES))
            yield Problem(f"{value!r} is not a precision mode", field=f"{field}.parameters", hint=hint)


def _gpu_accelerator(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend == "onnxruntime" and _gpu_instances(subject):
        yield from _wrong_accelerators(subject)


def _ignored_accelerator(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "onnxruntime" or _gpu_instances(subject):
        return
    for index, gpu in enumerate(subject.config.optimization.execution_accelerators.gpu_execution_accelerator):
        yield Problem(
            f"the accelerator {gpu.name!r} is for GPUs, and no instance runs on one: it is ignored",
            field=f"{_ACCELERATORS}.gpu_execution_accelerator[{index}]",
            hint="write instance_group { kind: KIND_GPU }, or remove it",
        )
    for problem in _wrong_accelerators(subject):
        yield Problem(f"{problem.message} (refused once an instance runs on a GPU)", problem.field, problem.hint)


def _cpu_accelerator(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "onnxruntime":
        return
    for index, cpu in enumerate(subject.config.optimization.execution_accelerators.cpu_execution_accelerator):
        if cpu.name not in CPU_ACCELERATORS:
            field = f"{_ACCELERATORS}.cpu_execution_accelerator[{index}].name"
            yield Problem(f"{cpu.name!r} is not an accelerator for CPUs", field=field, hint="openvino is the only one")


def _openvino(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "onnxruntime":
        return
    for index, cpu in enumerate(subject.config.optimization.execution_accelerators.cpu_execution_accelerator):
        if cpu.name in CPU_ACCELERATORS:
            yield Problem(
                f"the server refuses the model where its ONNX Runtime was built without {cpu.name}",
                field=f"{_ACCELERATORS}.cpu_execution_accelerator[{index}].name",
                hint="NVIDIA's x86 images have it; your own builds need --enable-openvino for ONNX Runtime",
            )


def _parameters(subject: Subject, keys: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Give the parameters that the backend reads: key, value, field."""
    if subject.model.backend == "onnxruntime":
        for key in sorted(set(subject.config.parameters) & set(keys)):
            yield key, subject.config.parameters[key].string_value, "parameters"


def _not_a_number(subject: Subject) -> Iterator[Problem]:
    for key, value, field in _parameters(subject, _INTEGERS):
        match = _STOI.match(value)
        if match is None:
            yield Problem(f"{key} is {value!r}, not a number", field=field, hint='write a number, such as "4"')
        elif key == "execution_mode" and abs(int(match[0])) <= _INT_MAX and int(match[0]) not in (0, 1):
            yield Problem(f"execution_mode is {value!r}", field=field, hint="0 is sequential, 1 is parallel")
    for key, value, field in _parameters(subject, _BOOLEANS):
        if value.lower() not in ("true", "false", "1", "0"):
            yield Problem(f"{key} is {value!r}, neither true nor false", field=field, hint='write "1" or "0"')


def _kills_the_server(subject: Subject) -> Iterator[Problem]:
    for key, value, field in _parameters(subject, _INTEGERS):
        match = _STOI.match(value)
        if match is not None and not -_INT_MAX - 1 <= int(match[0]) <= _INT_MAX:
            yield Problem(f"{key} {value} does not fit 32 bits: the server itself ends", field=field, hint="write 0")


def _shrinkage(subject: Subject) -> Iterator[Problem]:
    for _, value, field in _parameters(subject, (_SHRINKAGE,)):
        if "gpu" in value and not _gpu_instances(subject):
            yield Problem(
                f"{_SHRINKAGE} names {value!r}, but no instance runs on a GPU: every request fails",
                field=field,
                hint='write "cpu:0", or remove it',
            )


def _accelerated(kind: str, name: str, parameters: str = "") -> str:
    inner = f'{kind}_execution_accelerator [{{ name: "{name}" {parameters} }}]'
    return f"optimization {{ execution_accelerators {{ {inner} }} }}"


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def _with_start() -> bytes:
    return model_bytes([node("Add", "x start")], [tensor("x"), tensor("start", ("N", 1))])


_ON_GPU = {"KIND_CPU": "KIND_GPU"}
_CONTROL = """sequence_batching {
  control_input [{ name: "start" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] }]
}"""


_SERVER = "2.51"

RULES: tuple[Rule, ...] = (
    Rule(
        "RG450", "error", "A decoupled ONNX model",
        "The model loads, but the inference call for one answer is refused, and the backend never gives another.",
        _decoupled, bad=onnx_model("model_transaction_policy { decoupled: true }"), good=onnx_model(), server=_SERVER,
        stricter="it loads and answers no request",
    ),
    Rule(
        "RG451", "error", "Sequence batching that the ONNX model knows nothing of",
        "The model loads, and only requests of one sample are accepted, each of which must belong to a sequence.",
        _bare_sequences, bad=onnx_model("sequence_batching { }"), good=onnx_model("dynamic_batching { }"),
        server=_SERVER, stricter="it loads and refuses every batch",
    ),
    Rule(
        "RG452", "error", "A sequence control or state that the ONNX model has no input for",
        "The backend looks for the input in the graph, where a control must have dims [1].",
        _sequence_input, bad=onnx_model(_CONTROL), good=onnx_model(_CONTROL, file=_with_start), server=_SERVER,
    ),
    Rule(
        "RG550", "error", "An unknown GPU accelerator, or a parameter that it does not have",
        "The backend refuses the model when an instance runs on a GPU.",
        _gpu_accelerator,
        bad=onnx_model(
            _accelerated("gpu", "tensorrt", 'parameters { key: "precision" value: "FP16" }'), replaced=_ON_GPU
        ),
        good=onnx_model(
            _accelerated("gpu", "tensorrt", 'parameters { key: "precision_mode" value: "FP16" }'), replaced=_ON_GPU
        ),
        server=_SERVER,
    ),
    Rule(
        "RG551", "warning", "A GPU accelerator on instances without a GPU",
        "The backend does not even look at it.",
        _ignored_accelerator, bad=onnx_model(_accelerated("gpu", "cuda")),
        good=onnx_model(_accelerated("gpu", "cuda"), replaced=_ON_GPU), server=_SERVER,
    ),
    Rule(
        "RG552", "error", "An unknown CPU accelerator",
        "The backend knows openvino only.",
        _cpu_accelerator, bad=onnx_model(_accelerated("cpu", "bogus")),
        good=onnx_model(_accelerated("cpu", "openvino")), server=_SERVER,
    ),
    Rule(
        "RG553", "warning", "OpenVINO inside ONNX Runtime is not in every build",
        "A server whose ONNX Runtime was built without OpenVINO refuses the model.",
        _openvino, bad=onnx_model(_accelerated("cpu", "openvino")), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG554", "error", "A parameter of the backend that is not of its type",
        "The backend reads thread counts and execution_mode as numbers, enable_mem_* as booleans.",
        _not_a_number, bad=onnx_model(_parameter("intra_op_thread_count", "abc")),
        good=onnx_model(_parameter("intra_op_thread_count", "2")), server=_SERVER,
    ),
    Rule(
        "RG555", "error", "A number that ends the server",
        "The backend does not expect a number out of range: the process ends, and all other models with it.",
        _kills_the_server, bad=onnx_model(_parameter("intra_op_thread_count", "999999999999")),
        good=onnx_model(_parameter("intra_op_thread_count", "2")), server=_SERVER,
    ),
    Rule(
        "RG556", "error", "The arena of a GPU is to be shrunk where there is none",
        "The model loads, and every request fails.",
        _shrinkage, bad=onnx_model(_parameter(_SHRINKAGE, "gpu:0")), good=onnx_model(_parameter(_SHRINKAGE, "cpu:0")),
        server=_SERVER, stricter="it loads and answers no request",
    ),
)  # fmt: skip
