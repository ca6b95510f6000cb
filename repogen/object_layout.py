"""How a model lies on an object store, where nothing can be renamed and the config is what goes live.

The file that a config names has a name made of its content: a new one is put beside the old, and until the new
`config.pbtxt` (one object, replaced in one step) names it nobody loads it. See docs/repository.md.
"""

import hashlib
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from repogen.model import ModelFile, ServedModel

_MARK = "model-"
_DIGITS = 12
_DEFAULTS = ("model.onnx", "model.plan", "model.py")


def arranged(model: ServedModel) -> ServedModel:
    """Return the model with names made of its content, and a config that says which file and version it means."""
    named = model.files or model.pending
    if not named:
        return model
    own = [f"{file.name}\0{file.sha256}" for file in model.files] or [build.key for build in model.pending]
    suffix = PurePosixPath(named[0].name).suffix
    digest = hashlib.sha256("\0".join(own).encode()).hexdigest()
    stem = f"{_MARK}{digest[:_DIGITS]}{suffix}"
    files = tuple(replace(file, name=_placed(file, stem, model)) for file in model.files)
    carried = tuple(replace(file, name=_renamed(file.name, stem)) for file in model.carried)
    config: dict[str, Any] = {**model.config, "default_model_filename": stem}
    if model.version == 1 and "version_policy" not in config:  # "the latest" would be a half-uploaded one
        config["version_policy"] = {"specific": {"versions": [1]}}
    return replace(model, files=files, carried=carried, config=config)


def is_named_by_content(path: str) -> bool:
    """Return whether an object of a model's folder never changes under its name."""
    parts = path.split("/")
    return len(parts) > 1 and parts[1].startswith(_MARK)


def _placed(file: ModelFile, stem: str, model: ServedModel) -> str:
    """Return a file's name in the version folder: ONNX with weights of its own is a folder of the stem's name."""
    if model.backend == "onnxruntime" and len(model.files) > 1:
        return f"{stem}/{file.name}"
    return stem if file == model.files[0] else file.name


def _renamed(path: str, stem: str) -> str:
    """Return where another version's file goes: a config names one file for all its versions."""
    version, _, rest = path.partition("/")
    first, slash, below = rest.partition("/")
    return f"{version}/{stem}{slash}{below}" if first.startswith(_MARK) or first in _DEFAULTS else path
