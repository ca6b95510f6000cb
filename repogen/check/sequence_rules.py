"""RG42x: sequences, their controls and their state."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from repogen.check.examples import python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject
from repogen.dtypes import BY_TRITON

_LISTS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID = 3
_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_MOST_SLOTS = 1_000_000
_ENOUGH = 2**34


def _controls(subject: Subject) -> Iterator[tuple[str, Any, Any]]:
    """Return (field, tensor, control) of every control that is known."""
    for index, tensor in enumerate(subject.config.sequence_batching.control_input):
        for number, control in enumerate(tensor.control):
            if control.kind in control.DESCRIPTOR.enum_types_by_name["Kind"].values_by_number:
                yield f"sequence_batching.control_input[{index}].control[{number}]", tensor, control


def _kind(control: Any) -> str:
    return str(control.DESCRIPTOR.enum_types_by_name["Kind"].values_by_number[control.kind].name)


def _unnamed(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.sequence_batching.control_input):
        if not tensor.name:
            yield Problem("a control_input has no name", field=f"sequence_batching.control_input[{index}]")


def _shared_tensor(subject: Subject) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, tensor in enumerate(subject.config.sequence_batching.control_input):
        if tensor.name and tensor.name in seen:
            field = f"sequence_batching.control_input[{index}].name"
            yield Problem(f"the control_input {tensor.name!r} stands twice", field=field)
        seen.add(tensor.name)


def _doubled_kind(subject: Subject) -> Iterator[Problem]:
    seen: set[int] = set()
    for field, _, control in _controls(subject):
        if control.kind in seen:
            yield Problem(f"{_kind(control)} stands twice", field=field)
        seen.add(control.kind)


def _values(subject: Subject) -> Iterator[Problem]:
    for field, tensor, control in _controls(subject):
        given = [name for name in _LISTS if getattr(control, name)]
        if control.kind == _CORRID:
            if given:
                yield Problem(f"{_kind(control)} takes a data_type, not {given[0]}", field=f"{field}.{given[0]}")
        elif len(given) != 1:
            yield Problem(
                f"{_kind(control)} of {tensor.name!r} needs one of {', '.join(_LISTS)}, and has {len(given)}",
                field=field,
                hint="fp32_false_true: [0, 1]",
            )
        elif len(getattr(control, given[0])) != 2:  # noqa: PLR2004 - the values for false and for true
            yield Problem(f"{given[0]} needs two values: for false and for true", field=f"{field}.{given[0]}")


def _correlation(subject: Subject) -> Iterator[Problem]:
    for field, _, control in _controls(subject):
        if control.kind == _CORRID and _type(control) not in _CORRID_TYPES:
            have = _type(control) or control.data_type
            yield Problem(f"a correlation ID is of {', '.join(_CORRID_TYPES)}, not {have}", field=field)


def _type(message: Any) -> str:
    values = message.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return str(values[message.data_type].name) if message.data_type in values else ""


def _slot_share(subject: Subject) -> Iterator[Problem]:
    share = subject.config.sequence_batching.direct.minimum_slot_utilization
    if share < 0 or share > 1:
        field = "sequence_batching.direct.minimum_slot_utilization"
        yield Problem(f"minimum_slot_utilization is {share:g}", field=field, hint="give a share from 0 to 1")


def _too_many_slots(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if not config.HasField("sequence_batching"):
        return
    if config.sequence_batching.HasField("oldest"):
        slots, field = config.sequence_batching.oldest.max_candidate_sequences, "max_candidate_sequences"
        where = f"sequence_batching.oldest.{field}"
    else:
        slots, field, where = config.max_batch_size, "max_batch_size", "max_batch_size"
    if slots > _MOST_SLOTS:
        yield Problem(
            f"{field} {slots} makes as many slots for sequences, for which the server takes minutes, or runs out "
            "of memory",
            field=where,
            hint="give as many as there are sequences at a time",
        )


def _no_candidates(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.sequence_batching
    if batching.HasField("oldest") and batching.oldest.max_candidate_sequences < 1:
        yield Problem(
            f"max_candidate_sequences is {batching.oldest.max_candidate_sequences}: no sequence is ever served",
            field="sequence_batching.oldest.max_candidate_sequences",
            hint="give as many as there are sequences at a time",
        )


def _states(subject: Subject) -> Iterator[tuple[str, Any]]:
    for index, state in enumerate(subject.config.sequence_batching.state):
        yield f"sequence_batching.state[{index}]", state


def _initial_state(subject: Subject) -> Iterator[Problem]:
    for field, state in _states(subject):
        if len(state.initial_state) > 1:
            yield Problem(f"{len(state.initial_state)} initial states for one", field=f"{field}.initial_state")
        for index, initial in enumerate(state.initial_state):
            for message in _against_state(initial, state):
                yield Problem(f"the initial state of {state.input_name!r} {message}", f"{field}.initial_state[{index}]")


def _against_state(initial: Any, state: Any) -> Iterator[str]:
    if not initial.name:
        yield "has no name"
    if initial.data_type != state.data_type:
        yield "has another data_type than the state"
    if len(initial.dims) != len(state.dims):
        yield f"has {len(initial.dims)} dims where the state has {len(state.dims)}"
        return
    for dim, wanted in zip(initial.dims, state.dims, strict=True):
        if dim < 0:
            yield f"has the free dim {dim}"
        elif wanted not in (-1, dim):
            yield f"has the dim {dim} where the state has {wanted}"


def _initial_data(subject: Subject) -> Iterator[Problem]:
    for field, state in _states(subject):
        for index, initial in enumerate(state.initial_state):
            if message := _data_of(subject, initial):
                where = f"{field}.initial_state[{index}]"
                yield Problem(f"the initial state of {state.input_name!r} {message}", field=where)


def _data_of(subject: Subject, initial: Any) -> str:
    if initial.WhichOneof("state_data") is None:
        return "has neither zero_data nor data_file"
    if (needed := byte_size(initial, string=4)) > _ENOUGH:
        return f"takes {needed / 2**30:.0f} GiB, and may crash the server"
    if not initial.data_file:
        return "" if initial.HasField("zero_data") else "has an empty data_file, which crashes the server"
    file = subject.model.folder / "initial_state" / initial.data_file
    if not file.is_file():
        return f"is not there: initial_state/{initial.data_file}, and that crashes the server"
    needed = byte_size(initial)
    have = file.stat().st_size
    return f"needs {needed} bytes, and initial_state/{initial.data_file} has {have}" if have < needed else ""


def byte_size(tensor: Any, *, string: int = 0) -> int:
    """Return the bytes of a tensor of fixed dims, with `string` of them for each string."""
    row = BY_TRITON.get(_type(tensor))
    size = (row.size or string) if row else 0
    for dim in tensor.dims:
        size *= dim
    return size


def _doubled_initial(subject: Subject) -> Iterator[Problem]:
    counts = Counter(state.input_name for _, state in _states(subject) if state.initial_state)
    for field, state in _states(subject):
        if state.initial_state and counts[state.input_name] > 1:
            message = f"the state {state.input_name!r} has an initial value more than once"
            yield Problem(message, field=f"{field}.input_name")


def _incomplete_state(subject: Subject) -> Iterator[Problem]:
    for side in ("input_name", "output_name"):
        counts = Counter(getattr(state, side) for _, state in _states(subject))
        for field, state in _states(subject):
            name = getattr(state, side)
            if not name:
                yield Problem(f"a state has no {side}", field=field)
            elif counts[name] > 1:
                yield Problem(f"the {side} {name!r} is of more than one state", field=f"{field}.{side}")
    for field, state in _states(subject):
        if not state.data_type or not state.dims or any(dim < 1 and dim != -1 for dim in state.dims):
            yield Problem(f"the state {state.input_name!r} needs a data_type and dims of 1 or more, or -1", field=field)


def _growable(subject: Subject) -> Iterator[Problem]:
    for field, state in _states(subject):
        if state.use_growable_memory and not (state.use_same_buffer_for_input_output and subject.target.gpu):
            yield Problem(
                f"the state {state.input_name!r} cannot grow: that needs use_same_buffer_for_input_output and a GPU",
                field=f"{field}.use_growable_memory",
            )


def _no_controls(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.sequence_batching
    if subject.config.HasField("sequence_batching") and not batching.control_input and not batching.state:
        yield Problem(
            "the model is told neither the start of a sequence nor which one it is",
            field="sequence_batching",
            hint="give control_input, or use dynamic_batching",
        )


_START = 'sequence_batching {{ control_input [{{ name: "{}" control [{{ kind: CONTROL_SEQUENCE_START {} }}] }}] }}'
_STATE = (
    'sequence_batching {{ state [{{ input_name: "past" output_name: "next" data_type: TYPE_FP32 dims: [2] {} }}] }}'
)
_INITIAL = 'initial_state {{ name: "start" data_type: TYPE_FP32 dims: [{}] {} }}'

RULES: tuple[Rule, ...] = (
    Rule(
        "RG421",
        "error",
        "A control has no name",
        "The server refuses the model.",
        _unnamed,
        bad=python_model(_START.format("", "fp32_false_true: [0, 1]")),
        good=python_model(_START.format("START", "fp32_false_true: [0, 1]")),
    ),
    Rule(
        "RG422",
        "error",
        "Two controls of the same tensor",
        "One control_input may have several controls; two of the same name are refused.",
        _shared_tensor,
        bad=python_model(
            'sequence_batching { control_input [{ name: "C" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: '
            '[0, 1] }] }, { name: "C" control [{ kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] }] }] }'
        ),
        good=python_model(
            'sequence_batching { control_input [{ name: "C" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: '
            '[0, 1] }] }, { name: "D" control [{ kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] }] }] }'
        ),
    ),
    Rule(
        "RG423",
        "error",
        "One kind of control stands twice",
        "The server refuses the model.",
        _doubled_kind,
        bad=python_model(
            'sequence_batching { control_input [{ name: "A" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: '
            'TYPE_UINT64 }] }, { name: "B" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }] }'
        ),
        good=python_model(
            'sequence_batching { control_input [{ name: "A" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: '
            "TYPE_UINT64 }] }] }"
        ),
    ),
    Rule(
        "RG424",
        "error",
        "The values of a control are not a pair",
        "START, END and READY need one list, with the values for false and for true; CORRID needs none.",
        _values,
        bad=python_model(_START.format("START", "fp32_false_true: [1]")),
        good=python_model(_START.format("START", "int32_false_true: [0, 1]")),
    ),
    Rule(
        "RG425",
        "error",
        "A correlation ID of a wrong type",
        "It is a number or a string.",
        _correlation,
        bad=python_model(
            'sequence_batching { control_input [{ name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: '
            "TYPE_FP32 }] }] }"
        ),
        good=python_model(
            'sequence_batching { control_input [{ name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: '
            "TYPE_STRING }] }] }"
        ),
    ),
    Rule(
        "RG426",
        "error",
        "A share of slots outside 0 to 1",
        "The server refuses the model.",
        _slot_share,
        bad=python_model("sequence_batching { direct { minimum_slot_utilization: 50 } }"),
        good=python_model("sequence_batching { direct { minimum_slot_utilization: 0.5 } }"),
    ),
    Rule(
        "RG427",
        "error",
        "More slots for sequences than memory",
        "The server makes every slot at load. A million takes seconds; ten million did not end.",
        _too_many_slots,
        bad=python_model("sequence_batching { oldest { max_candidate_sequences: 2000000000 } }"),
        good=python_model("sequence_batching { oldest { max_candidate_sequences: 64 } }"),
        stricter="between one and ten million slots the load may still end, after minutes",
    ),
    Rule(
        "RG428",
        "error",
        "No sequence can be a candidate",
        "The server loads it, and no request is ever answered.",
        _no_candidates,
        bad=python_model("sequence_batching { oldest { } }"),
        good=python_model("sequence_batching { oldest { max_candidate_sequences: 4 } }"),
        stricter="it loads, and then every request waits for ever",
    ),
    Rule(
        "RG431",
        "error",
        "The initial state does not fit the state",
        "Type and dims have to be those of the state, without free dims.",
        _initial_state,
        bad=python_model(_STATE.format(_INITIAL.format(3, "zero_data: true"))),
        good=python_model(_STATE.format(_INITIAL.format(2, "zero_data: true"))),
    ),
    Rule(
        "RG432",
        "error",
        "The initial state has no data",
        "A file that is missing below initial_state/ crashes the server.",
        _initial_data,
        bad=python_model(_STATE.format(_INITIAL.format(2, 'data_file: "zeros"'))),
        good=python_model(
            _STATE.format(_INITIAL.format(2, 'data_file: "zeros"')), files={"m/initial_state/zeros": bytes(8)}
        ),
    ),
    Rule(
        "RG433",
        "error",
        "Two initial values for one state",
        "The server refuses the model.",
        _doubled_initial,
        bad=python_model(
            "sequence_batching { state ["
            + ", ".join(
                f'{{ input_name: "past" output_name: "{name}" data_type: TYPE_FP32 dims: [1] '
                'initial_state { name: "i" data_type: TYPE_FP32 dims: [1] zero_data: true } }'
                for name in ("a", "b")
            )
            + "] }"
        ),
        good=python_model(_STATE.format(_INITIAL.format(2, "zero_data: true"))),
    ),
    Rule(
        "RG434",
        "error",
        "A state is incomplete",
        "The server loads it, and the first request of a sequence fails or runs without its state.",
        _incomplete_state,
        bad=python_model('sequence_batching { state [{ input_name: "past" data_type: TYPE_FP32 dims: [2] }] }'),
        good=python_model(_STATE.format("")),
        stricter="it loads, and the state is not kept",
    ),
    Rule(
        "RG435",
        "error",
        "A state cannot grow",
        "use_growable_memory needs one buffer for input and output, in GPU memory; without, requests fail.",
        _growable,
        bad=python_model(_STATE.format("use_growable_memory: true")),
        good=python_model(_STATE.format("use_same_buffer_for_input_output: true")),
        stricter="it loads, and the first request of a sequence is refused",
    ),
    Rule(
        "RG436",
        "warning",
        "A sequence batcher without controls",
        "It routes a sequence to one instance and tells the model nothing of it.",
        _no_controls,
        bad=python_model("sequence_batching { }"),
        good=python_model(_START.format("START", "fp32_false_true: [0, 1]")),
    ),
)
