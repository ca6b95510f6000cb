"""Decide how a model is served as a TensorRT plan: what is built, for which server and GPU, and its config. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from repogen.backends_data import TENSORRT_DTYPES
from repogen.errors import ManifestError
from repogen.manifest import Manifest, ModelEntry
from repogen.model import (
    Build,
    BuilderOptions,
    Graph,
    Instances,
    ModelFile,
    ServedModel,
    ServedTensor,
)
from repogen.profiles import profiles_of
from repogen.releases import Release

Where = Callable[..., str]
RTX = "tensorrt_rtx"
_FIRST_INT64 = 10
"""TensorRT's major version from which plans have INT64; before, the parser makes it INT32."""
_NO_CAPABILITY = (
    'write gpu: with the compute capability of the GPUs that serve, such as "9.0" '
    "(nvidia-smi --query-gpu=compute_cap --format=csv)"
)


@dataclass(frozen=True)
class PlanTarget:
    """The server that will read a plan: its kind and version of TensorRT, and its GPUs' compute capability."""

    kind: str
    version: str
    capability: str
    release: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0]) if self.version and self.kind != RTX else 99


def target_of(
    manifest: Manifest, entry: ModelEntry, release: Release, *, here: str, rtx: str, where: Where
) -> PlanTarget:
    """Return what a model's plan is for: as the manifest says, else the release's TensorRT and the GPU of this machine.

    `here` is the compute capability of the GPU of this machine, "" for none; `rtx` the TensorRT-RTX installed here,
    which a manifest may ask for to try things out. Raises ManifestError.
    """
    if manifest.tensorrt == "rtx":
        return PlanTarget(RTX, rtx, "", manifest.triton)
    version = manifest.tensorrt or release.tensorrt
    capability = entry.gpu or manifest.gpu or here
    if not capability:
        message = "a plan is built for one kind of GPU, and this machine has none to go by"
        raise ManifestError(message, where=where("backend"), hint=_NO_CAPABILITY)
    return PlanTarget("tensorrt", version, capability, manifest.triton)


def decide_tensorrt(
    model: ServedModel,
    entry: ModelEntry,
    graph: Graph,
    target: PlanTarget,
    *,
    onnx: Sequence[ModelFile],
    plugins: Sequence[ModelFile] = (),
    lowering: str = "",
    shared_cache: str = "",
    where: Where,
) -> ServedModel:
    """Return `model`, decided as for ONNX Runtime, as a plan built from `onnx`. Raises ManifestError.

    Its plan is neither looked for nor built: `files` is empty.
    """
    _check_batch_axis(model, graph, where)
    inputs = tuple(_tensor(tensor, "inputs", target, graph, where) for tensor in model.inputs)
    outputs = tuple(_tensor(tensor, "outputs", target, graph, where) for tensor in model.outputs)
    model = replace(model, backend="tensorrt", inputs=inputs, outputs=outputs, files=())
    profiles = profiles_of(model, entry.profiles, graph.shape_inputs, where)
    build = Build(
        onnx=tuple(onnx),
        profiles=profiles,
        options=_options(entry, target, plugins, where),
        kind=target.kind,
        version=target.version,
        capability=target.capability,
        precision=entry.precision or "fp32",
        lowering=lowering,
        release=target.release,
        builder=entry.builder,
        timeout=entry.timeout / 1e6,
        shared_cache=shared_cache,
    )
    instances = tuple(_instances(group, len(profiles), where) for group in model.instances)
    return replace(model, build=build, instances=instances, notes=(*model.notes, *_notes(build)))


def what_is_built(build: Build) -> str:
    """Return one line for people: `TensorRT 10.16, sm_90, fp16, batch 1..32`."""
    name = "TensorRT-RTX" if build.kind == RTX else "TensorRT"
    parts = [f"{name} {build.version}".strip(), f"sm_{build.capability.replace('.', '')}" * bool(build.capability)]
    parts.append(build.precision)
    batches = [profile.max_batch for profile in build.profiles if profile.max_batch]
    parts.append(f"batch up to {max(batches)}" if batches else "")
    parts.append(f"{len(build.profiles)} profiles" if len(build.profiles) > 1 else "")
    return ", ".join(part for part in parts if part)


def server_flags(models: Sequence[ServedModel]) -> tuple[str, ...]:
    """Return the flags with which a Triton must be started to load these plans."""
    builds = [model.build for model in models if model.build is not None]
    plugins = sorted({file.name for build in builds for file in build.options.plugins})
    flags = []
    if any(build.options.version_compatible for build in builds):
        flags.append("--backend-config=tensorrt,version-compatible=true")
    if plugins:
        flags.append(f"--backend-config=tensorrt,plugins={';'.join(plugins)}")
    return tuple(flags)


def plan_dtype(dtype: str, major: int) -> str:
    """Return the type that an ONNX tensor of `dtype` has in a plan of TensorRT `major`."""
    return "TYPE_INT32" if dtype == "TYPE_INT64" and major < _FIRST_INT64 else dtype


def _tensor(tensor: ServedTensor, part: str, target: PlanTarget, graph: Graph, where: Where) -> ServedTensor:
    if tensor.scalar:
        message = f"{tensor.name!r} has no axis, and a plan's tensors need one in Triton"
        raise ManifestError(message, where=where("backend"), hint="serve it with onnxruntime, or export it as [1]")
    dtype = plan_dtype(tensor.dtype, target.major)
    if dtype not in TENSORRT_DTYPES:
        have = ", ".join(sorted(kind.removeprefix("TYPE_") for kind in TENSORRT_DTYPES))
        message = f"{part[:-1]} {tensor.name!r} is {tensor.dtype.removeprefix('TYPE_')}, which no plan has"
        raise ManifestError(message, where=where("backend"), hint=f"plans have {have}; serve it with onnxruntime")
    shape = part == "inputs" and tensor.name in graph.shape_inputs
    return replace(tensor, dtype=dtype, shape_tensor=shape, narrowed=dtype != tensor.dtype)


def _check_batch_axis(model: ServedModel, graph: Graph, where: Where) -> None:
    """Refuse batching where a plan would have a fixed first axis, or where an input's values are sizes."""
    if not model.max_batch_size:
        return
    for tensor in graph.inputs:
        if tensor.name in graph.shape_inputs:
            message = (
                f"the values of {tensor.name!r} are sizes ({graph.shape_inputs[tensor.name]}), the same for a batch"
            )
            raise ManifestError(message, where=where("max_batch_size"), hint="write max_batch_size: 0")
        if tensor.dims and not isinstance(tensor.dims[0], str):
            message = f"the first axis of {tensor.name!r} is {tensor.dims[0]}, so a plan of it takes no batches"
            raise ManifestError(message, where=where("max_batch_size"), hint="export it with a free batch axis")


def _options(entry: ModelEntry, target: PlanTarget, plugins: Sequence[ModelFile], where: Where) -> BuilderOptions:
    compatible = entry.hardware_compatible or ""
    if compatible == "ampere_plus" and target.capability and float(target.capability) < 8:  # noqa: PLR2004 - sm_80
        message = f"ampere_plus needs a GPU of compute capability 8.0 or more, not {target.capability}"
        raise ManifestError(message, where=where("hardware_compatible"))
    return BuilderOptions(
        workspace=entry.workspace or 0,
        optimization_level=entry.optimization_level,
        tf32=entry.tf32,
        version_compatible=entry.version_compatible,
        hardware_compatible=compatible,
        plugins=tuple(plugins),
    )


def _instances(group: Instances, profiles: int, where: Where) -> Instances:
    """Return an instance group that runs every profile of the plan, unless it names its own."""
    if group.kind == "cpu":
        message = "a plan runs on GPUs only"
        raise ManifestError(message, where=where("instances"), hint="write kind: gpu, or backend: onnxruntime")
    named = group.more.get("profile", [])
    beyond = [number for number in named if int(number) >= max(profiles, 1)]
    if beyond:
        message = f"profile {beyond[0]} does not exist: the plan has {max(profiles, 1)}, from 0"
        raise ManifestError(message, where=where("instances"))
    if named or profiles <= 1:
        return group
    return replace(group, more={**group.more, "profile": [str(number) for number in range(profiles)]})


def _notes(build: Build) -> tuple[str, ...]:
    notes = [f"plan: {what_is_built(build)}"]
    if build.kind == RTX:
        notes.append("built by TensorRT-RTX to try it out: Triton cannot load this plan")
    if build.options.version_compatible:
        notes.append("start Triton with --backend-config=tensorrt,version-compatible=true: the plan needs it")
    if build.options.plugins:
        names = ";".join(file.name for file in build.options.plugins)
        notes.append(f"start Triton with --backend-config=tensorrt,plugins={names}: the plan needs them")
    return tuple(notes)
