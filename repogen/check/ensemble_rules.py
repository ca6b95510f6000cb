"""RG60x: ensembles."""

from collections.abc import Iterator

from repogen.check.autofill import ENSEMBLE
from repogen.check.ensemble_examples import ensemble
from repogen.check.ensemble_graph import (
    agree,
    decoupled_joins,
    flows,
    meetings,
    place_of,
    reaches,
    steps,
)
from repogen.check.rule import Check, Problem, Rule
from repogen.check.subject import Subject

_SECOND = 'model_name: "b" model_version: -1'


def _is_ensemble(subject: Subject) -> bool:
    return bool(subject.config.platform == ENSEMBLE and subject.config.HasField("ensemble_scheduling"))


def _of_ensembles(check: Check) -> Check:
    return lambda subject: check(subject) if _is_ensemble(subject) else ()


def _half(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    scheduled = config.HasField("ensemble_scheduling")
    if scheduled and config.platform != ENSEMBLE:
        yield Problem(
            "steps, but the platform is not ensemble", field="ensemble_scheduling", hint='platform: "ensemble"'
        )
    if config.platform == ENSEMBLE and not scheduled:
        yield Problem("an ensemble without ensemble_scheduling", field="platform")
    if config.platform == ENSEMBLE and config.backend:
        yield Problem("an ensemble has no backend", field="backend", hint="remove it")


def _forbidden(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    for field, present in (
        ("instance_group", bool(config.instance_group)),
        ("optimization", config.HasField("optimization")),
        ("model_warmup", bool(config.model_warmup)),
    ):
        if present:
            yield Problem(f"an ensemble takes no {field}", field=field, hint="give it to the models that it calls")


def _incomplete(subject: Subject) -> Iterator[Problem]:
    if not subject.config.ensemble_scheduling.step:
        yield Problem("the ensemble has no step", field="ensemble_scheduling")
    for field, step, _ in steps(subject):
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(step, part):
                yield Problem(f"a step has no {part}", field=field)


def _written_twice(subject: Subject) -> Iterator[Problem]:
    written: dict[str, str] = {}
    for field, step, _ in steps(subject):
        for name in step.output_map.values():
            place = f"{step.model_name!r} ({place_of(subject.model, f'{field}.output_map')})"
            if name in written:
                message = f"the tensor {name!r} is written more than once: by {written[name]} and by {place}"
                yield Problem(message, field=f"{field}.output_map")
            written.setdefault(name, place)


def _overwritten_input(subject: Subject) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in subject.config.input}
    for field, step, _ in steps(subject):
        for name in set(step.output_map.values()) & inputs:
            yield Problem(f"a step writes the ensemble's own input {name!r}", field=f"{field}.output_map")


def _unused(subject: Subject) -> Iterator[Problem]:
    found = flows(subject.config)
    outputs = {tensor.name for tensor in subject.config.output}
    for index, tensor in enumerate(subject.config.input):
        if tensor.name not in found:
            yield Problem(f"no step reads the input {tensor.name!r}", field=f"input[{index}]")
    for name, flow in found.items():
        if name not in outputs and (not flow.ready or not flow.readers):
            why = "no step reads it" if flow.ready else "it hangs on a tensor that is never written"
            yield Problem(f"the tensor {name!r} is of no use: {why}", field="ensemble_scheduling")


def _not_written(subject: Subject) -> Iterator[Problem]:
    found = flows(subject.config)
    for index, tensor in enumerate(subject.config.output):
        if tensor.name not in found:
            yield Problem(f"no step writes the output {tensor.name!r}", field=f"output[{index}]")
        elif not found[tensor.name].ready:
            missing = sorted(name for name, flow in found.items() if not flow.ready and not flow.sources)
            names = ", ".join(map(repr, missing))
            why = f"nothing writes {names}" if missing else "its steps wait for one another"
            yield Problem(f"the output {tensor.name!r} is never written: {why}", field=f"output[{index}]")


def _absent(subject: Subject) -> Iterator[Problem]:
    for field, step, part in steps(subject):
        if part is None and step.model_name:
            here = (
                "has no usable config" if step.model_name in subject.repository.models else "is not in the repository"
            )
            yield Problem(f"the model {step.model_name!r} {here}", field=f"{field}.model_name")


def _versions(subject: Subject) -> Iterator[Problem]:
    for field, step, part in steps(subject):
        if part is not None and step.model_version != -1 and step.model_version not in part.served:
            have = ", ".join(map(str, part.served)) or "none"
            yield Problem(
                f"version {step.model_version} of {step.model_name!r} is not served (served: {have})",
                field=f"{field}.model_version",
                hint="model_version: -1 is the newest; left out, it is 0",
            )


def _names(subject: Subject) -> Iterator[Problem]:
    for field, step, part in steps(subject):
        if part is None:
            continue
        for mapping, tensors, kind in (
            (step.input_map, part.config.input, "input"),
            (step.output_map, part.config.output, "output"),
        ):
            names = [tensor.name for tensor in tensors]
            for name in sorted(set(mapping) - set(names)):
                hint = f"it has {', '.join(map(repr, names))} ({place_of(part, kind)})"
                yield Problem(f"{step.model_name!r} has no {kind} {name!r}", field=f"{field}.{kind}_map", hint=hint)


def _unmapped(subject: Subject) -> Iterator[Problem]:
    for field, step, part in steps(subject):
        for index, tensor in enumerate(part.config.input if part is not None else ()):
            if part is not None and tensor.name not in step.input_map and not tensor.optional:
                place = place_of(part, f"input[{index}]")
                message = f"the input {tensor.name!r} of {step.model_name!r} ({place}) is given nothing"
                yield Problem(message, field=f"{field}.input_map")


def _doubled_output(subject: Subject) -> Iterator[Problem]:
    for field, step, part in steps(subject):
        names = [tensor.name for tensor in part.config.output] if part is not None else []
        for name in sorted(set(step.output_map) & {it for it in names if names.count(it) > 1}):
            yield Problem(f"{step.model_name!r} has more than one output {name!r}", field=f"{field}.output_map")


def _types(subject: Subject) -> Iterator[Problem]:
    names = subject.config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    for meeting in meetings(subject):
        first, other = meeting.first, meeting.other
        if first.data_type != other.data_type:
            said = [names[it].name if it in names else str(it) for it in (first.data_type, other.data_type)]
            yield Problem(
                f"the tensor {meeting.tensor!r} is {said[0]} for {first} and {said[1]} for {other}",
                field=meeting.field,
            )


def _shapes(subject: Subject) -> Iterator[Problem]:
    for meeting in meetings(subject):
        first, other = meeting.first, meeting.other
        if not agree(first.dims, other.dims) and not agree(first.full, other.full):
            yield Problem(
                f"the tensor {meeting.tensor!r} is {list(first.full)} for {first} and {list(other.full)} for {other}",
                field=meeting.field,
            )


def _lost_batch(subject: Subject) -> Iterator[Problem]:
    for meeting in meetings(subject):
        first, other = meeting.first, meeting.other
        if agree(first.dims, other.dims) and not agree(first.full, other.full):
            yield Problem(
                f"the tensor {meeting.tensor!r} is {list(first.full)} for {first} "
                f"and {list(other.full)} for {other}, their batch dims counted",
                field=meeting.field,
                hint="a model without batching that takes batches has dims that begin with -1",
            )


def _batch_size(subject: Subject) -> Iterator[Problem]:
    wanted = subject.config.max_batch_size
    for field, step, part in steps(subject):
        if part is not None and 0 < part.config.max_batch_size < wanted:
            yield Problem(
                f"the ensemble takes batches of {wanted} ({place_of(subject.model, 'max_batch_size')}), "
                f"{step.model_name!r} of {part.config.max_batch_size} ({place_of(part, 'max_batch_size')})",
                field=f"{field}.model_name",
                hint=f"max_batch_size: {part.config.max_batch_size}",
            )


def _cycle(subject: Subject) -> Iterator[Problem]:
    if reaches(subject, subject.model.name, subject.model.name, set()):
        yield Problem("the ensemble calls itself, in the end", field="ensemble_scheduling")


def _joins(subject: Subject) -> Iterator[Problem]:
    for field in decoupled_joins(subject):
        yield Problem(
            "this step's inputs come from different decoupled models, or from one and from elsewhere",
            field=field,
            hint="each response of a decoupled model needs all the other inputs too: pass them through it",
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "RG601",
        "error",
        "Half an ensemble",
        "An ensemble has platform ensemble, ensemble_scheduling, and no backend.",
        _half,
        bad=ensemble(('platform: "ensemble"', 'backend: "python"')),
        good=ensemble(),
    ),
    Rule(
        "RG602",
        "error",
        "An ensemble has no instances of its own",
        "instance_group, optimization and model_warmup belong to the models that it calls.",
        _of_ensembles(_forbidden),
        bad=ensemble(added="instance_group [{ kind: KIND_CPU }]"),
        good=ensemble(),
    ),
    Rule(
        "RG603",
        "error",
        "A step is incomplete",
        "Each step names a model, what it reads and what it writes.",
        _of_ensembles(_incomplete),
        bad=ensemble((' output_map { key: "y" value: "z" }', "")),
        good=ensemble(),
    ),
    Rule(
        "RG604",
        "error",
        "A tensor is written more than once",
        "The server refuses the ensemble.",
        _of_ensembles(_written_twice),
        bad=ensemble(('output_map { key: "y" value: "z" }', 'output_map { key: "y" value: "t" }')),
        good=ensemble(),
    ),
    Rule(
        "RG605",
        "error",
        "A tensor leads nowhere",
        "Every input of the ensemble and every tensor between its steps has to be read.",
        _of_ensembles(_unused),
        bad=ensemble(added='input [{ name: "w" data_type: TYPE_FP32 dims: [4] }]'),
        good=ensemble(),
    ),
    Rule(
        "RG606",
        "error",
        "An output is never written",
        "A step runs when all its inputs are there; this output hangs on one that nothing writes.",
        _of_ensembles(_not_written),
        bad=ensemble(('input_map { key: "x" value: "t" }', 'input_map { key: "x" value: "T" }')),
        good=ensemble(),
    ),
    Rule(
        "RG607",
        "error",
        "A model of the ensemble is missing",
        "The server loads the models of an ensemble first, and refuses it without them.",
        _of_ensembles(_absent),
        bad=ensemble((_SECOND, 'model_name: "c" model_version: -1')),
        good=ensemble(),
    ),
    Rule(
        "RG608",
        "error",
        "A step asks for a version that is not served",
        "model_version left out is version 0, not the newest.",
        _of_ensembles(_versions),
        bad=ensemble((_SECOND, 'model_name: "b"')),
        good=ensemble((_SECOND, 'model_name: "b" model_version: 1')),
    ),
    Rule(
        "RG609",
        "error",
        "A step maps a tensor that its model does not have",
        "The keys are the model's names, the values the ensemble's.",
        _of_ensembles(_names),
        bad=ensemble(('key: "x" value: "t"', 'key: "t" value: "t"')),
        good=ensemble(),
    ),
    Rule(
        "RG610",
        "error",
        "An input of a model is given nothing",
        "Every input that is not optional has to be mapped.",
        _of_ensembles(_unmapped),
        bad=ensemble(second={"input [": 'input [{ name: "mask" data_type: TYPE_FP32 dims: [4] }, '}),
        good=ensemble(second={"input [": 'input [{ name: "mask" data_type: TYPE_FP32 dims: [4] optional: true }, '}),
    ),
    Rule(
        "RG611",
        "error",
        "Two models disagree on a data type",
        "The server refuses the ensemble.",
        _of_ensembles(_types),
        bad=ensemble(second={'"x" data_type: TYPE_FP32': '"x" data_type: TYPE_FP16'}),
        good=ensemble(),
    ),
    Rule(
        "RG612",
        "error",
        "Two models disagree on a shape",
        "The server refuses the ensemble; free dims agree with any.",
        _of_ensembles(_shapes),
        bad=ensemble(second={'"x" data_type: TYPE_FP32 dims: [4]': '"x" data_type: TYPE_FP32 dims: [5]'}),
        good=ensemble(second={'"x" data_type: TYPE_FP32 dims: [4]': '"x" data_type: TYPE_FP32 dims: [-1]'}),
    ),
    Rule(
        "RG613",
        "error",
        "Shapes that agree only without the batch dim",
        "The server lets them pass, and every request fails in the step where a batch dim appears or is lost.",
        _of_ensembles(_lost_batch),
        bad=ensemble(("max_batch_size: 8", "max_batch_size: 0")),
        good=ensemble(("max_batch_size: 8", "max_batch_size: 0"), ("dims: [4]", "dims: [-1, 4]")),
        stricter="it loads, and every request fails",
    ),
    Rule(
        "RG614",
        "error",
        "The ensemble takes larger batches than one of its models",
        "The server refuses the ensemble.",
        _of_ensembles(_batch_size),
        bad=ensemble(second={"size: 8": "size: 4"}),
        good=ensemble(second={"size: 8": "size: 16"}),
    ),
    Rule(
        "RG615",
        "error",
        "An ensemble calls itself",
        "The server refuses every ensemble of the circle.",
        _of_ensembles(_cycle),
        bad=ensemble((_SECOND, 'model_name: "e" model_version: -1')),
        good=ensemble(),
    ),
    Rule(
        "RG616",
        "error",
        "Streams of different lengths meet in one step",
        "A decoupled model gives any number of responses; the server refuses a step that would have to pair them up.",
        _of_ensembles(_joins),
        bad=ensemble(
            (
                'input_map { key: "x" value: "t" }',
                'input_map { key: "x" value: "t" } input_map { key: "w" value: "x" }',
            ),
            first={"instance_group": "model_transaction_policy { decoupled: true }\ninstance_group"},
            second={"input [": 'input [{ name: "w" data_type: TYPE_FP32 dims: [4] }, '},
        ),
        good=ensemble(first={"instance_group": "model_transaction_policy { decoupled: true }\ninstance_group"}),
    ),
    Rule(
        "RG617",
        "warning",
        "A step writes an input of the ensemble",
        "The server loads it; which value the other steps see is a matter of time.",
        _of_ensembles(_overwritten_input),
        bad=ensemble(
            ('output_map { key: "y" value: "t" }', 'output_map { key: "y" value: "x" }'),
            ('input_map { key: "x" value: "t" }', 'input_map { key: "x" value: "x" }'),
        ),
        good=ensemble(),
    ),
    Rule(
        "RG618",
        "error",
        "A step maps an output that its model has twice",
        "The server takes it for two outputs that fill one tensor, and refuses the ensemble.",
        _of_ensembles(_doubled_output),
        bad=ensemble(first={"output [": 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }, '}),
        good=ensemble(first={"output [": 'output [{ name: "w" data_type: TYPE_FP32 dims: [4] }, '}),
    ),
)
