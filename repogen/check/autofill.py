"""What the server fills into a config by itself before it judges it: backend, platform and file name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENSEMBLE = "ensemble"
TENSORRT = "tensorrt_plan"


@dataclass(frozen=True)
class Filled:
    """The three as the server takes them; a backend of "" is one that it could not find."""

    backend: str
    platform: str
    filename: str


@dataclass(frozen=True)
class _Kind:
    """One row of what the server recognises: by platform, by file name, by what lies in the version folder.

    `platform_after` is what an empty platform becomes; `entry` says whether a folder, a file or either counts.
    """

    backend: str
    filename: str
    platforms: tuple[str, ...] = ()
    platform_after: str = ""
    entry: str = "any"


_KINDS = (
    _Kind("tensorrt", "model.plan", (TENSORRT,), TENSORRT, "file"),
    _Kind("onnxruntime", "model.onnx", ("onnxruntime_onnx",), "onnxruntime_onnx"),
    _Kind("openvino", "model.xml"),
    _Kind("pytorch", "model.pt", ("pytorch_libtorch",), "pytorch_libtorch", "file"),
    _Kind("python", "model.py"),
)
_TENSORFLOW = (
    _Kind("tensorflow", "model.savedmodel", ("tensorflow_savedmodel",), "tensorflow_savedmodel", "folder"),
    _Kind("tensorflow", "model.graphdef", ("tensorflow_graphdef",), "tensorflow_graphdef", "file"),
)
PLATFORM_BACKENDS = {
    **{platform: kind.backend for kind in (*_KINDS, *_TENSORFLOW) for platform in kind.platforms},
    "torch_aoti": "pytorch",
}
PAIRED = frozenset({"tensorrt", "onnxruntime", "pytorch", "tensorflow"})
"""The backends whose platform the server compares."""


def fill(config: Any, name: str, folder: Path, folders: tuple[str, ...]) -> Filled:
    """Return what the server makes of the config of the model `name`; it looks into its first folder only."""
    first = folder / folders[0] if folders else None
    if config.platform == ENSEMBLE:
        return Filled(config.backend, ENSEMBLE, config.default_model_filename)
    for kind in (*_TENSORFLOW, *_KINDS):
        if _is(kind, config, first):
            return Filled(
                kind.backend,
                config.platform or kind.platform_after,
                config.default_model_filename or kind.filename,
            )
    if config.backend or config.platform or config.default_model_filename:
        return Filled(config.backend, config.platform, config.default_model_filename)
    _, dot, backend = name.partition(".")
    return Filled(backend, "", f"model.{backend}" if dot else "")


def _is(kind: _Kind, config: Any, first: Path | None) -> bool:
    if config.backend:
        return bool(config.backend == kind.backend)
    if config.platform in kind.platforms or config.default_model_filename == kind.filename:
        return True
    if config.platform or config.default_model_filename or first is None:
        return False
    found = first / kind.filename
    return found.exists() and (kind.entry == "any" or found.is_dir() == (kind.entry == "folder"))
