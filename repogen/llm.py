"""Decide how a large language model is served by the vllm or tensorrtllm backend: configs only, no engine is built."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repogen.ensembles import PLACEHOLDER
from repogen.errors import ManifestError
from repogen.manifest import Manifest, ModelEntry
from repogen.model import ExtraFile, Instances, ServedModel, ServedTensor
from repogen.pipeline_schema import LlmEntry
from repogen.settings import config_fields

BACKENDS = ("vllm", "tensorrtllm")
Where = Callable[..., str]
_MAX_BATCH = 8
_BATCHING = {"inflight": "inflight_fused_batching", "static": "V1"}
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"  # where the release's image has it
_ENGINE_FOLDER = b"The engine lies where gpt_model_path says; Triton wants the version folder all the same.\n"
_FULL = 1.0


def _flag(name: str) -> ServedTensor:
    return ServedTensor(name, "TYPE_BOOL", (1,), labels=("",), optional=True)


def _scalar(name: str, dtype: str, *, optional: bool = True) -> ServedTensor:
    return ServedTensor(name, dtype, (1,), labels=("",), reshape=(), optional=optional)


def _list(name: str, dtype: str, dims: tuple[int, ...]) -> ServedTensor:
    labels = tuple(f"{name}.{axis}" if dim < 0 else "" for axis, dim in enumerate(dims))
    return ServedTensor(name, dtype, dims, labels=labels)


_VLLM_INPUTS = (
    ServedTensor("text_input", "TYPE_STRING", (1,), labels=("",)),
    _flag("stream"),
    ServedTensor("sampling_parameters", "TYPE_STRING", (1,), labels=("",), optional=True),
    _flag("exclude_input_in_output"),
)
_VLLM_OUTPUTS = (_list("text_output", "TYPE_STRING", (-1,)),)
_TRTLLM_INPUTS = (
    ServedTensor("input_ids", "TYPE_INT32", (-1,), labels=("input_ids.0",), ragged=True),
    _scalar("input_lengths", "TYPE_INT32", optional=False),
    ServedTensor("request_output_len", "TYPE_INT32", (1,), labels=("",)),
    *(_scalar(name, "TYPE_INT32") for name in ("end_id", "pad_id", "beam_width", "runtime_top_k", "min_length")),
    *(_scalar(name, "TYPE_FP32") for name in ("temperature", "runtime_top_p", "len_penalty", "repetition_penalty")),
    *(_scalar(name, "TYPE_FP32") for name in ("presence_penalty", "frequency_penalty")),
    _scalar("random_seed", "TYPE_UINT64"),
    _flag("stop"),
    _flag("streaming"),
)
_TRTLLM_OUTPUTS = (
    _list("output_ids", "TYPE_INT32", (-1, -1)),
    _list("sequence_length", "TYPE_INT32", (-1,)),
    _list("cum_log_probs", "TYPE_FP32", (-1,)),
    _list("output_log_probs", "TYPE_FP32", (-1, -1)),
)


def decide_llm(name: str, entry: ModelEntry, folder: Path, where: Where) -> ServedModel:
    """Return how a large language model is served. Raises ManifestError where it does not fit its GPUs.

    `source` is what the server is told: a folder there, or for vllm a model's public name. `folder` is the manifest's.
    """
    said = entry.llm or LlmEntry()
    _check_gpus(said, where)
    if entry.backend == "vllm":
        return _vllm(name, entry, said, where)
    _check_engine(folder / entry.source, entry, said, where)
    return _tensorrtllm(name, entry, said, where)


def _world(said: LlmEntry) -> int:
    return said.tensor_parallel * said.pipeline_parallel


def _gpus(said: LlmEntry) -> tuple[int, ...]:
    return said.gpus or tuple(range(_world(said) * said.replicas))


def _check_gpus(said: LlmEntry, where: Where) -> None:
    needed = _world(said) * said.replicas
    place = where("llm", "gpus")
    if len(set(said.gpus)) != len(said.gpus):
        raise ManifestError("a GPU is named twice", where=place, hint="each process has a GPU of its own")
    if said.gpus and len(said.gpus) != needed:
        parts = f"tensor_parallel {said.tensor_parallel} x pipeline_parallel {said.pipeline_parallel}"
        message = f"{len(said.gpus)} GPUs are named, and {parts} x replicas {said.replicas} takes {needed}"
        raise ManifestError(message, where=place, hint=f"name {needed}, or change the parts")


def _vllm(name: str, entry: ModelEntry, said: LlmEntry, where: Where) -> ServedModel:
    world = _world(said)
    if entry.max_batch_size:
        hint = "remove it; llm.max_sequences bounds the requests in flight"
        raise ManifestError("vLLM batches by itself", where=where("max_batch_size"), hint=hint)
    if world > 1 and said.replicas > 1:
        hint = "write one entry for each copy, each with its own gpus"
        message = f"an instance of {world} GPUs has the same GPUs as every other instance of its model"
        raise ManifestError(message, where=where("llm", "replicas"), hint=hint)
    if said.tokenizer or said.batching != "inflight":
        key = "tokenizer" if said.tokenizer else "batching"
        raise ManifestError("is of the tensorrtllm backend", where=where("llm", key), hint="remove it")
    engine: dict[str, Any] = {
        "model": entry.source,
        "tensor_parallel_size": said.tensor_parallel,
        "pipeline_parallel_size": said.pipeline_parallel,
        "gpu_memory_utilization": said.kv_cache_fraction,
        "dtype": said.dtype,
    }
    more = {"max_model_len": said.max_sequence, "max_num_seqs": said.max_sequences, "quantization": said.quantization}
    engine |= {key: value for key, value in more.items() if value is not None}
    pinned = {"GPU_DEVICE_IDS": ",".join(map(str, said.gpus))} if said.gpus and world > 1 else {}
    # One GPU each is Triton's to place; several are the engine's, which Triton calls KIND_MODEL.
    single = Instances("gpu", 1, _gpus(said))
    return _served(
        name,
        entry,
        where,
        inputs=_VLLM_INPUTS,
        outputs=_VLLM_OUTPUTS,
        instances=Instances("model", 1) if world > 1 else single,
        files=(ExtraFile(f"{entry.version}/model.json", f"{json.dumps(engine, indent=2)}\n".encode()),),
        parameters=pinned,
        decoupled=True,  # the backend loads in no other way
        max_batch_size=0,
        note=_placed(said),
    )


def _tensorrtllm(name: str, entry: ModelEntry, said: LlmEntry, where: Where) -> ServedModel:
    for key in ("dtype", "quantization", "max_sequence"):
        if getattr(said, key) != LlmEntry.model_fields[key].default:
            raise ManifestError("is built into the engine", where=where("llm", key), hint="remove it")
    world = _world(said)
    gpus = _gpus(said)
    groups = [gpus[start : start + world] for start in range(0, len(gpus), world)]
    max_batch = entry.max_batch_size or said.max_sequences or _MAX_BATCH
    parameters = {
        "gpt_model_type": _BATCHING[said.batching],
        "gpt_model_path": entry.source,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": f"{said.kv_cache_fraction:g}",
        "gpu_device_ids": ";".join(",".join(map(str, group)) for group in groups),
        "max_beam_width": "1",
        "exclude_input_in_output": "true",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": _WORKER,
    }
    parameters |= {"tokenizer_dir": said.tokenizer} if said.tokenizer else {}
    return _served(
        name,
        entry,
        where,
        inputs=_TRTLLM_INPUTS,
        outputs=_TRTLLM_OUTPUTS,
        instances=Instances("cpu", said.replicas),  # of the process that leads; the parameters place the GPUs
        files=(ExtraFile(f"{entry.version}/{PLACEHOLDER}", _ENGINE_FOLDER),),
        parameters=parameters,
        decoupled=said.streaming,
        max_batch_size=max_batch,
        note=_placed(said),
    )


def _served(
    name: str,
    entry: ModelEntry,
    where: Where,
    *,
    inputs: tuple[ServedTensor, ...],
    outputs: tuple[ServedTensor, ...],
    instances: Instances,
    files: tuple[ExtraFile, ...],
    parameters: Mapping[str, str],
    decoupled: bool,
    max_batch_size: int,
    note: str,
) -> ServedModel:
    config = config_fields(entry, backend=str(entry.backend), max_batch_size=max_batch_size, where=where)
    return ServedModel(
        name=name,
        backend=str(entry.backend),
        source=entry.source,
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=outputs,
        instances=(instances,),
        dynamic_batching=None,
        files=(),
        extra_files=files,
        version=entry.version,
        keep_versions=entry.keep_versions,
        parameters={**parameters, **entry.parameters},
        config={"model_transaction_policy": {"decoupled": decoupled}, **config},
        notes=(note, "not tried: no GPU of this kind is at hand when a repository is written"),
    )


def _placed(said: LlmEntry) -> str:
    world = _world(said)
    what = f"{world} GPUs work as one" if world > 1 else "one GPU"
    copies = f", {said.replicas} times" if said.replicas > 1 else ""
    named = f": {', '.join(map(str, said.gpus))}" if said.gpus else ""
    return f"{what}{copies}{named}; {said.kv_cache_fraction:.0%} of their memory"


def _check_engine(engine: Path, entry: ModelEntry, said: LlmEntry, where: Where) -> None:
    """Compare an engine's own description with the entry, where its folder is at hand."""
    described = engine / "config.json"
    if not described.is_file():
        return
    try:
        facts = json.loads(described.read_text())
        mapping = facts["pretrained_config"]["mapping"]
        built = {"tensor_parallel": int(mapping["tp_size"]), "pipeline_parallel": int(mapping["pp_size"])}
        largest = int(facts["build_config"]["max_batch_size"])
    except (ValueError, KeyError, TypeError) as error:
        hint = "point source at the folder that trtllm-build wrote"
        raise ManifestError(
            f"{described} does not describe an engine: {error!r}", where=where("source"), hint=hint
        ) from None
    for key, value in built.items():
        if getattr(said, key) != value:
            message = f"the engine was built for {value}, the manifest says {getattr(said, key)}"
            raise ManifestError(message, where=where("llm", key), hint=f"write {value}, or build it again")
    if entry.max_batch_size and entry.max_batch_size > largest:
        message = f"{entry.max_batch_size} is asked, but the engine was built for {largest}"
        raise ManifestError(message, where=where("max_batch_size"), hint=f"write {largest}, or build it again")


def refuse_crowded(manifest: Manifest) -> None:
    """Raise ManifestError where large models name one GPU and together take more of it than there is."""
    taken: dict[int, list[tuple[str, float]]] = {}
    for name, entry in manifest.models.items():
        said = (entry.llm or LlmEntry()) if entry.backend in BACKENDS else None
        for gpu in set(_gpus(said)) if said else ():
            taken.setdefault(gpu, []).append((name, said.kv_cache_fraction if said else 0.0))
    for gpu, rows in taken.items():
        total = sum(share for _, share in rows)
        if len(rows) > 1 and total > _FULL:
            named = " and ".join(f"{name} {share:.0%}" for name, share in rows)
            where = manifest.where("models", rows[-1][0], "llm", "gpus")
            hint = "give them other gpus, or smaller kv_cache_fraction"
            raise ManifestError(f"GPU {gpu} is promised to {named}", where=where, hint=hint)
