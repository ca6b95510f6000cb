"""The stand-in of a model for a machine without a GPU: the same model, run by Triton's Python backend."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from repogen.assets import TEMPLATES
from repogen.model import Instances, ModelFile, ServedModel

RUNNER = TEMPLATES / "embedded" / "model.py"


def embed(model: ServedModel, *, cpus: int) -> ServedModel:
    """Return the stand-in of `model` on `cpus` cores: names, tensors and batching are the same."""
    instances = tuple(Instances(kind="cpu", count=group.count) for group in model.instances)
    if model.backend == "python":
        return replace(model, instances=instances)
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
            "intra_op_threads": str(max(1, cpus // executions)),
        },
    )


def _model_file(source: Path) -> ModelFile:
    content = source.read_bytes()
    return ModelFile("model.py", source, hashlib.sha256(content).hexdigest(), len(content))
