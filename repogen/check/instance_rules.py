"""RG50x: instance groups."""

from collections.abc import Iterator
from typing import Any

from repogen.check.autofill import ENSEMBLE, TENSORRT
from repogen.check.examples import python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject

_AUTO, _GPU, _CPU, _MODEL = range(4)
_NAMES = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
_MANY = 32
_FAR_TOO_MANY = 1000
_I = "kind: KIND_CPU"


def _groups(subject: Subject) -> Iterator[tuple[str, Any]]:
    if subject.model.filled.platform != ENSEMBLE:
        for index, group in enumerate(subject.config.instance_group):
            yield f"instance_group[{index}]", group


def _no_gpu(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if group.kind == _GPU and not subject.target.gpu:
            hint = f"the {subject.target.name} server runs on the CPU: KIND_CPU, or no instance_group"
            yield Problem("KIND_GPU, and there is no GPU", field=f"{field}.kind", hint=hint)


def _gpus_without_gpu(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if group.gpus and (group.kind in (_CPU, _MODEL) or (group.kind == _AUTO and not subject.target.gpu)):
            yield Problem(
                f"{_NAMES[group.kind]} takes no gpus", field=f"{field}.gpus", hint="remove gpus, or write KIND_GPU"
            )


def _negative_gpu(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        for index, number in enumerate(group.gpus):
            if number < 0:
                yield Problem(f"there is no GPU {number}", field=f"{field}.gpus[{index}]", hint="GPUs count from 0")


def _profile(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if group.profile and subject.model.filled.platform != TENSORRT:
            yield Problem("profile is for TensorRT plans only", field=f"{field}.profile", hint="remove it")


def _count(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if group.count < 0 or (group.count == 0 and _says_count(subject, field)):
            message = f"count {group.count} is taken for the default"
            yield Problem(message, field=f"{field}.count", hint="count: 1; to serve nothing, unload the model")


def _says_count(subject: Subject, field: str) -> bool:
    """Return whether the text says `count: 0`: the parsed message cannot tell it from nothing."""
    return subject.model.has(f"{field}.count")


def _many(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if _MANY < group.count <= _FAR_TOO_MANY:
            what = " (a process each)" if subject.model.backend == "python" else ""
            yield Problem(f"{group.count} instances{what}", field=f"{field}.count", hint="measure: few pay off")


def _far_too_many(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        if group.count > _FAR_TOO_MANY:
            yield Problem(f"{group.count} instances: no machine has room", field=f"{field}.count")


def _resources(subject: Subject) -> Iterator[Problem]:
    for field, group in _groups(subject):
        kinds: dict[str, bool] = {}
        for index, resource in enumerate(group.rate_limiter.resources):
            if kinds.setdefault(resource.name, getattr(resource, "global")) != getattr(resource, "global"):
                yield Problem(
                    f"the resource {resource.name!r} is both global and of a device",
                    field=f"{field}.rate_limiter.resources[{index}]",
                )


def _passive(subject: Subject) -> Iterator[Problem]:
    groups = [group for _, group in _groups(subject)]
    if groups and all(group.passive for group in groups):
        yield Problem("every instance is passive: requests wait for ever", field="instance_group[0].passive")


RULES: tuple[Rule, ...] = (
    Rule(
        "RG501",
        "error",
        "A GPU is asked for where there is none",
        "The server refuses the model.",
        _no_gpu,
        bad=python_model(replaced={_I: "kind: KIND_GPU"}),
        good=python_model(),
    ),
    Rule(
        "RG502",
        "error",
        "GPUs are listed for another kind of instance",
        "The server refuses the model. KIND_AUTO becomes KIND_CPU where there is no GPU, and is refused likewise.",
        _gpus_without_gpu,
        bad=python_model(replaced={_I: f"{_I} gpus: [0]"}),
        good=python_model(replaced={_I: "kind: KIND_GPU gpus: [0]"}),
        server="26.08",
    ),
    Rule(
        "RG503",
        "error",
        "A GPU's number is negative",
        "The server refuses the model.",
        _negative_gpu,
        bad=python_model(replaced={_I: "kind: KIND_GPU gpus: [-1]"}),
        good=python_model(replaced={_I: "kind: KIND_GPU gpus: [1]"}),
        server="26.08",
    ),
    Rule(
        "RG504",
        "error",
        "An optimization profile on another backend",
        "profile is refused for everything but TensorRT plans.",
        _profile,
        bad=python_model(replaced={_I: f'{_I} profile: "0"'}),
        good=python_model(),
    ),
    Rule(
        "RG505",
        "warning",
        "A count of no instances",
        "The server takes the default in its place, in silence.",
        _count,
        bad=python_model(replaced={_I: f"{_I} count: 0"}),
        good=python_model(replaced={_I: f"{_I} count: 2"}),
    ),
    Rule(
        "RG506",
        "warning",
        "Very many instances",
        "Each has its own memory, and of the Python backend its own process. The count is for each GPU listed.",
        _many,
        bad=python_model(replaced={_I: f"{_I} count: 64"}),
        good=python_model(replaced={_I: f"{_I} count: 4"}),
    ),
    Rule(
        "RG507",
        "error",
        "More instances than any machine holds",
        "The server tries to make them all.",
        _far_too_many,
        bad=python_model(replaced={_I: f"{_I} count: 100000"}),
        good=python_model(replaced={_I: f"{_I} count: 4"}),
        stricter="not tried on the server: it would take the machine with it",
    ),
    Rule(
        "RG508",
        "warning",
        "A resource is global and not global",
        "A server with --rate-limit=execution_count refuses the model.",
        _resources,
        bad=python_model(
            replaced={
                _I: f'{_I} rate_limiter {{ resources [{{ name: "R" count: 1 }}, {{ name: "R" count: 1 global: true }}] '
                "}"
            }
        ),
        good=python_model(replaced={_I: f'{_I} rate_limiter {{ resources [{{ name: "R" count: 1 }}] }}'}),
    ),
    Rule(
        "RG509",
        "warning",
        "No instance takes requests",
        "Passive instances are loaded for others to use, and are given no requests.",
        _passive,
        bad=python_model(replaced={_I: f"{_I} passive: true"}),
        good=python_model(),
    ),
)
