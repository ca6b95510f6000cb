"""RG11x, RG23x: what the Python backend, and a batching strategy, read themselves."""

from collections.abc import Iterator
from pathlib import Path

from repogen.check.autofill import ENSEMBLE
from repogen.check.examples import CONFIG, MODEL_PY, python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject

_BREAKS_SHELL = frozenset(" \t\n\"'&()`|;<>")
_FOLDER = "$$TRITON_MODEL_DIRECTORY"
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"


def _parameter(subject: Subject, name: str) -> tuple[str, str] | None:
    """Return (field, value) of a parameter, where it is given."""
    for index, key in enumerate(subject.config.parameters):
        if key == name:
            return f"parameters[{index}]", subject.config.parameters[key].string_value
    return None


def _no_code(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    if model.backend != "python":
        return
    for version in model.served:
        folder = model.folder / str(version)
        if folder.is_dir() and not (folder / model.filled.filename).is_file():
            yield Problem(
                f"version {version} has no {model.filled.filename}: the model never becomes ready",
                file=str(version),
                hint=f"write {model.name}/{version}/{model.filled.filename}",
            )


def _group_name(subject: Subject) -> Iterator[Problem]:
    for index, group in enumerate(subject.config.instance_group if subject.model.backend == "python" else ()):
        if _BREAKS_SHELL & set(group.name):
            yield Problem(
                f"the group's name {group.name!r} goes through a shell: its processes never start",
                field=f"instance_group[{index}].name",
                hint="use letters, digits, '_' and '-', or leave the name out",
            )


def _environment(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "python" or (given := _parameter(subject, _ENVIRONMENT)) is None:
        return
    field, value = given
    path = Path(value.replace(_FOLDER, str(subject.model.folder)))
    if value and (_FOLDER in value or subject.target.name == "embedded") and not path.exists():
        yield Problem(f"{_ENVIRONMENT} leads nowhere: {value}", field=field, hint=f"{_FOLDER} is the model's folder")


def _force_cpu(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "python" or (given := _parameter(subject, _FORCE_CPU)) is None:
        return
    field, value = given
    if value not in ("yes", "no"):
        yield Problem(f"{_FORCE_CPU} is {value!r}", field=field, hint='"yes" or "no", in small letters')


def _strategy(subject: Subject) -> Iterator[Problem]:
    if subject.model.filled.platform == ENSEMBLE or (given := _parameter(subject, _STRATEGY)) is None:
        return
    field, value = given
    if subject.config.HasField("sequence_batching"):
        yield Problem("sequences take no batching strategy of their own", field=field, hint="remove the parameter")
    elif not value or not any((folder / value).exists() for folder in (subject.model.folder, Path("/"))):
        yield Problem(f"the batching strategy {value!r} is not there", field=field)


RULES: tuple[Rule, ...] = (
    Rule(
        "RG110",
        "error",
        "The model's code is missing",
        "The Python backend starts a process for the file; where there is none, the load neither ends nor fails.",
        _no_code,
        bad={"m/config.pbtxt": CONFIG, "m/1/main.py": MODEL_PY},
        good={"m/config.pbtxt": CONFIG + 'default_model_filename: "main.py"\n', "m/1/main.py": MODEL_PY},
    ),
    Rule(
        "RG116",
        "error",
        "The Python backend cannot start instances of this name",
        "The name of a group is part of a command line that a shell reads.",
        _group_name,
        bad=python_model(replaced={"kind: KIND_CPU": 'name: "first half" kind: KIND_CPU'}),
        good=python_model(replaced={"kind: KIND_CPU": 'name: "first_half" kind: KIND_CPU'}),
    ),
    Rule(
        "RG231",
        "error",
        "The Python environment is missing",
        "EXECUTION_ENV_PATH names a packed environment, or its folder; the backend refuses the model without it.",
        _environment,
        bad=python_model(f'parameters {{ key: "{_ENVIRONMENT}" value {{ string_value: "{_FOLDER}/env.tar.gz" }} }}'),
        good=python_model(
            f'parameters {{ key: "{_ENVIRONMENT}" value {{ string_value: "{_FOLDER}/env" }} }}',
            files={"m/env/bin/activate": "# made by conda\n"},
        ),
    ),
    Rule(
        "RG232",
        "error",
        "A parameter of the Python backend has an odd value",
        "It is compared with yes and no, letter by letter.",
        _force_cpu,
        bad=python_model(f'parameters {{ key: "{_FORCE_CPU}" value {{ string_value: "true" }} }}'),
        good=python_model(f'parameters {{ key: "{_FORCE_CPU}" value {{ string_value: "yes" }} }}'),
    ),
    Rule(
        "RG233",
        "error",
        "A batching strategy cannot be used",
        "The library has to be there, and the scheduler may not be that of sequences.",
        _strategy,
        bad=python_model(
            f'dynamic_batching {{ }} parameters {{ key: "{_STRATEGY}" value {{ string_value: "volume.so" }} }}'
        ),
        good=python_model("dynamic_batching { }"),
    ),
)
