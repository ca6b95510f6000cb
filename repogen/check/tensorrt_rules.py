"""RG37x, RG56x, RG87x: models that the tensorrt backend serves."""

import re
from collections.abc import Iterator
from typing import Any

from repogen.backends_data import BF16_TENSORRT, IMAGES_WITHOUT_TENSORRT, TENSORRT_DTYPES
from repogen.check.onnx_facts import model_files, served_folders
from repogen.check.rule import Problem, Rule, Tree
from repogen.check.subject import Subject
from repogen.plan_header import PlanHeader, header_bytes, read_header

_STOI = re.compile(r"\s*[+-]?\d+")
_COMPUTE = re.compile(r"[1-9]\d*\.\d")
_FIRST_INT64 = 10
"""TensorRT's major version from which a plan can have INT64 inputs and outputs; before, they become INT32."""
_MULTI_DEVICE = (2, 71)
_STRATEGY = "execution_context_allocation_strategy"
_SEVERAL = "enable_multi_device"
_RAGGED_RANK = 1


def _served(subject: Subject) -> bool:
    return subject.model.backend == "tensorrt"


def _plan_names(subject: Subject) -> Iterator[str]:
    """Give every plan that the backend may open, relative to the model: the default, and one a compute capability."""
    if _served(subject):
        yield from model_files(subject.model, "model.plan")
        for folder in served_folders(subject.model):
            yield from (f"{folder}/{name}" for _, name in sorted(subject.config.cc_model_filenames.items()))


def _plans(subject: Subject) -> Iterator[tuple[str, PlanHeader]]:
    for name in dict.fromkeys(_plan_names(subject)):
        if (subject.model.folder / name).is_file():
            yield name, read_header(subject.model.folder / name)


def _tensors(subject: Subject) -> Iterator[tuple[str, str, Any]]:
    """Give the config's tensors: input or output, field, tensor."""
    if _served(subject):
        for part in ("input", "output"):
            for index, said in enumerate(getattr(subject.config, part)):
                yield part, f"{part}[{index}]", said


def _missing(subject: Subject) -> Iterator[Problem]:
    by_device = bool(subject.config.cc_model_filenames)
    for name in model_files(subject.model, "model.plan") if _served(subject) else ():
        if not (subject.model.folder / name).is_file():
            there = sorted(path.name for path in (subject.model.folder / name).parent.glob("*.plan"))
            yield Problem(
                f"{name} is not there{', and a GPU that cc_model_filenames does not name needs it' * by_device}",
                field="default_model_filename",
                hint=f'write default_model_filename: "{there[0]}"' if len(there) == 1 else "put the plan there",
                severity="warning" if by_device else None,
            )


def _device_files(subject: Subject) -> Iterator[Problem]:
    files = sorted(subject.config.cc_model_filenames.items()) if _served(subject) else []
    for capability, name in files:
        if not _COMPUTE.fullmatch(capability):
            yield Problem(
                f"{capability!r} is no compute capability, so no GPU will ever use {name!r}",
                field="cc_model_filenames",
                hint='write major.minor, such as "9.0"',
            )
        for folder in served_folders(subject.model):
            if not (subject.model.folder / folder / name).is_file():
                yield Problem(f"{folder}/{name}, for GPUs of {capability}, is not there", field="cc_model_filenames")


def _no_plan(subject: Subject) -> Iterator[Problem]:
    for name, header in _plans(subject):
        if header.problem:
            yield Problem(f"it is no TensorRT plan: {header.problem}", file=name, hint="build or copy it again")


def _rtx_plan(subject: Subject) -> Iterator[Problem]:
    for name, header in _plans(subject):
        if header.rtx:
            shown = _dotted(header.version)
            message = f"it was built by TensorRT-RTX {shown}, which the tensorrt backend cannot read"
            yield Problem(message, file=name, hint="build it with TensorRT")


def _cut_short(subject: Subject) -> Iterator[Problem]:
    for name, header in _plans(subject):
        if not header.problem and header.declared > header.size:
            message = f"it has {header.size} bytes, but says that it has {header.declared}: it was cut short"
            yield Problem(message, file=name, hint="copy it again")


def _other_version(subject: Subject) -> Iterator[Problem]:
    release = subject.target.release
    server = tuple(int(part) for part in release.tensorrt.split(".") if part)
    for name, header in _plans(subject):
        if header.problem or header.rtx or not server or header.version[: len(server)] == server:
            continue
        yield Problem(
            f"it was built by TensorRT {_dotted(header.version)}, but release {release.ngc} has {release.tensorrt} "
            f"({release.confidence})",
            file=name,
            hint=_version_hint(header.version, server),
            severity=None if release.confidence == "sourced" else "warning",
        )


def _version_hint(plan: tuple[int, ...], server: tuple[int, ...]) -> str:
    older = plan[: len(server)] < server and (plan[0], server[0]) in {(8, 8), (8, 10), (10, 10), (10, 11), (11, 11)}
    if not older:
        return "build it with the server's TensorRT: no flag lets this server read it"
    return (
        "build it with the server's TensorRT; only a plan built VERSION_COMPATIBLE loads, and only with "
        "--backend-config=tensorrt,version-compatible=true"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _dtypes(subject: Subject) -> Iterator[Problem]:
    from repogen.pbtxt import schema

    for part, field, said in _tensors(subject):
        name = schema().DataType.Name(said.data_type)
        if name not in TENSORRT_DTYPES and name != "TYPE_INVALID":
            have = ", ".join(sorted(kind.removeprefix("TYPE_") for kind in TENSORRT_DTYPES))
            message = f"{part} {said.name!r} is {name}, which no plan has"
            yield Problem(message, field=f"{field}.data_type", hint=f"plans have {have}")
        elif name == "TYPE_BF16" and not subject.target.at_least(BF16_TENSORRT):
            message = f"{part} {said.name!r} is BF16, which the backend carries only from release 24.06 on"
            yield Problem(message, field=f"{field}.data_type", hint="keep inputs and outputs in FP32")


def _int64(subject: Subject) -> Iterator[Problem]:
    from repogen.pbtxt import schema

    major = min((header.version[0] for _, header in _plans(subject) if header.version and not header.rtx), default=0)
    if not 0 < major < _FIRST_INT64:
        return
    for part, field, said in _tensors(subject):
        if said.data_type == schema().DataType.TYPE_INT64:
            message = f"{part} {said.name!r} is TYPE_INT64, but TensorRT {major} makes it INT32"
            yield Problem(message, field=f"{field}.data_type", hint="write TYPE_INT32")


def _shape_tensors(subject: Subject) -> Iterator[Problem]:
    from repogen.pbtxt import schema

    for part, field, said in _tensors(subject):
        if not said.is_shape_tensor:
            continue
        name = schema().DataType.Name(said.data_type)
        allowed = ("TYPE_INT64",) if part == "output" else ("TYPE_INT32", "TYPE_INT64")
        if name not in allowed:
            message = f"the shape tensor {said.name!r} is {name}, but must be {' or '.join(allowed)}"
            yield Problem(message, field=f"{field}.data_type")
        if len(said.dims) > 1:
            message = f"the shape tensor {said.name!r} has {len(said.dims)} dims; it can have one"
            yield Problem(message, field=f"{field}.dims", hint="leave the batch axis out")


def _formats(subject: Subject) -> Iterator[Problem]:
    for part, field, said in _tensors(subject):
        if part == "input" and said.is_non_linear_format_io and said.allow_ragged_batch:
            message = f"{said.name!r} has a format that is not linear, so it cannot be ragged"
            yield Problem(message, field=f"{field}.allow_ragged_batch", hint="remove one of the two")


def _ragged(subject: Subject) -> Iterator[Problem]:
    for part, field, said in _tensors(subject):
        if part == "input" and said.allow_ragged_batch and len(said.dims) != _RAGGED_RANK:
            message = f"the ragged input {said.name!r} has {len(said.dims)} dims, but the plan must take one"
            yield Problem(message, field=f"{field}.dims", hint="write dims: [-1]")


def _nothing_listed(subject: Subject) -> Iterator[Problem]:
    if _served(subject) and not subject.config.output:
        yield Problem("every output of a plan must be listed, and there is none", hint="add output { ... }")


def _kind(subject: Subject) -> Iterator[Problem]:
    if not _served(subject):
        return
    config = subject.config
    several = dict(config.parameters.items()).get(_SEVERAL)
    for index, group in enumerate(config.instance_group):
        kind = group.Kind.Name(group.kind)
        fits = kind in ("KIND_GPU", "KIND_AUTO")
        if kind == "KIND_MODEL" and several is not None and several.string_value.lower() in ("true", "1"):
            fits = subject.target.at_least(_MULTI_DEVICE)
        if not fits:
            yield Problem(f"a plan cannot run on {kind}", field=f"instance_group[{index}].kind", hint="write KIND_GPU")


def _profiles(subject: Subject) -> Iterator[Problem]:
    for field, name in _profile_names(subject):
        match = _STOI.match(name)
        if match is None or int(match[0]) < 0:
            message = f"the profile {name!r} is not the number of one"
            yield Problem(message, field=field, hint='write numbers from "0"')


def _odd_profiles(subject: Subject) -> Iterator[Problem]:
    seen: set[tuple[str, int]] = set()
    for field, name in _profile_names(subject):
        if (match := _STOI.match(name)) is None:
            continue
        number = int(match[0])
        if match[0] != name:
            yield Problem(f"the profile {name!r} is read as {number}", field=field, hint=f'write "{number}"')
        elif (field, number) in seen:
            yield Problem(f"the profile {number} is listed twice", field=field, hint="keep one")
        seen.add((field, number))


def _profile_names(subject: Subject) -> Iterator[tuple[str, str]]:
    if _served(subject):
        for index, group in enumerate(subject.config.instance_group):
            yield from ((f"instance_group[{index}].profile", name) for name in group.profile)


def _accelerators(subject: Subject) -> Iterator[Problem]:
    asked = subject.config.optimization.execution_accelerators
    if _served(subject) and (asked.gpu_execution_accelerator or asked.cpu_execution_accelerator):
        yield Problem(
            "execution_accelerators are for the onnxruntime backend: a plan is TensorRT already, so they do nothing",
            field="optimization.execution_accelerators",
            hint="remove them; precision and workspace are chosen when the plan is built",
        )


def _parameters(subject: Subject) -> Iterator[Problem]:
    parameters = subject.config.parameters
    if _served(subject) and _STRATEGY in parameters:
        value = parameters[_STRATEGY].string_value
        if value not in ("STATIC", "ON_PROFILE_CHANGE"):
            yield Problem(f"{_STRATEGY} is {value!r}", field="parameters", hint="write STATIC or ON_PROFILE_CHANGE")


def _images(subject: Subject) -> Iterator[Problem]:
    served = sorted(name for name, model in subject.repository.models.items() if model.backend == "tensorrt")
    if served:
        yield Problem(
            f"{served[0]!r}{f' and {len(served) - 1} more need' if served[1:] else ' needs'} the tensorrt backend, "
            f"which the images {', '.join(IMAGES_WITHOUT_TENSORRT)} and builds for CPUs do not have",
            hint="serve from the full image, the one whose tag ends with -py3",
        )


_CONFIG = """\
name: "m"
backend: "tensorrt"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ kind: KIND_GPU }]
"""
_SERVER = "25.03"
PLAN = header_bytes((10, 9, 0, 34))
"""A header as TensorRT 10.9 writes it, which release 25.03 has."""


def plan_model(added: str = "", old: str = "", new: str = "", *, plan: bytes = PLAN, files: Tree | None = None) -> Tree:
    """Return a repository of one plan: its config with `old` replaced by `new`, and `added` at its end."""
    assert old in _CONFIG, old
    config = (_CONFIG.replace(old, new) if old else _CONFIG) + (f"{added}\n" if added else "")
    return {"m/config.pbtxt": config, "m/1/model.plan": plan, **(files or {})}


_GROUP = "kind: KIND_GPU"
_X = "data_type: TYPE_FP32 dims: [4] }]\noutput"
_PYTHON: Tree = {
    "m/config.pbtxt": _CONFIG.replace("tensorrt", "python").replace("KIND_GPU", "KIND_CPU"),
    "m/1/model.py": "# the model's code\n",
}
_ONE_DEVICE = 'cc_model_filenames {{ key: "{}" value: "model_sm90.plan" }}'
_ALLOCATED = f'parameters {{ key: "{_STRATEGY}" value {{ string_value: "%s" }} }}'
_SHAPE = '{ name: "s" data_type: TYPE_%s dims: [2] is_shape_tensor: true }'
_FORMAT = "dims: [4, 2, 2] is_non_linear_format_io: true%s }]\noutput"
_OUTPUT = 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'
_ACCELERATOR = 'optimization { execution_accelerators { gpu_execution_accelerator [{ name: "tensorrt" }] } }'

RULES: tuple[Rule, ...] = (
    Rule(
        "RG370", "error", "A type that no plan has",
        "Inputs and outputs of plans are FP32, FP16, BF16 (from 24.06), INT8, UINT8, INT32, INT64 or BOOL.",
        _dtypes, bad=plan_model("", _X, _X.replace("FP32", "STRING")), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG371", "error", "INT64 in a plan of TensorRT 8",
        "TensorRT before 10 turns INT64 inputs and outputs into INT32.",
        _int64, bad=plan_model("", _X, _X.replace("FP32", "INT64"), plan=header_bytes((8, 6, 1, 6))),
        good=plan_model("", _X, _X.replace("FP32", "INT32"), plan=header_bytes((8, 6, 1, 6))), server="24.01",
    ),
    Rule(
        "RG372", "error", "A shape tensor of the wrong kind",
        "Shape tensors are INT32 or INT64 as inputs, INT64 as outputs, with one axis at most.",
        _shape_tensors, bad=plan_model(f"input [{_SHAPE % 'FP32'}]"), good=plan_model(f"input [{_SHAPE % 'INT32'}]"),
        server=_SERVER,
    ),
    Rule(
        "RG373", "error", "A ragged input whose format is not linear",
        "The backend joins ragged inputs byte by byte, which only the linear format allows.",
        _formats, bad=plan_model("", "dims: [4] }]\noutput", _FORMAT % " allow_ragged_batch: true"),
        good=plan_model("", "dims: [4] }]\noutput", _FORMAT % ""), server=_SERVER,
    ),
    Rule(
        "RG374", "error", "A ragged input with more than one axis",
        "The plan's tensor must be one-dimensional, since requests are joined end to end.",
        _ragged, bad=plan_model("", "dims: [4] }]\noutput", "dims: [4, 4] allow_ragged_batch: true }]\noutput"),
        good=plan_model("", "dims: [4] }]\noutput", "dims: [-1] allow_ragged_batch: true }]\noutput"), server=_SERVER,
    ),
    Rule(
        "RG375", "error", "A plan without outputs in the config",
        "The backend wants every output of the plan in the config.",
        _nothing_listed, bad=plan_model("", _OUTPUT, ""), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG560", "error", "A plan on something else than a GPU",
        "The tensorrt backend refuses KIND_CPU, and KIND_MODEL unless several GPUs share one model (26.07 on).",
        _kind, bad=plan_model("", _GROUP, "kind: KIND_CPU"), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG561", "error", "A profile that is not a number",
        "instance_group.profile lists optimisation profiles by their numbers, as strings.",
        _profiles, bad=plan_model("", _GROUP, f'{_GROUP} profile: ["abc"]'),
        good=plan_model("", _GROUP, f'{_GROUP} profile: ["0", "1"]'), server=_SERVER,
    ),
    Rule(
        "RG562", "warning", "A profile listed twice, or with more than its number",
        "The server reads the number at the start, and a second mention changes nothing.",
        _odd_profiles, bad=plan_model("", _GROUP, f'{_GROUP} profile: ["1x"]'),
        good=plan_model("", _GROUP, f'{_GROUP} profile: ["1"]'), server=_SERVER,
    ),
    Rule(
        "RG563", "warning", "Execution accelerators on a plan",
        "They belong to the onnxruntime backend; the tensorrt backend never looks at them.",
        _accelerators, bad=plan_model(_ACCELERATOR), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG564", "error", "An unknown way of allocating execution contexts",
        "The backend knows STATIC and ON_PROFILE_CHANGE.",
        _parameters, bad=plan_model(_ALLOCATED % "LAZY"),
        good=plan_model(_ALLOCATED % "STATIC", plan=header_bytes((10, 11, 0, 33))),
        server="25.06",
    ),
    Rule(
        "RG870", "error", "There is no plan",
        "The server opens default_model_filename, or model.plan, in each version that it serves.",
        _missing, bad=plan_model('default_model_filename: "net.plan"'), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG871", "error", "A plan for some GPUs that is missing or never used",
        'cc_model_filenames maps a compute capability such as "9.0" to a file of each version.',
        _device_files, bad=plan_model(_ONE_DEVICE.format("sm90"), files={"m/1/model_sm90.plan": PLAN}),
        good=plan_model(_ONE_DEVICE.format("9.0"), files={"m/1/model_sm90.plan": PLAN}), server=_SERVER,
    ),
    Rule(
        "RG872", "error", "The file is no TensorRT plan",
        "ONNX files under another name, Git LFS pointers and cut downloads are the usual cases.",
        _no_plan, bad=plan_model(plan=b"\x08\x08\x12\x07pytorch" + bytes(32)), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG873", "error", "A plan of TensorRT-RTX",
        "Its format is another one, which Triton's backend does not read.",
        _rtx_plan, bad=plan_model(plan=header_bytes((1, 7, 1, 116), rtx=True)), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG874", "warning", "A plan that was cut short",
        "A plan begins with its own size (seen on plans of TensorRT-RTX; of TensorRT it is inferred).",
        _cut_short, bad=plan_model(plan=header_bytes((10, 9, 0, 34), size=4096)), good=plan_model(), server=_SERVER,
    ),
    Rule(
        "RG875", "error", "A plan of another TensorRT",
        "A plan loads with the TensorRT that built it, to the build number, unless it was built VERSION_COMPATIBLE "
        "and the server is told to accept that.",
        _other_version, bad=plan_model(plan=header_bytes((10, 8, 0, 43))), good=plan_model(), server=_SERVER,
        stricter="a version-compatible plan loads on a server that was told to accept it",
    ),
    Rule(
        "RG876", "note", "Images without the tensorrt backend",
        "Not every image of a release has it.",
        _images, bad=plan_model(), good=_PYTHON, scope="root", server=_SERVER,
    ),
)  # fmt: skip
