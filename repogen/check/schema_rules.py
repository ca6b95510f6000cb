"""RG2xx: the config.pbtxt as a whole."""

import re
from collections.abc import Iterator

from repogen.check.autofill import ENSEMBLE, PAIRED, PLATFORM_BACKENDS
from repogen.check.examples import CONFIG, python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import CONFIG as CONFIG_FILE
from repogen.check.subject import Subject
from repogen.check.target import EVERY_BACKEND
from repogen.newer_fields import new_field, set_fields

_LABEL = re.compile(r"(?!__)[A-Za-z0-9_]*\Z")
_GOOD_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED_LABELS = frozenset({"model", "version", "gpu_uuid"})
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")


def _syntax(subject: Subject) -> Iterator[Problem]:
    if (error := subject.model.error) is not None:
        file = CONFIG_FILE if subject.model.text is None else ""
        yield Problem(
            error.message, file=file, line=error.line, hint="the server only says 'failed to read text proto'"
        )


def _encoding(subject: Subject) -> Iterator[Problem]:
    if subject.model.text is not None and "\ufffd" in subject.model.text:
        data = (subject.model.folder / CONFIG_FILE).read_bytes()
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            yield Problem(f"byte {data[error.start]:#04x} is not UTF-8", line=line, hint="save the file as UTF-8")


def _name(subject: Subject) -> Iterator[Problem]:
    said = subject.config.name
    if said and said != subject.model.name:
        hint = f"name it {subject.model.name!r}, or leave the line out"
        yield Problem(f"the name {said!r} is not the folder's name {subject.model.name!r}", field="name", hint=hint)


def _newer(subject: Subject) -> Iterator[Problem]:
    for path, message, field, _ in set_fields(subject.config):
        new = new_field(message, field.name)
        if new and not subject.target.at_least(new.since):
            have = ".".join(map(str, subject.target.triton))
            yield Problem(
                f"Triton {have} does not know {field.name}, and refuses the whole file for it",
                field=path,
                hint=f"it came with Triton {'.'.join(map(str, new.since))} or so",
            )


def _no_backend(subject: Subject) -> Iterator[Problem]:
    filled = subject.model.filled
    if filled.platform == ENSEMBLE or filled.backend:
        return
    if filled.platform:
        hint = f"write backend: instead; the platforms are {', '.join(sorted(PLATFORM_BACKENDS))} and ensemble"
        yield Problem(f"there is no platform {filled.platform!r}", field="platform", hint=hint)
    else:
        yield Problem("neither backend nor platform is given, and no file tells", hint='add backend: "..."')


def _pair(subject: Subject) -> Iterator[Problem]:
    filled = subject.model.filled
    if not filled.platform or not filled.backend or filled.platform == ENSEMBLE:
        return
    meant = PLATFORM_BACKENDS.get(filled.platform, filled.platform)
    if meant != filled.backend and (filled.backend in PAIRED or filled.platform in PLATFORM_BACKENDS):
        message = f"the platform {filled.platform!r} is of the backend {meant!r}, not of {filled.backend!r}"
        yield Problem(message, field="platform", hint="leave platform out")


def _odd_platform(subject: Subject) -> Iterator[Problem]:
    filled = subject.model.filled
    known = filled.platform in {*PLATFORM_BACKENDS, ENSEMBLE}
    if filled.backend and filled.platform and not known and filled.backend not in PAIRED:
        yield Problem(f"the platform {filled.platform!r} means nothing", field="platform", hint="leave it out")


def _absent_backend(subject: Subject) -> Iterator[Problem]:
    filled, target = subject.model.filled, subject.target
    if filled.platform == ENSEMBLE or not filled.backend or target.backends is None:
        return
    if filled.backend not in target.backends:
        have = ", ".join(sorted(target.backends))
        where = "backend" if subject.config.backend else "platform"
        hint = f"it has {have}; `repogen serve` runs ONNX models there with a Python model of its own"
        yield Problem(f"the {target.name} server has no backend {filled.backend!r}", field=where, hint=hint)


def _unknown_backend(subject: Subject) -> Iterator[Problem]:
    backend = subject.model.filled.backend
    if subject.target.backends is None and backend and backend not in {*EVERY_BACKEND, "tensorflow"}:
        lower = backend.lower()
        hint = f"did you mean {lower!r}?" if lower in EVERY_BACKEND else "fine if it is your own, or in your image"
        yield Problem(f"no NGC image brings the backend {backend!r}", field="backend", hint=hint)


def _enums(subject: Subject) -> Iterator[Problem]:
    for path, _, field, value in set_fields(subject.config):
        if field.enum_type is None:
            continue
        for index, number in enumerate(value if field.is_repeated else [value]):
            if number not in field.enum_type.values_by_number:
                where = f"{path}[{index}]" if field.is_repeated else path
                names = ", ".join(field.enum_type.values_by_name)
                yield Problem(f"{number} is no value of {field.name}", field=where, hint=f"one of {names}")


def _labels(subject: Subject) -> Iterator[Problem]:
    for index, key in enumerate(subject.config.metric_tags):
        if not _LABEL.match(key):
            yield Problem(
                f"the metric tag {key!r} is no name of a Prometheus label, and crashes the server",
                field=f"metric_tags[{index}]",
                hint="use letters, digits and '_', not two '_' at the start",
            )


def _odd_labels(subject: Subject) -> Iterator[Problem]:
    for index, key in enumerate(subject.config.metric_tags):
        if key in _RESERVED_LABELS or (_LABEL.match(key) and not _GOOD_LABEL.match(key)):
            what = "is one that Triton sets itself" if key in _RESERVED_LABELS else "is no name that Prometheus reads"
            yield Problem(f"the metric tag {key!r} {what}", field=f"metric_tags[{index}]", hint="rename it")


def _agents(subject: Subject) -> Iterator[Problem]:
    if not subject.config.HasField("model_repository_agents"):
        return
    agents = subject.config.model_repository_agents.agents
    if not agents:
        yield Problem("an empty model_repository_agents crashes the server", field="model_repository_agents")
    for index, agent in enumerate(agents):
        field = f"model_repository_agents.agents[{index}].name"
        if not agent.name:
            yield Problem("a repository agent has no name", field=field)
        elif subject.target.name == "embedded":
            yield Problem(f"the embedded server has no repository agent {agent.name!r}", field=field)
        elif agent.name != "checksum":
            hint = "fine where your image brings it"
            yield Problem(f"no NGC image brings the agent {agent.name!r}", field=field, hint=hint, severity="warning")


def _runtime(subject: Subject) -> Iterator[Problem]:
    runtime = subject.config.runtime
    if not runtime or subject.model.filled.platform == ENSEMBLE:
        return
    if subject.target.name == "embedded":
        yield Problem("the embedded server takes no runtime: its backend's library is a link", field="runtime")
    elif "/" in runtime:
        yield Problem(f"the runtime {runtime!r} leaves the backend's folder", field="runtime", hint="a file name alone")


def _metrics(subject: Subject) -> Iterator[Problem]:
    for index, control in enumerate(subject.config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not control.metric_identifier.family:
            yield Problem("a metric_control names no metric family", field=field, hint="metric_identifier { family }")
        if not control.histogram_options.buckets:
            yield Problem("a metric_control has no buckets", field=field, hint="histogram_options { buckets: [...] }")


def _placeholders(subject: Subject) -> Iterator[Problem]:
    for index, (key, value) in enumerate(subject.config.parameters.items()):
        if match := _PLACEHOLDER.search(value.string_value):
            field = f"parameters[{index}]"
            yield Problem(f"the parameter {key!r} still holds {match[0]}: nobody filled the template in", field=field)


_METRICS = (
    "model_metrics {{ metric_control {{ metric_identifier {{ family: {} }} "
    "histogram_options {{ buckets: [1, 10] }} }} }}"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "RG201",
        "error",
        "config.pbtxt cannot be parsed",
        "The server only answers that it failed to read the text; the place and the reason are in its log, if at all.",
        _syntax,
        bad=python_model("max_batchsize: 8"),
        good=python_model(),
        scope="model",
        stricter="a few odd escapes and numbers are read by the server's own parser alone, and by no other tool",
    ),
    Rule(
        "RG202",
        "error",
        "config.pbtxt is not UTF-8",
        "protobuf strings are UTF-8. The server reads other bytes, and its HTTP answers break on them.",
        _encoding,
        bad={**python_model(), "m/config.pbtxt": CONFIG.encode() + b'metric_tags { key: "team" value: "caf\xe9" }\n'},
        good=python_model('metric_tags { key: "team" value: "café" }'),
        scope="model",
        stricter="clients and tools that read the config as protobuf or JSON fail on it",
    ),
    Rule(
        "RG203",
        "error",
        "The model's name is not its folder's",
        "The server takes the folder's name, and refuses a config that says another.",
        _name,
        bad=python_model(replaced={'name: "m"': 'name: "other"'}),
        good=python_model(replaced={'name: "m"\n': ""}),
    ),
    Rule(
        "RG204",
        "error",
        "A field is newer than the server",
        "An older server refuses the whole file for one field that it does not know.",
        _newer,
        bad=python_model(_METRICS.format('"nv_inference_first_response_histogram_ms"')),
        good=python_model(),
    ),
    Rule(
        "RG205",
        "error",
        "The backend cannot be told",
        "Without backend the server guesses from platform, from default_model_filename or from the files in the first "
        "folder; here none of them tells.",
        _no_backend,
        bad=python_model(replaced={'backend: "python"': 'platform: "python"'}),
        good=python_model(),
    ),
    Rule(
        "RG206",
        "error",
        "platform and backend contradict each other",
        "The backend wins or the model is refused, depending on the pair and on the server's version.",
        _pair,
        bad=python_model('platform: "onnxruntime_onnx"'),
        good=python_model(),
        stricter="the backend wins in silence: the file that platform means is not served",
    ),
    Rule(
        "RG207",
        "error",
        "The server does not have the backend",
        "The embedded server only has the Python backend.",
        _absent_backend,
        bad=python_model(replaced={'"python"': '"openvino"'}),
        good=python_model(),
    ),
    Rule(
        "RG208",
        "note",
        "The backend is not one of NVIDIA's images",
        "A misspelt backend is only found at load. Backends of your own are fine.",
        _unknown_backend,
        bad=python_model(replaced={'"python"': '"Python"'}),
        good=python_model(),
        server="26.08",
    ),
    Rule(
        "RG209",
        "warning",
        "The platform is unknown",
        "The backend decides, and the platform is ignored.",
        _odd_platform,
        bad=python_model('platform: "pytorch"'),
        good=python_model(),
    ),
    Rule(
        "RG210",
        "error",
        "A number is no value of its enumeration",
        "Some of them are refused, others are taken for 'invalid' or for the default, in silence.",
        _enums,
        bad=python_model(replaced={"dims: [4] }]\noutput": "dims: [4] format: 7 }]\noutput"}),
        good=python_model(),
        stricter="what the server makes of an unknown number is accidental, and differs between versions",
    ),
    Rule(
        "RG211",
        "error",
        "A metric tag is no Prometheus label",
        "The metrics library throws an exception that nobody catches, and the server ends.",
        _labels,
        bad=python_model('metric_tags { key: "cost-centre" value: "7" }'),
        good=python_model('metric_tags { key: "cost_centre" value: "7" }'),
    ),
    Rule(
        "RG212",
        "warning",
        "A metric tag is not usable",
        "The server loads it, and the page of metrics cannot be read by Prometheus, or says one label twice.",
        _odd_labels,
        bad=python_model('metric_tags { key: "model" value: "7" }'),
        good=python_model('metric_tags { key: "team" value: "7" }'),
    ),
    Rule(
        "RG213",
        "error",
        "A repository agent cannot be run",
        "The server looks for the agent's library before it loads the model; an empty list of agents crashes it.",
        _agents,
        bad=python_model("model_repository_agents { }"),
        good=python_model(),
    ),
    Rule(
        "RG214",
        "error",
        "The runtime is not in the backend's folder",
        "runtime names the library of a backend, and may not lead out of its folder.",
        _runtime,
        bad=python_model('runtime: "/opt/libtriton_python.so"'),
        good=python_model('runtime: "libtriton_python.so"'),
        server="26.08",
    ),
    Rule(
        "RG215",
        "error",
        "A metric control is incomplete",
        "It needs the family that it is about, and the buckets of its histogram.",
        _metrics,
        bad=python_model(_METRICS.format('""')),
        good=python_model(_METRICS.format('"nv_inference_first_response_histogram_ms"')),
        server="26.08",
    ),
    Rule(
        "RG216",
        "warning",
        "A template was not filled in",
        "Configs that come as templates, as those of TensorRT-LLM do, hold ${names} that a script should replace.",
        _placeholders,
        bad=python_model('parameters { key: "engine_dir" value { string_value: "${engine_dir}" } }'),
        good=python_model('parameters { key: "engine_dir" value { string_value: "/engines/7" } }'),
    ),
)
