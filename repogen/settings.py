"""The typed settings of a manifest entry as fields of ModelConfig, in protobuf's JSON form. Pure."""

from collections.abc import Callable
from typing import Any

from repogen.backends_data import CPU_ACCELERATORS, TENSORRT_ACCELERATOR_KEYS
from repogen.dtypes import BY_TRITON, BY_WIRE
from repogen.errors import ManifestError
from repogen.manifest import ModelEntry
from repogen.settings_schema import (
    AcceleratorEntry,
    ControlEntry,
    DynamicBatchingEntry,
    InstancesEntry,
    OptimizationEntry,
    QueuePolicyEntry,
    SequenceBatchingEntry,
    VersionsEntry,
)

Fields = dict[str, Any]
_PRIORITY = {"default": "PRIORITY_DEFAULT", "max": "PRIORITY_MAX", "min": "PRIORITY_MIN"}
_CONTROL = {
    "start": "CONTROL_SEQUENCE_START",
    "end": "CONTROL_SEQUENCE_END",
    "ready": "CONTROL_SEQUENCE_READY",
    "corrid": "CONTROL_SEQUENCE_CORRID",
}


def config_fields(entry: ModelEntry, *, backend: str, max_batch_size: int, where: Callable[..., str]) -> Fields:
    """Return the ModelConfig fields that the entry's typed settings and its free `config` say together.

    What name, tensors, instances' kinds and the batcher's delay say is not among them: they are ServedModel's
    own. `config` wins where both say something. Raises ManifestError.
    """
    fields: Fields = {}
    if isinstance(entry.dynamic_batching, DynamicBatchingEntry) and max_batch_size:
        _put(fields, "dynamic_batching", _dynamic_batching(entry.dynamic_batching))
    if entry.sequence_batching is not None:
        fields["sequence_batching"] = _sequences(entry, entry.sequence_batching, max_batch_size, where)
    if entry.versions is not None:
        fields["version_policy"] = _version_policy(entry.versions, entry.version, where)
    _put(fields, "response_cache", _response_cache(entry, where))
    _put(fields, "model_transaction_policy", _transaction_policy(entry, backend, where))
    if entry.optimization is not None:
        _put(fields, "optimization", _optimization(entry.optimization, backend, where))
    _put(fields, "model_metrics", _metrics(entry))
    return merged(fields, entry.config)


def instance_fields(groups: tuple[InstancesEntry, ...], backend: str, where: Callable[..., str]) -> list[Fields]:
    """Return what instance groups say beyond kind, count and GPUs; one mapping a group, {} where nothing."""
    found: list[Fields] = []
    for index, group in enumerate(groups):
        if group.profile and backend != "tensorrt":
            message = "optimisation profiles exist in TensorRT plans only"
            raise ManifestError(message, where=where("instances", index, "profile"))
        fields: Fields = {}
        _put(fields, "profile", [str(number) for number in group.profile])
        _put(fields, "host_policy", group.host_policy)
        _put(fields, "passive", group.passive)
        if group.rate_limiter is not None:
            resources = [{"name": name, "count": count} for name, count in group.rate_limiter.resources.items()]
            fields["rate_limiter"] = {"resources": resources, "priority": group.rate_limiter.priority}
        found.append(fields)
    return found


def merged(base: Fields, over: Fields) -> Fields:
    """Return `over` laid over `base`, mapping by mapping; lists are replaced."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def triton_type(text: str, where: str) -> str:
    """Return Triton's name of a data type written as `FP32`, `TYPE_FP32` or `BYTES`."""
    for candidate in (text, f"TYPE_{text}", BY_WIRE[text].triton if text in BY_WIRE else ""):
        if candidate in BY_TRITON:
            return candidate
    known = ", ".join(name.removeprefix("TYPE_") for name in BY_TRITON)
    raise ManifestError(f"{text!r} is not a data type of Triton", where=where, hint=known)


def _sequences(
    entry: ModelEntry, said: SequenceBatchingEntry, max_batch_size: int, where: Callable[..., str]
) -> Fields:
    if entry.dynamic_batching:
        hint = "a model has one scheduler: remove one of them"
        message = "sequence_batching and dynamic_batching are both said"
        raise ManifestError(message, where=where("sequence_batching"), hint=hint)
    return _sequence_batching(said, max_batch_size, where)


def _response_cache(entry: ModelEntry, where: Callable[..., str]) -> Fields:
    if entry.response_cache and (entry.decoupled or entry.sequence_batching is not None):
        other = "decoupled" if entry.decoupled else "sequence_batching"
        raise ManifestError(f"does not go with {other}", where=where("response_cache"))
    return {"enable": True} if entry.response_cache else {}


def _transaction_policy(entry: ModelEntry, backend: str, where: Callable[..., str]) -> Fields:
    if entry.decoupled and backend != "python":
        raise ManifestError(f"the {backend} backend answers each request once", where=where("decoupled"))
    return {"decoupled": True} if entry.decoupled else {}


def _metrics(entry: ModelEntry) -> Fields:
    rows = [
        {"metric_identifier": {"family": row.family}, "histogram_options": {"buckets": list(row.buckets)}}
        for row in entry.metrics
    ]
    return {"metric_control": rows} if rows else {}


def _dynamic_batching(said: DynamicBatchingEntry) -> Fields:
    fields: Fields = {}
    _put(fields, "preserve_ordering", said.preserve_ordering)
    _put(fields, "priority_levels", said.priority_levels)
    _put(fields, "default_priority_level", said.default_priority_level)
    if said.queue_policy is not None:
        fields["default_queue_policy"] = _queue_policy(said.queue_policy)
    policies = {str(level): _queue_policy(policy) for level, policy in said.priority_queue_policy.items()}
    _put(fields, "priority_queue_policy", policies)
    return fields


def _queue_policy(said: QueuePolicyEntry) -> Fields:
    return {
        "timeout_action": said.timeout_action.upper(),
        "default_timeout_microseconds": said.timeout or 0,
        "allow_timeout_override": said.allow_timeout_override,
        "max_queue_size": said.max_queue_size,
    }


def _sequence_batching(said: SequenceBatchingEntry, max_batch_size: int, where: Callable[..., str]) -> Fields:
    too_large = [size for size in said.preferred_batch_size if size > max_batch_size]
    if too_large:
        message = f"{too_large[0]} is larger than max_batch_size {max_batch_size}"
        raise ManifestError(message, where=where("sequence_batching", "preferred_batch_size"))
    strategy: Fields = {"max_queue_delay_microseconds": said.max_queue_delay}
    if said.strategy == "oldest":
        _put(strategy, "max_candidate_sequences", said.max_candidate_sequences)
        _put(strategy, "preferred_batch_size", list(said.preferred_batch_size))
    elif said.preferred_batch_size or said.max_candidate_sequences:
        hint = "they belong to strategy: oldest"
        message = "preferred_batch_size and max_candidate_sequences mean nothing to strategy: direct"
        raise ManifestError(message, where=where("sequence_batching"), hint=hint)
    states = [
        {
            "input_name": state.input,
            "output_name": state.output,
            "data_type": triton_type(state.dtype, where("sequence_batching", "states", index)),
            "dims": list(state.dims),
            "initial_state": [
                {
                    "name": "zero",
                    "data_type": triton_type(state.dtype, where("sequence_batching", "states", index)),
                    "dims": [1 if dim < 0 else dim for dim in state.dims],
                    "zero_data": True,
                }
            ],
        }
        for index, state in enumerate(said.states)
    ]
    fields: Fields = {"max_sequence_idle_microseconds": said.max_sequence_idle, said.strategy: strategy}
    _put(fields, "control_input", [_control(name, control) for name, control in said.controls.items()])
    _put(fields, "state", states)
    return fields


def _control(name: str, said: ControlEntry) -> Fields:
    control: Fields = {"kind": _CONTROL[said.kind]}
    if said.kind == "corrid":
        control["data_type"] = f"TYPE_{said.dtype}"
    else:
        key = {"INT32": "int32_false_true", "FP32": "fp32_false_true", "BOOL": "bool_false_true"}[said.dtype]
        cast = {"INT32": int, "FP32": float, "BOOL": bool}[said.dtype]
        control[key] = [cast(value) for value in said.false_true]
    return {"name": name, "control": [control]}


def _version_policy(said: VersionsEntry, version: int, where: Callable[..., str]) -> Fields:
    if said.specific:
        if version not in said.specific:
            message = f"version {version} is published but not among those served, {list(said.specific)}"
            raise ManifestError(message, where=where("versions", "specific"))
        return {"specific": {"versions": list(said.specific)}}
    return {"all": {}} if said.all else {"latest": {"num_versions": said.latest}}


def _optimization(said: OptimizationEntry, backend: str, where: Callable[..., str]) -> Fields:
    if said.cuda_graphs and backend != "tensorrt":
        hint = "for ONNX Runtime use accelerators: [{name: tensorrt, parameters: {trt_cuda_graph_enable: true}}]"
        raise ManifestError("CUDA graphs are of TensorRT plans", where=where("optimization", "cuda_graphs"), hint=hint)
    if said.accelerators and backend != "onnxruntime":
        message = f"execution accelerators are of the onnxruntime backend, not of {backend}"
        raise ManifestError(message, where=where("optimization", "accelerators"))
    fields: Fields = {}
    cuda: Fields = {}
    _put(cuda, "graphs", said.cuda_graphs)
    _put(cuda, "busy_wait_events", said.busy_wait_events)
    _put(cuda, "output_copy_stream", said.output_copy_stream)
    _put(fields, "cuda", cuda)
    accelerators: Fields = {}
    for index, entry in enumerate(said.accelerators):
        key = "cpu_execution_accelerator" if entry.name in CPU_ACCELERATORS else "gpu_execution_accelerator"
        accelerators.setdefault(key, []).append(_accelerator(entry, where("optimization", "accelerators", index)))
    _put(fields, "execution_accelerators", accelerators)
    _put(fields, "priority", _PRIORITY[said.priority] if said.priority != "default" else None)
    _put(fields, "gather_kernel_buffer_threshold", said.gather_kernel_buffer_threshold)
    _put(fields, "eager_batching", said.eager_batching)
    _put(fields, "graph", {"level": said.graph_level} if said.graph_level is not None else None)
    return fields


def _accelerator(said: AcceleratorEntry, where: str) -> Fields:
    if said.name == "tensorrt":
        for key in said.parameters:
            if key not in TENSORRT_ACCELERATOR_KEYS:
                hint = f"known: {', '.join(sorted(TENSORRT_ACCELERATOR_KEYS))}"
                raise ManifestError(f"the TensorRT accelerator has no parameter {key!r}", where=where, hint=hint)
    parameters = {key: _text(value) for key, value in said.parameters.items()}
    return {"name": said.name, **({"parameters": parameters} if parameters else {})}


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _put(fields: Fields, key: str, value: Any) -> None:
    """Set a field that says something: None, False, 0 and empty lists are protobuf's own defaults."""
    if value:
        fields[key] = value
