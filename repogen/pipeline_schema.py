"""What the manifest says of ensembles, of Python steps and of large language models, and which keys go with which."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, StringConstraints

from repogen.settings_schema import Strict

Problem = tuple[tuple[str, ...], str, str]
"""The key of a model's entry, what is wrong with it, and what to do."""

# What a backend without a graph of its own has no use for, and where it belongs instead.
_OF_MEMBERS = "it belongs to the models that the ensemble calls"
_OF_GRAPHS = "it is decided from an ONNX graph"
_GRAPH = (
    *("shapes", "precision", "precision_options", "calibration", "accuracy", "gpu", "workspace", "builder", "tf32"),
    *("optimization_level", "version_compatible", "hardware_compatible", "plugins", "profiles", "timeout"),
)
_MEMBER = ("dynamic_batching", "sequence_batching", "instances", "optimization", "warmup", "decoupled")
_LLM_DECIDES = (*_MEMBER, "inputs", "outputs", "response_cache")
_NOT_OF: Mapping[str, Mapping[str, str]] = {
    "ensemble": {
        **dict.fromkeys(_GRAPH, _OF_GRAPHS),
        **dict.fromkeys(_MEMBER, _OF_MEMBERS),
        "source": "an ensemble is made of its steps",
        "sha256": "an ensemble has no file",
    },
    **{
        backend: {
            **dict.fromkeys(_GRAPH, _OF_GRAPHS),
            **dict.fromkeys(_LLM_DECIDES, f"the {backend} backend has its own: see `llm:`"),
            "samples": _OF_GRAPHS,
            "sha256": "an engine is a folder",
            "tune": "the engine batches by itself",
        }
        for backend in ("vllm", "tensorrtllm")
    },
}
_ONLY_OF = {"steps": ("ensemble",), "files": ("python",), "requirements": ("python",), "llm": ("vllm", "tensorrtllm")}


def _as_file(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class StepEntry(Strict):
    """One call of an ensemble: the model's tensors by their names, each with the name that it has in the ensemble."""

    model: str = Field(description="of this manifest")
    inputs: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="name at the model: name in the ensemble", examples=[{"input_ids": "ids"}]
    )
    outputs: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="the same of what it answers", examples=[{"last_hidden_state": "hidden"}]
    )
    version: PositiveInt | None = Field(None, description="by default the newest that is served")


class _File(Strict):
    """A file beside a Python model's code: a vocabulary, labels, a module that it imports."""

    source: str = Field(description="a path or a URL")
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="enforced when given; required of modules with pinned_code"
    )


FileEntry = Annotated[_File, BeforeValidator(_as_file)]


class LlmEntry(Strict):
    """A large language model: where it is, how it is cut over GPUs, and what of their memory it takes."""

    tensor_parallel: PositiveInt = Field(1, description="GPUs that share each layer")
    pipeline_parallel: PositiveInt = Field(1, description="groups of GPUs that share the layers")
    replicas: PositiveInt = Field(1, description="copies of the model, each on GPUs of its own")
    gpus: tuple[NonNegativeInt, ...] = Field((), description="which GPUs; by default the first ones")
    kv_cache_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9, description="vllm: of a GPU's memory, weights included; tensorrtllm: of what the weights leave"
    )
    max_sequence: PositiveInt | None = Field(None, description="tokens of prompt and answer together")
    max_sequences: PositiveInt | None = Field(None, description="requests in flight")
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field("auto", description="vllm: what it computes in")
    quantization: str | None = Field(None, description="vllm: its name of the method, such as awq")
    streaming: bool = Field(True, description="an answer comes in parts")
    batching: Literal["inflight", "static"] = Field("inflight", description="tensorrtllm")
    tokenizer: str | None = Field(None, description="tensorrtllm: its folder, where a step of yours needs it")


def fits(key: str, backend: str | None) -> bool:
    """Return whether a default means anything to a model of this backend."""
    return key not in _NOT_OF.get(backend or "", {})


def unfit(written: Mapping[str, Any], backend: str | None) -> Problem | None:
    """Return what is wrong with the keys of a model's entry, given its backend."""
    refused = _NOT_OF.get(backend or "", {})
    for key in written:
        if key in refused:
            return (key,), f"does not go with backend: {backend}", refused[key]
        owners = _ONLY_OF.get(key)
        python = key in ("files", "requirements") and backend is None and str(written.get("source", "")).endswith(".py")
        if owners and backend not in owners and not python:
            return (key,), f"goes with backend: {' or '.join(owners)}", "remove it, or say that backend"
    if backend == "ensemble" and not written.get("steps"):
        hint = "write `steps: [{model: …, inputs: {…}, outputs: {…}}]`"
        return (), "an ensemble needs its steps", hint
    if backend != "ensemble" and not written.get("source"):
        return (), "'source' is missing", "name the file, or the engine's folder"
    return None
