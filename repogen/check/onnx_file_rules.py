"""RG85x, RG95x: the ONNX files that the onnxruntime backend would open."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from repogen.backends_data import OLDEST_OPSET
from repogen.check.onnx_examples import constant, model_bytes, node, onnx_model
from repogen.check.onnx_facts import model_files, onnx_files, readable_models
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject
from repogen.releases import onnx_limits


def _missing_file(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "onnxruntime":
        return
    for name in model_files(subject.model, "model.onnx"):
        path = subject.model.folder / name
        if not (path / "model.onnx").is_file() and not path.is_file():
            there = sorted(other.name for other in path.parent.glob("*.onnx"))
            hint = f'write default_model_filename: "{there[0]}"' if len(there) == 1 else "put the model there"
            yield Problem(f"{name} is not there", field="default_model_filename", hint=hint)


def _not_onnx(subject: Subject) -> Iterator[Problem]:
    for name, facts in onnx_files(subject.model) if subject.model.backend == "onnxruntime" else ():
        if not facts.readable:
            yield Problem(f"it is no ONNX model: {facts.problem}", file=name, hint="export or copy it again")


def _too_new(subject: Subject) -> Iterator[Problem]:
    limits = onnx_limits(subject.target.release)
    if limits is None:
        return
    for name, facts in readable_models(subject):
        for what, have, most in (
            ("IR version", facts.ir_version, limits.ir_version),
            ("opset", facts.opsets.get("ai.onnx", 0), limits.opset),
            ("opset of ai.onnx.ml", facts.opsets.get("ai.onnx.ml", 0), limits.ml_opset),
        ):
            if have > most:
                yield Problem(
                    f"its {what} is {have}, but ONNX Runtime {limits.onnxruntime} of release "
                    f"{subject.target.release.ngc} opens up to {most} ({limits.confidence})",
                    file=name,
                    hint="export it for an older opset, lower its ir_version, or serve with a newer release",
                    severity=None if limits.confidence == "measured" else "warning",
                )


def _too_old(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        opset = facts.opsets.get("ai.onnx", OLDEST_OPSET)
        if opset < OLDEST_OPSET and not facts.refused:
            yield Problem(
                f"its opset is {opset}, older than {OLDEST_OPSET}: many of its operators have no implementation",
                file=name,
                hint="convert it with onnx.version_converter",
            )


def _custom_operator(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend == "onnxruntime" and subject.config.model_operations.op_library_filename:
        return
    for name, facts in readable_models(subject):
        if facts.custom:
            yield Problem(
                f"ONNX Runtime has no {', '.join(facts.custom)}",
                file=name,
                hint='name the library that has it: model_operations { op_library_filename: ["/path/lib.so"] }',
            )


def _unknown_operator(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        if facts.unknown:
            message = f"ONNX has no operator {', '.join(facts.unknown)}"
            yield Problem(message, file=name, hint="give its node a domain of its own and a library, or export again")


def _refused(subject: Subject) -> Iterator[Problem]:
    limits = onnx_limits(subject.target.release)
    for name, facts in readable_models(subject):
        newest = 0 if limits is None else limits.opset
        if facts.refused and not facts.unknown and facts.opsets.get("ai.onnx", 0) <= newest:
            yield Problem(f"ONNX Runtime refuses it: {facts.refused}", file=name, hint="export it again")


def _library(subject: Subject) -> Iterator[Problem]:
    if subject.model.backend != "onnxruntime":
        return
    for index, name in enumerate(subject.config.model_operations.op_library_filename):
        field = f"model_operations.op_library_filename[{index}]"
        folder = subject.model.folder
        if "/" not in name:
            yield Problem(
                f"{name!r} is looked for among the system's libraries, not in the model's folder",
                field=field,
                hint="write its absolute path on the server",
            )
        elif not name.startswith("/"):
            beside = any((base / name).exists() for base in (folder, *(folder / it for it in subject.model.folders)))
            yield Problem(
                f"{name!r} is looked for from the server's working directory{', not from here' if beside else ''}",
                field=field,
                hint="write its absolute path on the server",
                severity="warning",
            )


def _weights_missing(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        for location, weights in facts.external:
            if not (facts.path.parent / location).is_file():
                hint = "copy it beside the model, under the same name"
                yield Problem(
                    f"the weights of {weights!r} lie in {location!r}, which is not there", file=name, hint=hint
                )


def _weights_outside(subject: Subject) -> Iterator[Problem]:
    for name, facts in readable_models(subject):
        for location, weights in facts.external:
            path = PurePosixPath(location)
            target = Path(facts.path.parent, location)
            linked = target.exists() and not target.resolve().is_relative_to(facts.path.parent.resolve())
            if path.is_absolute() or ".." in path.parts or linked:
                yield Problem(
                    f"the weights of {weights!r} lie in {location!r}, outside the model's version folder",
                    file=name,
                    hint="copy the file beside the model: a model may otherwise read any file of the server",
                )


def _foreign() -> bytes:
    return model_bytes([node("Foo", domain="my.custom")], domains={"my.custom": 1})


def _weights_in(location: str) -> bytes:
    from onnx import ModelProto, TensorProto

    model = ModelProto.FromString(
        model_bytes([node("Add", "x w")], constants=[constant("w", [0.0] * 4, "FLOAT")]),
    )
    weights = model.graph.initializer[0]
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    return bytes(model.SerializeToString())


def _with_library(name: str) -> str:
    return f'model_operations {{ op_library_filename: ["{name}"] }}'


_ZEROS = bytes(16)
_SERVER = "2.51"

RULES: tuple[Rule, ...] = (
    Rule(
        "RG850", "error", "There is no ONNX file",
        "The server opens default_model_filename, or model.onnx, in each version that it serves.",
        _missing_file, bad={**onnx_model('default_model_filename: "net.onnx"')}, good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG851", "error", "The file is no ONNX model",
        "Git LFS pointers, empty files and cut downloads are the usual cases.",
        _not_onnx, bad=onnx_model(file=b"version https://git-lfs.github.com/spec/v1\n"), good=onnx_model(),
        server=_SERVER,
    ),
    Rule(
        "RG852", "error", "The ONNX model is newer than the server's ONNX Runtime",
        "Each ONNX Runtime opens models up to an opset and an IR version.",
        _too_new, bad=onnx_model(file=lambda: model_bytes(opset=22, ir=10)), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG853", "warning", "The ONNX model is older than what ONNX Runtime promises to run",
        "Operators of opsets below 7 may have no implementation.",
        _too_old, bad=onnx_model(file=lambda: model_bytes(opset=6, ir=3)), good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG854", "error", "A custom operator without its library",
        "ONNX Runtime has only the operators of ONNX and its own; others come from a library that the config names.",
        _custom_operator, bad=onnx_model(file=_foreign),
        good=onnx_model(_with_library("/opt/ops/libfoo.so"), file=_foreign), server=_SERVER,
    ),
    Rule(
        "RG855", "error", "An operator that ONNX does not have",
        "A node without a domain of its own must be an operator of ONNX.",
        _unknown_operator, bad=onnx_model(file=lambda: model_bytes([node("FooBarBaz")])), good=onnx_model(),
        server=_SERVER,
    ),
    Rule(
        "RG856", "error", "ONNX Runtime refuses the model",
        "The model was opened with the ONNX Runtime that is installed here, and it said no.",
        _refused,
        bad=onnx_model(file=lambda: model_bytes([node("Add", "x w")], constants=[constant("w", [1.0] * 3, "FLOAT")])),
        good=onnx_model(), server=_SERVER,
    ),
    Rule(
        "RG857", "error", "The library of custom operators is not found",
        "The server does not look for it in the model's folder.",
        _library, bad=onnx_model(_with_library("libfoo.so"), file=_foreign),
        good=onnx_model(_with_library("/opt/ops/libfoo.so"), file=_foreign), server=_SERVER,
    ),
    Rule(
        "RG858", "error", "A weights file is missing",
        "An ONNX model may keep its weights in files beside it, which must be there under the same names.",
        _weights_missing, bad=onnx_model(file=lambda: _weights_in("w.bin")),
        good=onnx_model(file=lambda: _weights_in("w.bin"), files={"m/1/w.bin": _ZEROS}), server=_SERVER,
    ),
    Rule(
        "RG950", "warning", "Weights outside the model's folder",
        "The server follows the path wherever it leads; the model breaks when it is moved, and may read any file.",
        _weights_outside,
        bad=onnx_model(file=lambda: _weights_in("../w.bin"), files={"m/w.bin": _ZEROS}),
        good=onnx_model(file=lambda: _weights_in("w.bin"), files={"m/1/w.bin": _ZEROS}), server=_SERVER,
    ),
)  # fmt: skip
