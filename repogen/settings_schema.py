"""The manifest's typed settings of Triton's scheduler, instances, warm-up and optimisation."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from repogen.units import microseconds, size_bytes

Size = Annotated[int, BeforeValidator(size_bytes), Field(json_schema_extra={"examples": ["8GiB", "512MiB"]})]
Duration = Annotated[int, BeforeValidator(microseconds), Field(json_schema_extra={"examples": ["2ms", "500us"]})]


class Strict(BaseModel):
    """A mapping that refuses keys it does not know, and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class QueuePolicyEntry(Strict):
    """What happens to requests that wait: any of it turns Triton's prefetching of batches off."""

    timeout: Duration | None = Field(None, description="longest wait in the queue")
    timeout_action: Literal["reject", "delay"] = Field("reject", description="delay: served after all others")
    allow_timeout_override: bool = Field(False, description="a request may ask for a shorter timeout")
    max_queue_size: NonNegativeInt = Field(0, description="requests beyond it are refused; 0: no bound")


class DynamicBatchingEntry(Strict):
    """Triton's dynamic batcher."""

    max_queue_delay: Duration = Field(0, description="how long a request may wait for others")
    preferred_batch_size: tuple[PositiveInt, ...] = Field((), description="sizes to send at once when reached")
    preserve_ordering: bool = Field(False, description="answers in the order of their requests")
    priority_levels: NonNegativeInt = Field(0, description="1 is the most urgent; 0: no priorities")
    default_priority_level: NonNegativeInt = Field(0, description="of requests that name none")
    queue_policy: QueuePolicyEntry | None = None
    priority_queue_policy: dict[PositiveInt, QueuePolicyEntry] = Field({}, description="by priority level")

    @model_validator(mode="after")
    def _priorities(self) -> "DynamicBatchingEntry":
        levels, default = self.priority_levels, self.default_priority_level
        if levels and not 1 <= default <= levels:
            raise ValueError(f"default_priority_level must be from 1 to priority_levels {levels}, not {default}")
        outside = [level for level in self.priority_queue_policy if level > levels]
        if outside:
            raise ValueError(f"priority_queue_policy {outside[0]} is above priority_levels {levels}")
        if self.preserve_ordering and levels > 1:
            raise ValueError("preserve_ordering allows one priority level only")
        policies = [*self.priority_queue_policy.values(), *([self.queue_policy] if self.queue_policy else [])]
        if self.preserve_ordering and any(p.timeout_action == "delay" and p.timeout for p in policies):
            raise ValueError("preserve_ordering does not go with timeout_action: delay")
        return self


class ControlEntry(Strict):
    """An input by which Triton tells a model about its sequence; `false_true` of start, end and ready."""

    kind: Literal["start", "end", "ready", "corrid"]
    dtype: Literal["INT32", "FP32", "BOOL", "UINT64", "INT64", "UINT32", "STRING"]
    false_true: tuple[float, float] = (0, 1)

    @model_validator(mode="after")
    def _types(self) -> "ControlEntry":
        known = ("UINT64", "INT64", "UINT32", "INT32", "STRING") if self.kind == "corrid" else ("INT32", "FP32", "BOOL")
        if self.dtype not in known:
            raise ValueError(f"a {self.kind} control has one of the types {', '.join(known)}, not {self.dtype}")
        return self


class StateEntry(Strict):
    """A tensor that Triton keeps between the requests of a sequence, all zero at its start."""

    input: str
    output: str
    dtype: str
    dims: tuple[int, ...]


class SequenceBatchingEntry(Strict):
    """Triton's sequence batcher: all requests of a sequence go to one instance."""

    strategy: Literal["direct", "oldest"] = "direct"
    max_sequence_idle: Duration = Field(1_000_000, description="a sequence that is silent longer is forgotten")
    max_queue_delay: Duration = 0
    max_candidate_sequences: PositiveInt | None = Field(None, description="oldest: sequences served at a time")
    preferred_batch_size: tuple[PositiveInt, ...] = ()
    controls: dict[str, ControlEntry] = Field({}, description="by input name")
    states: tuple[StateEntry, ...] = ()


class RateLimitEntry(Strict):
    """What an execution holds while it runs; only with the server's --rate-limit=execution_count."""

    resources: dict[str, PositiveInt] = Field({})
    priority: NonNegativeInt = 0


class InstancesEntry(Strict):
    """One instance group."""

    kind: Literal["cpu", "gpu", "auto", "model"] | None = None
    count: PositiveInt = Field(1, description="executions side by side; on GPUs, on each of them")
    gpus: tuple[NonNegativeInt, ...] = ()
    profile: tuple[NonNegativeInt, ...] = Field((), description="TensorRT optimisation profiles")
    host_policy: str | None = None
    passive: bool = False
    rate_limiter: RateLimitEntry | None = None

    @model_validator(mode="after")
    def _gpus(self) -> "InstancesEntry":
        if self.gpus and self.kind in ("cpu", "model"):
            raise ValueError(f"gpus do not go with kind: {self.kind}")
        return self


class AcceleratorEntry(Strict):
    """An execution accelerator of the ONNX Runtime backend."""

    name: Literal["tensorrt", "cuda", "openvino"]
    parameters: dict[str, str | int | bool] = Field({})


class OptimizationEntry(Strict):
    """How a backend runs the model."""

    cuda_graphs: bool = Field(False, description="TensorRT plans: replay recorded launches")
    busy_wait_events: bool = False
    output_copy_stream: bool = False
    accelerators: tuple[AcceleratorEntry, ...] = ()
    priority: Literal["default", "max", "min"] = "default"
    gather_kernel_buffer_threshold: NonNegativeInt | None = None
    eager_batching: bool | None = None
    graph_level: int | None = Field(None, description="ONNX Runtime: 1 basic, 2 extended, -1 none")


class VersionsEntry(Strict):
    """Which versions of a model's folder are served."""

    latest: PositiveInt | None = None
    specific: tuple[PositiveInt, ...] = ()
    all: bool = False

    @model_validator(mode="after")
    def _one(self) -> "VersionsEntry":
        if sum((self.latest is not None, bool(self.specific), self.all)) != 1:
            raise ValueError("say one of latest: N, specific: [N, …] or all: true")
        return self


class MetricEntry(Strict):
    """The buckets of one of Triton's histograms for this model."""

    family: str
    buckets: Annotated[tuple[float, ...], Field(min_length=1)]


class SpanEntry(Strict):
    """The sizes of one axis in one optimisation profile."""

    min: PositiveInt
    opt: PositiveInt
    max: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> "SpanEntry":
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min, opt and max must ascend, not {self.min}, {self.opt}, {self.max}")
        return self


class ValuesEntry(Strict):
    """The values of an input that says how large something is to be."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    @model_validator(mode="after")
    def _ordered(self) -> "ValuesEntry":
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError("min, opt and max must have the same number of values")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError("min, opt and max must ascend, value by value")
        return self


class ProfileEntry(Strict):
    """One optimisation profile: what it says nothing of is as `shapes` and `max_batch_size` say."""

    batch: SpanEntry | None = Field(None, description="by default from 1 to max_batch_size")
    shapes: dict[str, SpanEntry] = Field({}, description="by the axis's symbol, or tensor.axis")
    values: dict[str, ValuesEntry] = Field({}, description="of inputs whose values are sizes")


class BuildEntry(Strict):
    """How a TensorRT plan is built; none of it concerns other backends."""

    workspace: Size | None = Field(None, description="scratch memory that a layer may take; by default all there is")
    builder: Literal["local", "docker"] = Field("local", description="docker: in the release's own TensorRT image")
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = Field(None, description="0 fast build, 5 fast plan")
    tf32: bool = Field(True, description="FP32 products in TensorFloat-32: 10 bits of mantissa, much faster")
    version_compatible: bool = Field(False, description="later TensorRT may load it; the server needs a flag")
    hardware_compatible: Literal["ampere_plus", "same_compute_capability"] | None = None
    plugins: tuple[str, ...] = Field((), description="shared libraries with operators; the server needs them too")
    profiles: tuple[ProfileEntry, ...] = ()
    timeout: Duration = Field(3_600_000_000, description="longest time that the build may take")
