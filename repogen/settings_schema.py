"""The manifest's typed settings of Triton's scheduler, instances, warm-up and optimisation."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from repogen.units import microseconds, size_bytes

Size = Annotated[
    int, BeforeValidator(size_bytes), Field(json_schema_extra={"type": "string", "examples": ["8GiB", "512MiB"]})
]
Duration = Annotated[
    int, BeforeValidator(microseconds), Field(json_schema_extra={"type": "string", "examples": ["2ms", "500us"]})
]


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
    queue_policy: QueuePolicyEntry | None = Field(None, description="of requests without a policy of their own")
    priority_queue_policy: dict[PositiveInt, QueuePolicyEntry] = Field(
        {}, description="by priority level", examples=[{1: {"timeout": "50ms"}}]
    )

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

    kind: Literal["start", "end", "ready", "corrid"] = Field(
        description="what Triton tells: a sequence's first request, its last, whether the slot is in use, its number"
    )
    dtype: Literal["INT32", "FP32", "BOOL", "UINT64", "INT64", "UINT32", "STRING"] = Field(
        description="of the input; the last four are for corrid"
    )
    false_true: tuple[float, float] = Field((0, 1), description="the values that mean no and yes")

    @model_validator(mode="after")
    def _types(self) -> "ControlEntry":
        known = ("UINT64", "INT64", "UINT32", "INT32", "STRING") if self.kind == "corrid" else ("INT32", "FP32", "BOOL")
        if self.dtype not in known:
            raise ValueError(f"a {self.kind} control has one of the types {', '.join(known)}, not {self.dtype}")
        return self


class StateEntry(Strict):
    """A tensor that Triton keeps between the requests of a sequence, all zero at its start."""

    input: str = Field(description="the model's input that gets the state")
    output: str = Field(description="its output that becomes the next state")
    dtype: str = Field(description="Triton's name of the type, such as FP32")
    dims: tuple[int, ...] = Field(description="without the batch axis")


class SequenceBatchingEntry(Strict):
    """Triton's sequence batcher: all requests of a sequence go to one instance."""

    strategy: Literal["direct", "oldest"] = Field(
        "direct", description="direct: a batch slot for each sequence; oldest: the dynamic batcher, oldest first"
    )
    max_sequence_idle: Duration = Field(1_000_000, description="a sequence that is silent longer is forgotten")
    max_queue_delay: Duration = Field(0, description="how long a request may wait for others")
    max_candidate_sequences: PositiveInt | None = Field(None, description="oldest: sequences served at a time")
    preferred_batch_size: tuple[PositiveInt, ...] = Field((), description="oldest: sizes to send at once when reached")
    controls: dict[str, ControlEntry] = Field(
        {}, description="by input name", examples=[{"START": {"kind": "start", "dtype": "BOOL"}}]
    )
    states: tuple[StateEntry, ...] = Field((), description="what Triton keeps for the model")


class RateLimitEntry(Strict):
    """What an execution holds while it runs; only with the server's --rate-limit=execution_count."""

    resources: dict[str, PositiveInt] = Field({}, description="of each, by name, how many", examples=[{"R1": 4}])
    priority: NonNegativeInt = Field(0, description="an instance of priority 2 gets half as many turns as one of 1")


class InstancesEntry(Strict):
    """One instance group."""

    kind: Literal["cpu", "gpu", "auto", "model"] | None = Field(
        None, description="where it runs; by default gpu, for python cpu; auto: Triton decides"
    )
    count: PositiveInt = Field(1, description="executions side by side; on GPUs, on each of them")
    gpus: tuple[NonNegativeInt, ...] = Field((), description="by default every GPU there is", examples=[[0, 1]])
    profile: tuple[NonNegativeInt, ...] = Field((), description="TensorRT optimisation profiles")
    host_policy: str | None = Field(None, description="one of the server's --host-policy, for NUMA nodes and cores")
    passive: bool = Field(False, description="loaded, but given no requests")
    rate_limiter: RateLimitEntry | None = Field(None, description="what an execution holds while it runs")

    @model_validator(mode="after")
    def _gpus(self) -> "InstancesEntry":
        if self.gpus and self.kind in ("cpu", "model"):
            raise ValueError(f"gpus do not go with kind: {self.kind}")
        return self


class AcceleratorEntry(Strict):
    """An execution accelerator of the ONNX Runtime backend."""

    name: Literal["tensorrt", "cuda", "openvino"] = Field(description="ONNX Runtime's execution provider")
    parameters: dict[str, str | int | bool] = Field(
        {}, description="as that accelerator knows them", examples=[{"precision_mode": "FP16"}]
    )


class OptimizationEntry(Strict):
    """How a backend runs the model."""

    cuda_graphs: bool = Field(False, description="TensorRT plans: replay recorded launches")
    busy_wait_events: bool = Field(False, description="TensorRT plans: spin for the GPU: less latency, a busy core")
    output_copy_stream: bool = Field(False, description="TensorRT plans: answers are copied on a stream of their own")
    accelerators: tuple[AcceleratorEntry, ...] = Field((), description="of ONNX Runtime; they need a GPU, or OpenVINO")
    priority: Literal["default", "max", "min"] = Field(
        "default", description="of the model's work on the GPU against that of others"
    )
    gather_kernel_buffer_threshold: NonNegativeInt | None = Field(
        None, description="inputs in at least so many buffers are gathered by one kernel; 0: never"
    )
    eager_batching: bool | None = Field(None, description="TensorRT plans: prepare the next batch while one runs")
    graph_level: int | None = Field(None, description="ONNX Runtime: 1 basic, 2 extended, -1 none")


class VersionsEntry(Strict):
    """Which versions of a model's folder are served."""

    latest: PositiveInt | None = Field(None, description="so many of the highest")
    specific: tuple[PositiveInt, ...] = Field((), description="these", examples=[[1, 3]])
    all: bool = Field(False, description="every one there is")

    @model_validator(mode="after")
    def _one(self) -> "VersionsEntry":
        if sum((self.latest is not None, bool(self.specific), self.all)) != 1:
            raise ValueError("say one of latest: N, specific: [N, …] or all: true")
        return self


class MetricEntry(Strict):
    """The buckets of one of Triton's histograms for this model."""

    family: str = Field(description="the metric's name, such as nv_inference_first_response_histogram_ms")
    buckets: Annotated[tuple[float, ...], Field(min_length=1)] = Field(
        description="upper bounds, ascending", examples=[[10, 50, 100, 500]]
    )


class SpanEntry(Strict):
    """The sizes of one axis in one optimisation profile."""

    min: PositiveInt = Field(description="the smallest that must work")
    opt: PositiveInt = Field(description="the usual one, for which TensorRT chooses its kernels")
    max: PositiveInt = Field(description="the largest that must work")

    @model_validator(mode="after")
    def _ordered(self) -> "SpanEntry":
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min, opt and max must ascend, not {self.min}, {self.opt}, {self.max}")
        return self


class ValuesEntry(Strict):
    """The values of an input that says how large something is to be."""

    min: tuple[int, ...] = Field(description="the smallest that must work")
    opt: tuple[int, ...] = Field(description="the usual one, for which TensorRT chooses its kernels")
    max: tuple[int, ...] = Field(description="the largest that must work")

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
    values: dict[str, ValuesEntry] = Field({}, description="by the name of an input whose values are sizes")


class BuildEntry(Strict):
    """How a TensorRT plan is built; none of it concerns other backends."""

    workspace: Size | None = Field(None, description="scratch memory that a layer may take; by default all there is")
    builder: Literal["local", "docker"] = Field("local", description="docker: in the release's own TensorRT image")
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = Field(None, description="0 fast build, 5 fast plan")
    tf32: bool = Field(True, description="FP32 products in TensorFloat-32: 10 bits of mantissa, much faster")
    version_compatible: bool = Field(False, description="later TensorRT may load it; the server needs a flag")
    hardware_compatible: Literal["ampere_plus", "same_compute_capability"] | None = Field(
        None, description="runs on other GPUs too, and slower; by default on the kind that built it"
    )
    plugins: tuple[str, ...] = Field((), description="shared libraries with operators; the server needs them too")
    profiles: tuple[ProfileEntry, ...] = Field(
        (),
        description="optimisation profiles; by default one, of `shapes` and `max_batch_size`",
        examples=[[{"batch": {"min": 1, "opt": 1, "max": 1}}, {"batch": {"min": 2, "opt": 8, "max": 32}}]],
    )
    timeout: Duration = Field(3_600_000_000, description="longest time that the build may take")
