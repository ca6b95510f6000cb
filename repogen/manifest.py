"""The manifest: what `repogen.yaml` may say, and reading one."""

import difflib
import hashlib
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    ValidationError,
    model_validator,
)

from repogen.cache import cache_folder
from repogen.deploy_schema import DeployEntry
from repogen.errors import ManifestError
from repogen.model import Chosen
from repogen.pipeline_schema import FileEntry, LlmEntry, StepEntry, fits, unfit
from repogen.precision_schema import AccuracyEntry, CalibrationEntry, Precision, PrecisionEntry
from repogen.releases import RELEASES
from repogen.settings_schema import (
    BuildEntry,
    DynamicBatchingEntry,
    InstancesEntry,
    MetricEntry,
    OptimizationEntry,
    SequenceBatchingEntry,
    Strict,
    VersionsEntry,
)
from repogen.tune_schema import TuneEntry
from repogen.yaml_source import PlainFloat, YamlSource, read_yaml

Release = Annotated[str, BeforeValidator(lambda value: getattr(value, "text", value))]
Capability = Annotated[Release, StringConstraints(pattern=r"^[1-9]\d?\.\d$")]
TensorRt = Annotated[Release, StringConstraints(pattern=r"^(rtx|\d+(\.\d+){1,3})$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TritonType = Annotated[str, StringConstraints(pattern=r"^(TYPE_)?[A-Z0-9]+$")]
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"com{n}" for n in range(1, 10)),
    *(f"lpt{n}" for n in range(1, 10)),
}


_PLAIN = {  # pydantic's error types in words for people who do not know pydantic
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "greater_than": "must be at least 1",
    "greater_than_equal": "is too small",
}


class ShapeEntry(Strict):
    """The sizes of one free axis."""

    min: PositiveInt = Field(description="the smallest that must work")
    opt: PositiveInt = Field(description="the usual one")
    max: PositiveInt = Field(description="the largest that must work")

    @model_validator(mode="after")
    def _ordered(self) -> "ShapeEntry":
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min, opt and max must ascend, not {self.min}, {self.opt}, {self.max}")
        return self


class TensorEntry(Strict):
    """What is said of one tensor: required for a Python model, checked against the graph for an ONNX one."""

    dtype: TritonType | None = Field(None, description="Triton's name of the type: FP32, INT64, STRING, …")
    dims: tuple[int, ...] | None = Field(None, description="without the batch axis; -1: any size", examples=[[3, -1]])
    values: tuple[int | float | bool | str, ...] = Field((), description="values to choose from in test requests")
    range: tuple[float, float] | None = Field(None, description="[low, high) of values in test requests")
    labels: str | None = Field(None, description="outputs: a text file with the name of each class, one a line")


class ModelSettings(BuildEntry):
    """What `defaults` and every model may say."""

    gpu: Capability | None = Field(None, description="compute capability of the GPUs that serve it")
    backend: Literal["onnxruntime", "python", "tensorrt", "ensemble", "vllm", "tensorrtllm"] | None = Field(
        None, description="what runs it; by default onnxruntime, or python for a .py file"
    )
    max_batch_size: NonNegativeInt | None = Field(
        None, description="0: requests are never merged; by default 8 where batching was proved, else 0"
    )
    dynamic_batching: DynamicBatchingEntry | bool | None = Field(
        None,
        description="merging of requests; by default without delay where max_batch_size is above 1; false: none",
        examples=[{"max_queue_delay": "2ms"}],
    )
    sequence_batching: SequenceBatchingEntry | None = Field(None, description="of models with a state")
    instances: Annotated[tuple[InstancesEntry, ...], Field(min_length=1)] | None = Field(
        None,
        description="executions side by side; by default one on each GPU, for python one on the CPU",
        examples=[[{"kind": "gpu", "count": 2}]],
    )
    shapes: dict[str, ShapeEntry] = Field(
        {}, description="by the axis's symbol, or tensor.axis", examples=[{"W": {"min": 32, "opt": 320, "max": 1600}}]
    )
    config: dict[str, Any] = Field(
        {},
        description="any other ModelConfig field, merged as protobuf",
        examples=[{"model_operations": {"op_library_filename": ["ops.so"]}}],
    )
    parameters: dict[str, str] = Field({}, description="what the backend gets as parameters, by name")
    warmup: Literal["auto"] | None = Field(None, description="auto: one sample for each size that is batched to")
    response_cache: bool = Field(False, description="needs a server with a cache")
    decoupled: bool = Field(False, description="a request may have any number of answers")
    optimization: OptimizationEntry | None = Field(
        None, description="how the backend runs it", examples=[{"cuda_graphs": True}]
    )
    versions: VersionsEntry | None = Field(
        None, description="which versions are served; by default the latest", examples=[{"latest": 2}]
    )
    metrics: tuple[MetricEntry, ...] = Field((), description="buckets of Triton's histograms")


class ModelEntry(ModelSettings):
    """One model."""

    source: str = Field(
        "",
        description="an ONNX file, or a model.py for the python backend: a path or a URL (s3://…). With `*`, or a "
        "folder: the newest file by the numbers in its name, which are its version. Ensembles have none",
        examples=["exports/*/model.onnx"],
    )
    sha256: Sha256 | None = Field(None, description="enforced when given")
    steps: tuple[StepEntry, ...] = Field((), description="of an ensemble, in any order: tensors decide which runs when")
    files: tuple[FileEntry, ...] = Field((), description="of a python model: what lies beside its code")
    requirements: tuple[str, ...] = Field((), description="of a python model: packages, such as tokenizers>=0.20")
    llm: LlmEntry | None = Field(None, description="of the vllm and tensorrtllm backends")
    version: Annotated[int, Field(ge=1, lt=10**18, strict=True)] = Field(
        1, description="the number of the version folder; where `source` is a pattern, the name says it"
    )
    keep_versions: PositiveInt = Field(2, description="version folders that stay side by side, the new one included")
    inputs: dict[str, TensorEntry] = Field({}, description="by name", examples=[{"sr": {"values": [16000]}}])
    outputs: dict[str, TensorEntry] = Field({}, description="by name", examples=[{"scores": {"labels": "labels.txt"}}])
    samples: str | None = Field(None, description="an .npz with samples of the inputs, for the proof, verify and bench")
    precision: Precision = Field("fp32", description="what the graph is lowered to before it is served or built")
    precision_options: PrecisionEntry | None = Field(
        None, description="how it is lowered", examples=[{"keep_fp32": ["Softmax"]}]
    )
    calibration: CalibrationEntry | None = Field(
        None, description="samples for int8", examples=[{"data": "calib/*.npz"}]
    )
    accuracy: AccuracyEntry | None = Field(
        None,
        description="the gate of another precision",
        examples=[{"data": "val/*.npz", "cosine": 0.999, "top1": 0.99}],
    )
    tune: TuneEntry | None = Field(
        None, description="what the tuner looks for", examples=[{"slo": {"p99": "20ms"}, "rate": "200/s"}]
    )


class ManifestSchema(Strict):
    """A whole manifest."""

    triton: Release = Field(description="the NGC release that serves, such as 26.08")
    repository: str = Field("model_repository", description="where the models go: a folder, or s3://bucket/prefix")
    gpu: Capability | None = Field(None, description="compute capability of the GPUs that serve: 9.0")
    tensorrt: TensorRt | None = Field(None, description="the server's TensorRT, where it is not the release's own")
    build_cache: str | None = Field(None, description="a folder or URL (s3://…) where built plans are shared")
    templates: str | None = Field(None, description="a folder whose templates stand in for repogen's, by name")
    pinned_code: bool = Field(False, description="true: python code runs only where its sha256 is written here")
    keep: NonNegativeInt = Field(1, description="previous generations kept of each model, for rollback")
    deploy: DeployEntry = Field(DeployEntry(), description="how it is served in production, for `repogen export`")
    defaults: ModelSettings = Field(ModelSettings(), description="what every model gets that does not say otherwise")
    models: dict[str, ModelEntry] = Field(min_length=1, description="by name")


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read and found right: each entry has the defaults merged in."""

    source: YamlSource
    triton: str
    repository: Path
    models: Mapping[str, ModelEntry]
    templates: Path | None = None
    keep: int = 1
    gpu: str = ""
    tensorrt: str = ""
    build_cache: str = ""
    pinned_code: bool = False
    deploy: DeployEntry = field(default_factory=DeployEntry)
    store: str = ""  # the URL of a repository on an object store; `repository` stands for it on this machine
    chosen: Mapping[str, Chosen] = field(default_factory=dict)  # where a source was a pattern

    @property
    def root(self) -> str:
        """Where the models are published: a folder's path or a URL."""
        return self.store or str(self.repository)

    def where(self, *key: str | int) -> str:
        return self.source.where(key)

    def source_of(self, name: str) -> str:
        """Return what `models.NAME.source` means: a path, relative to the manifest's folder, or a URL."""
        text = self.expanded(name, self.models[name].source)
        return text if "://" in text else str(self.source.path.parent / text)

    def expanded(self, name: str, text: str) -> str:
        """Return (a part of) the source of `models.NAME` with the environment's values in it."""
        return _expand(text, self.where("models", name, "source"))

    def model_path(self, name: str) -> Path:
        """Return the file that `models.NAME.source` means: the local copy where that is a URL."""
        text = self.source_of(name)
        if "://" not in text:
            return Path(text)
        from repogen.remote_sources import fetched

        return fetched(text, self.models[name].sha256, self.where("models", name, "source"))


def load_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises ManifestError with file, line, key and a hint."""
    source = read_yaml(path)
    if not isinstance(source.data, dict):
        raise ManifestError("a manifest is a mapping with `triton:` and `models:`", where=source.where())
    schema = _validated(source)
    _check_release(source, schema.triton)
    _check_names(source, list(schema.models))
    repository = _expand(schema.repository, source.where(("repository",)))
    models = {name: _merged(source, name) for name in schema.models}
    cache = _expand(schema.build_cache or "", source.where(("build_cache",)))
    return Manifest(
        source,
        schema.triton,
        _stand_in(repository) if "://" in repository else Path(os.path.normpath(path.parent / repository)),
        models,
        store=repository.rstrip("/") if "://" in repository else "",
        templates=_templates(schema, source),
        keep=schema.keep,
        deploy=schema.deploy,
        pinned_code=schema.pinned_code,
        gpu=schema.gpu or "",
        tensorrt=schema.tensorrt or "",
        build_cache=cache if "://" in cache or not cache else os.path.normpath(path.parent / cache),
    )


def _templates(schema: ManifestSchema, source: YamlSource) -> Path | None:
    if schema.templates is None:
        return None
    folder = Path(os.path.normpath(source.path.parent / schema.templates))
    if not any(folder.rglob("*.j2")):
        hint = "copy those that you want to change out of repogen's templates/"
        raise ManifestError(f"{folder} holds no templates (*.j2)", where=source.where(("templates",)), hint=hint)
    return folder


def _stand_in(url: str) -> Path:
    """Return the folder of this machine for what is known here of a repository elsewhere, such as tuning trials."""
    return cache_folder() / "stores" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _validated(source: YamlSource) -> ManifestSchema:
    try:
        return ManifestSchema.model_validate(source.data)
    except ValidationError as error:
        raise _as_manifest_error(source, error) from None


def _as_manifest_error(source: YamlSource, error: ValidationError) -> ManifestError:
    # A misspelt key first: what it leaves missing is only its shadow.
    first = min(error.errors(), key=lambda row: row["type"] != "extra_forbidden")
    key = _user_key(first["loc"], source)
    if first["type"] == "extra_forbidden":
        name = str(key[-1])
        close = difflib.get_close_matches(name, _fields_at(key[:-1]), n=1, cutoff=0.6)
        known = ", ".join(_fields_at(key[:-1]))
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {known}"
        return ManifestError(f"unknown key {name!r}", where=source.where(key), hint=hint)
    if first["type"] == "missing":
        return ManifestError(f"{key[-1]!r} is missing", where=source.where(key[:-1]))
    message = _PLAIN.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = first.get("input")
    if first["type"] not in ("value_error", "too_short") and not isinstance(value, dict | list | tuple):
        shown = value.text if isinstance(value, PlainFloat) else value
        message = f"{message}, not {shown!r}"
    return ManifestError(message, where=source.where(key))


def _user_key(loc: Sequence[str | int], source: YamlSource) -> tuple[str | int, ...]:
    """Return pydantic's location without the union branches that it inserts."""
    key: tuple[str | int, ...] = ()
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if (*key, part) in source.lines or (last and not _is_branch(part)):
            key = (*key, part)
    return key


def _is_branch(part: str | int) -> bool:
    names = ("bool", "int", "float", "str", "none", "literal", "tuple", "DynamicBatchingEntry")
    return isinstance(part, str) and part.split("[")[0] in names


def _fields_at(key: Sequence[str | int]) -> list[str]:
    """Return the keys that the schema knows at a key path."""
    kind: Any = ManifestSchema
    for part in key:
        kind = _model_of(kind.model_fields[part].annotation) if _knows(kind, part) else _model_of(kind)
    return list(kind.model_fields) if hasattr(kind, "model_fields") else []


def _knows(kind: Any, part: str | int) -> bool:
    return part in getattr(kind, "model_fields", {})


def _model_of(annotation: Any) -> Any:
    """Return the pydantic model inside `dict[str, M]`, `tuple[M, ...]` or `M | …`; mappings of models stay put."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return annotation
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, Annotated, dict, tuple):
        for inner in typing.get_args(annotation):
            found = _model_of(inner)
            if hasattr(found, "model_fields"):
                return found
    return annotation


def _check_release(source: YamlSource, release: str) -> None:
    if release not in RELEASES:
        close = difflib.get_close_matches(release, RELEASES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"from {min(RELEASES)} to {max(RELEASES)}"
        where = source.where(("triton",))
        raise ManifestError(f"{release!r} is not a Triton release that repogen knows", where=where, hint=hint)


def _check_names(source: YamlSource, names: Sequence[str]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        where = source.where(("models", name))
        if not _NAME.match(name) or name.endswith(".") or name.split(".")[0].lower() in _RESERVED:
            hint = "letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit"
            raise ManifestError(f"{name!r} cannot be a model's name", where=where, hint=hint)
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            message = f"{name!r} and {other!r} are the same folder where case does not count"
            raise ManifestError(message, where=where, hint="rename one of them")


def _merged(source: YamlSource, name: str) -> ModelEntry:
    """Return the entry with the defaults under it, merged as written and validated again as one."""
    written = source.data["models"][name]
    defaults = source.data.get("defaults") or {}
    backend = written.get("backend", defaults.get("backend"))
    fitting = {key: value for key, value in defaults.items() if fits(key, backend)}
    entry = ModelEntry.model_validate(_deep(fitting, written))
    if problem := unfit(written, entry.backend):
        key, message, hint = problem
        raise ManifestError(message, where=source.where(("models", name, *key)), hint=hint)
    return entry


def _deep(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _deep(result[key], value) if both else value
    return result


def _expand(text: str, where: str) -> str:
    """Replace `${NAME}` by the environment's value; the value itself never reaches a message."""

    def value(match: "re.Match[str]") -> str:
        if match[1] not in os.environ:
            raise ManifestError(f"the environment has no {match[1]}", where=where)
        return os.environ[match[1]]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value, text)
