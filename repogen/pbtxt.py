"""Triton's own schema of `config.pbtxt`: parse, print, and build what is meant."""

import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import json_format, text_encoding, text_format

from repogen.errors import ManifestError, RepogenError
from repogen.model import ServedModel, ServedTensor

FINGERPRINT = "repogen_fingerprint"
"""The parameter that ties a config to the files beside it."""
_ONE = threading.Lock()  # another thread would find the module registered, and empty still
_KIND = {"cpu": "KIND_CPU", "gpu": "KIND_GPU", "auto": "KIND_AUTO", "model": "KIND_MODEL"}
_MODEL_FILE = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "python": "model.py"}
_PLATFORM = {"tensorrt": "tensorrt_plan", "ensemble": "ensemble"}


def schema() -> ModuleType:
    """Return Triton's model_config_pb2, without the half second that importing all of tritonclient.grpc takes."""
    name = "tritonclient.grpc.model_config_pb2"
    with _ONE:
        return _loaded(name)


def _loaded(name: str) -> ModuleType:
    if name not in sys.modules:
        package = find_spec("tritonclient")
        assert package is not None
        assert package.submodule_search_locations
        path = Path(next(iter(package.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module  # a later import of tritonclient.grpc finds this one
        spec.loader.exec_module(module)
    return sys.modules[name]


def parse(text: str) -> Any:
    """Return the ModelConfig that `text` says. Raises text_format.ParseError with line and column."""
    return text_format.Parse(text, schema().ModelConfig())


def quote(text: str) -> str:
    """Return `text` as a string of the text format, quotes included."""
    return f'"{text_encoding.CEscape(text.encode(), as_utf8=True)}"'


def remaining(message: Any, printed: tuple[str, ...], indent: int = 0) -> str:
    """Print the set fields of `message` that a template does not print itself, each line ended."""
    rest = type(message)()
    rest.CopyFrom(message)
    for field in printed:
        if field in message.DESCRIPTOR.fields_by_name:
            oneof = message.DESCRIPTOR.fields_by_name[field].containing_oneof
            if oneof is None or message.WhichOneof(oneof.name) == field:
                rest.ClearField(field)
    return str(text_format.MessageToString(rest, as_utf8=True, indent=indent))


def intended(model: ServedModel, fingerprint: str, where: str = "") -> Any:
    """Return the ModelConfig that `model` means, its free `config` fields merged in."""
    config = schema().ModelConfig()
    config.name = model.name
    config.backend = "" if model.backend == "ensemble" else model.backend
    config.platform = _PLATFORM.get(model.backend, "")
    config.max_batch_size = model.max_batch_size
    for part, tensors in ((config.input, model.inputs), (config.output, model.outputs)):
        for tensor in tensors:
            _fill_tensor(part.add(), tensor)
    for group in model.instances:
        filled = config.instance_group.add(kind=_KIND[group.kind], count=group.count, gpus=group.gpus)
        json_format.ParseDict(dict(group.more), filled)
    if model.dynamic_batching is not None:
        config.dynamic_batching.SetInParent()
        config.dynamic_batching.max_queue_delay_microseconds = model.dynamic_batching.max_queue_delay
        config.dynamic_batching.preferred_batch_size.extend(model.dynamic_batching.preferred_batch_size)
    if model.version != 1:
        config.version_policy.specific.versions.append(model.version)
    config.default_model_filename = _MODEL_FILE.get(model.backend, "")
    for key, value in sorted(model.parameters.items()):
        config.parameters[key].string_value = value
    _merge(config, model.config, where)
    config.parameters[FINGERPRINT].string_value = fingerprint
    return config


def _fill_tensor(field: Any, tensor: ServedTensor) -> None:
    field.name = tensor.name
    field.data_type = schema().DataType.Value(tensor.dtype)
    field.dims.extend(tensor.dims)
    if tensor.shape_tensor:
        field.is_shape_tensor = True
    if tensor.optional:
        field.optional = True
    if tensor.ragged:
        field.allow_ragged_batch = True
    if tensor.label_filename:
        field.label_filename = tensor.label_filename
    if tensor.reshape is not None:
        field.reshape.SetInParent()
        field.reshape.shape.extend(tensor.reshape)


def _merge(config: Any, extra: Mapping[str, Any], where: str) -> None:
    for forbidden in ("name", "input", "output", "max_batch_size", "backend", "platform"):
        if forbidden in extra:
            hint = "it is decided from the model and the entry's own keys"
            raise ManifestError(f"config may not set {forbidden!r}", where=where, hint=hint)
    addition = schema().ModelConfig()
    try:
        json_format.ParseDict(dict(extra), addition)
    except json_format.ParseError as error:
        raise ManifestError(f"config is not a ModelConfig: {error}", where=where) from None
    for field, _ in addition.ListFields():
        if field.is_repeated and not (field.message_type and field.message_type.GetOptions().map_entry):
            config.ClearField(field.name)  # a list replaces ours, it does not grow it
    config.MergeFrom(addition)


class RenderError(RepogenError):
    """A template rendered something else than what was meant."""
