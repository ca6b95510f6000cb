"""What a server of these models needs: GPUs, and time to start. Pure."""

import math
from collections.abc import Sequence

from repogen.errors import ManifestError
from repogen.export.settings import Settings
from repogen.model import ModelFile, ServedModel

_START = 60.0  # seconds until Triton listens, from a cold image
_READ = 100e6  # bytes a second, from a network volume
_INSTANCE = 3.0  # seconds an instance: contexts, warm-up requests, a Python process
_SAFETY = 3.0
_SHORTEST = 300.0


def gpus_needed(models: Sequence[ServedModel], settings: Settings) -> int:
    """Return how many GPUs a server needs. Raises ManifestError where the manifest's number is another."""
    said = settings.deploy.gpus
    named = {gpu for model in models for group in model.instances for gpu in group.gpus}
    anywhere = [model.name for model in models if any(it.kind == "gpu" and not it.gpus for it in model.instances)]
    needed = max([*(gpu + 1 for gpu in named), int(bool(anywhere))])
    if said is None:
        return needed
    if said < needed:
        raise _too_few(models, settings, said)
    if said > needed and not anywhere and not _automatic(models):
        used = f"instances use {needed}" if needed else "no instance uses one"
        hint = f"say gpus: {needed}, or let instances use the others"
        raise ManifestError(f"{said} GPUs for each server, but {used}", where=_deploy(settings), hint=hint)
    return said


def _automatic(models: Sequence[ServedModel]) -> bool:
    """Return whether Triton itself, or a model's own code, may put instances on any GPU."""
    return any(group.kind in ("auto", "model") and not group.gpus for model in models for group in model.instances)


def _deploy(settings: Settings) -> str:
    return settings.manifest.where("deploy", "gpus")


def _too_few(models: Sequence[ServedModel], settings: Settings, said: int) -> ManifestError:
    """Name the first instance group that no GPU is there for."""
    for model in models:
        for index, group in enumerate(model.instances):
            beyond = [gpu for gpu in group.gpus if gpu >= said]
            if beyond or (group.kind == "gpu" and said == 0):
                wants = f"GPU {beyond[0]}" if beyond else "a GPU"
                has = f"GPUs 0 to {said - 1}" if said > 1 else "GPU 0 only" if said else "none"
                return ManifestError(
                    f"{model.name} wants {wants}, but each server has {has} ({_deploy(settings)})",
                    where=_instances(settings, model.name, index),
                    hint="raise deploy.gpus, or change the instance group",
                )
    raise AssertionError("some group needs more than there is")


def _instances(settings: Settings, model: str, index: int) -> str:
    """Return where the instance group stands: with the model, or with the defaults."""
    source = settings.manifest.source
    keys = (("models", model, "instances", index), ("defaults", "instances", index))
    return source.where(next((key for key in keys if key in source.lines), ("models", model)))


def load_seconds(models: Sequence[ServedModel], settings: Settings) -> int:
    """Return how long a server may take to start: as said, or three times what its files and instances take."""
    if settings.deploy.load_time is not None:
        return math.ceil(settings.deploy.load_time / 1e6)
    size = sum(file.size for model in models for file in _files(model))
    instances = sum(group.count * max(len(group.gpus), 1) for model in models for group in model.instances)
    return math.ceil(max(_SHORTEST, _SAFETY * (_START + size / _READ + _INSTANCE * instances)))


def _files(model: ServedModel) -> tuple[ModelFile, ...]:
    # A plan that is not built yet is about as large as the graph that it is built of.
    return model.files or (model.build.onnx if model.build else ())
