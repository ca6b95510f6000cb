"""The stand-in of a model for this machine: the same model, run by Triton's Python backend."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from repogen.assets import TEMPLATES
from repogen.errors import ServerError
from repogen.gpu import gpus
from repogen.model import Instances, ModelFile, ServedModel
from repogen.plan_header import read_header

RUNNER = TEMPLATES / "embedded" / "model.py"
THREADS = "intra_op_threads"
"""The stand-in's parameter with the threads of one instance: all instances together have the cores."""
PLAN_RUNNER = TEMPLATES / "embedded" / "plan_model.py"
PLAN_ENGINE = TEMPLATES / "embedded" / "plan_engine.py"


def embed(model: ServedModel, *, cpus: int) -> ServedModel:
    """Return the stand-in of `model` on `cpus` cores: names, tensors and batching are the same.

    A plan runs itself where its GPU and its TensorRT are; elsewhere the graph that it was built from stands in.
    """
    if model.backend == "tensorrt":
        return _plan(model) if runs_here(model) else _graph(_unplanned(model), cpus)
    if model.backend in ("vllm", "tensorrtllm"):
        hint = "leave it out: --model names the others; `serve --docker` runs the release that has it"
        raise ServerError(f"{model.name}: the embedded server has no {model.backend} backend", hint=hint)
    if model.backend == "ensemble":
        return model  # Triton's ensemble scheduler is part of the server itself
    if model.backend == "python":
        return replace(model, instances=_on_cpu(model))
    return _graph(model, cpus)


def runs_here(model: ServedModel) -> bool:
    """Whether this machine has a GPU and the very TensorRT that wrote the plan of `model`."""
    if not model.files or not gpus():
        return False
    header = read_header(model.files[0].source)
    try:
        installed = metadata.version("tensorrt").split(".")
    except metadata.PackageNotFoundError:
        return False
    written = [str(part) for part in header.version]
    return not header.problem and not header.rtx and written[: len(installed[:4])] == installed[:4]


def devices(stand_ins: Sequence[ServedModel]) -> str:
    """Return what runs them: CPU, GPU, or both."""
    kinds = {"CPU" if group.kind == "cpu" else "GPU" for model in stand_ins for group in model.instances}
    return " and ".join(sorted(kinds)) or "CPU"


def _plan(model: ServedModel) -> ServedModel:
    assert model.build is not None
    told = {"plan_file": model.files[0].name}
    if (model.config.get("optimization") or {}).get("cuda", {}).get("graphs"):
        told["cuda_graphs"] = "true"
    if model.build.options.version_compatible:
        told["version_compatible"] = "true"
    plain = _unprofiled(model)
    files = (*model.files, _model_file(PLAN_RUNNER), _model_file(PLAN_ENGINE, "plan_engine.py"))
    instances = tuple(Instances("gpu", group.count, group.gpus) for group in model.instances)
    parameters = {**model.parameters, **told}
    return replace(plain, backend="python", files=files, pending=(), instances=instances, parameters=parameters)


def _unplanned(model: ServedModel) -> ServedModel:
    """Return a model of plans as the graph that its plan is built from."""
    assert model.build is not None
    return replace(_unprofiled(model), files=model.build.onnx, pending=())


def _unprofiled(model: ServedModel) -> ServedModel:
    """Leave out what only the tensorrt backend may be told."""
    inputs = tuple(replace(tensor, shape_tensor=False) for tensor in model.inputs)
    return replace(model, inputs=inputs, config={k: v for k, v in model.config.items() if k != "optimization"})


def _graph(model: ServedModel, cpus: int) -> ServedModel:
    instances = _on_cpu(model)
    executions = sum(group.count for group in instances) or 1
    return replace(
        model,
        backend="python",
        files=(*model.files, _model_file(RUNNER)),
        instances=instances,
        parameters={
            **model.parameters,
            "onnx_file": model.files[0].name,
            "scalars": json.dumps([tensor.name for tensor in model.inputs if tensor.scalar]),
            **_narrowed(model),
            THREADS: str(max(1, cpus // executions)),
        },
    )


def _narrowed(model: ServedModel) -> dict[str, str]:
    """Return which tensors a plan has as INT32 although its graph says INT64."""
    names = [tensor.name for tensor in (*model.inputs, *model.outputs) if tensor.narrowed]
    return {"narrowed": json.dumps(names)} if names else {}


def _on_cpu(model: ServedModel) -> tuple[Instances, ...]:
    return tuple(Instances(kind="cpu", count=group.count) for group in model.instances)


def _model_file(source: Path, name: str = "model.py") -> ModelFile:
    content = source.read_bytes()
    return ModelFile(name, source, hashlib.sha256(content).hexdigest(), len(content))
