"""The values that cross module borders: what a graph is, what was proved of it, what will be served."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Dims = tuple[int | str, ...]
"""Axes of a tensor in its graph: a literal size, or the label of a free axis (its symbol, or `tensor.axis`)."""


@dataclass(frozen=True)
class Tensor:
    """An input or output as its ONNX graph has it, batch axis included.

    `dtype` is Triton's name. `dims` is () for a scalar and None where the graph gives no rank.
    """

    name: str
    dtype: str
    dims: Dims | None


@dataclass(frozen=True)
class ExternalFile:
    """A weights file that an ONNX file refers to, by its path relative to that file."""

    name: str
    size: int


@dataclass(frozen=True)
class CustomOperator:
    """An operator that ONNX Runtime does not bring along, and how often the graph uses it."""

    domain: str
    op: str
    count: int


@dataclass(frozen=True)
class InputHint:
    """What is known of one input's values: a few of them, a range [low, high), or a file of samples.

    `why` says where the knowledge comes from, for people; "" when the manifest says it.
    """

    values: tuple[float | int | str | bool, ...] = ()
    range: tuple[float, float] | None = None
    file: Path | None = None  # an .npz that holds samples of this input along axis 0
    why: str = ""
    single: bool = False  # each sample of the file is a whole request of a model that does not batch


@dataclass(frozen=True)
class Graph:
    """What an ONNX file says of itself, read without running it.

    `inputs` are those that a request must carry. An initializer that is also listed as an input is in
    `defaults`: ONNX Runtime has its value and Triton does not ask for it.
    """

    path: Path
    size: int
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: Mapping[str, int]  # those in subgraphs and functions included
    external: tuple[ExternalFile, ...] = ()
    defaults: tuple[Tensor, ...] = ()
    unused: tuple[str, ...] = ()  # inputs that no node reads
    subgraphs: int = 0  # bodies of If, Loop and Scan
    custom: tuple[CustomOperator, ...] = ()
    data_dependent: tuple[str, ...] = ()  # operators whose output's size depends on values, as "NonZero 'name'"
    shape_inputs: Mapping[str, str] = field(default_factory=dict)  # inputs whose values become shapes: by what
    random: tuple[str, ...] = ()  # operators that answer differently each time
    beyond_fp16: tuple[tuple[str, float], ...] = ()  # constants that FP16 cannot hold: the name, the worst value
    branches: tuple[str, ...] = ()  # sentences on If nodes whose branches differ in rank or type
    hints: Mapping[str, InputHint] = field(default_factory=dict)  # what the graph tells of its inputs' values


@dataclass(frozen=True)
class Proof:
    """Whether requests may be merged on axis 0, found by running the model.

    `batchable` is None when that could not be found out. `reason` is one sentence for people. `inputs` and
    `outputs` are the tensors as ONNX Runtime sees them (its own shape inference applied). `sizes` holds the
    size that each free axis had in the runs. `refused` says why ONNX Runtime does not open the model at all.
    """

    batchable: bool | None
    reason: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    refused: str = ""
    peak_memory: int = 0  # bytes, of the process that ran the model
    hints: Mapping[str, InputHint] = field(default_factory=dict)  # the values of inputs with which it ran
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedTensor:
    """An input or output as Triton's config has it: the batch axis left out when the model batches.

    A free axis is -1. `scalar`: the graph's tensor has rank 0, which Triton carries as [1].
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    scalar: bool = False
    labels: tuple[str, ...] = ()  # one a dim; "" where the dim is literal
    reshape: tuple[int, ...] | None = None  # the shape that the model has, where clients see `dims` instead
    label_filename: str = ""
    shape_tensor: bool = False  # of a plan: its values are sizes, so it lies in the host's memory
    narrowed: bool = False  # INT32 in a plan, where its graph says INT64
    optional: bool = False  # a request may leave it out
    ragged: bool = False  # requests of unequal shapes are batched without padding


@dataclass(frozen=True)
class ShapeRange:
    """The sizes that a free axis may have, and the one to optimise for."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class Instances:
    """One instance group: `count` executions side by side, on each of `gpus` where the kind is gpu."""

    kind: str  # cpu | gpu | auto | model
    count: int
    gpus: tuple[int, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # other fields of ModelInstanceGroup, as JSON


@dataclass(frozen=True)
class DynamicBatching:
    """Triton's dynamic batcher. The delay is in microseconds, Triton's own unit."""

    max_queue_delay: int = 0
    preferred_batch_size: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelFile:
    """A file of the version folder: its name there, where it is copied from, and its content's sha256."""

    name: str
    source: Path
    sha256: str
    size: int


@dataclass(frozen=True)
class ExtraFile:
    """A small file beside the version folder, by its path in the model's folder: labels, warm-up data."""

    name: str
    content: bytes


@dataclass(frozen=True)
class PendingBuild:
    """A file of the version folder that must be built first: `key` is the sha256 of all that decides it."""

    name: str  # as in the version folder: model.plan
    key: str
    what: str  # for people: `TensorRT 10.16, sm_90, fp16, batch 1..32`
    reason: str  # why it is not there: `never built`, `the cached one is corrupt`


Span = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The smallest, the best and the largest shape of an input, or its values where those are sizes."""


@dataclass(frozen=True)
class Profile:
    """One optimisation profile of a plan: what each input may be, by its name."""

    shapes: Mapping[str, Span]
    values: Mapping[str, Span] = field(default_factory=dict)  # of inputs whose values are sizes

    @property
    def max_batch(self) -> int:
        """The largest first axis that every input takes."""
        return min((span[2][0] for span in self.shapes.values() if span[2]), default=0)


@dataclass(frozen=True)
class BuilderOptions:
    """How a plan is built, beyond what is built."""

    workspace: int = 0  # bytes; 0: all of the GPU's memory
    optimization_level: int | None = None
    tf32: bool = True
    version_compatible: bool = False
    hardware_compatible: str = ""  # ampere_plus | same_compute_capability
    plugins: tuple[ModelFile, ...] = ()


@dataclass(frozen=True)
class Build:
    """Everything that decides a plan, and who builds it.

    `kind` is tensorrt or tensorrt_rtx; `version` the TensorRT of the server, as far as it is known; `capability`
    that of the GPUs that serve ("9.0"). `onnx` is the graph that is built (lowered already), its weights files
    after it. `lowering` is a digest of how it was lowered.
    """

    onnx: tuple[ModelFile, ...]
    profiles: tuple[Profile, ...]
    options: BuilderOptions
    kind: str
    version: str
    capability: str
    precision: str = "fp32"
    lowering: str = ""
    release: str = ""
    builder: str = "local"
    timeout: float = 3600.0
    shared_cache: str = ""  # a folder or an fsspec URL


@dataclass(frozen=True)
class Gate:
    """By what a model in another precision is judged before it is published: fp32 on the same samples."""

    reference: Path  # the model as it was given
    digest: str  # of the reference, weights included
    candidate: Path  # the lowered graph, or its plan (model.plan), which a GPU runs
    precision: str
    inputs: tuple[Tensor, ...]
    max_batch_size: int
    files: tuple[Path, ...] = ()  # of samples; none: they are made up
    sizes: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, InputHint] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""  # package.module:function, beside the manifest or installed
    floor: float | None = None
    drop: float | None = None
    folder: Path = Path()
    where: str = ""
    version_compatible: bool = False  # of a plan: it brings a runtime of its own


@dataclass(frozen=True)
class Chosen:
    """Why a file was chosen of those that a pattern matches; `awaited` is a newer one that is still being written."""

    why: str
    awaited: str = ""


@dataclass(frozen=True)
class ServedModel:
    """Everything that decides one model's folder in the repository."""

    name: str
    backend: str  # onnxruntime | tensorrt | python | ensemble | vllm | tensorrtllm
    source: str  # as written in the manifest
    max_batch_size: int
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    instances: tuple[Instances, ...]
    dynamic_batching: DynamicBatching | None
    files: tuple[ModelFile, ...]
    pending: tuple[PendingBuild, ...] = ()  # files that a sync builds before it publishes
    build: Build | None = None  # of a tensorrt model: what its plan is built of
    extra_files: tuple[ExtraFile, ...] = ()
    templates: Path | None = None  # a folder whose templates stand in for ours
    carried: tuple[ModelFile, ...] = ()  # of older versions that stay beside, by their path in the model's folder
    keep_versions: int = 2  # version folders, the new one included
    version: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # other ModelConfig fields, merged as protobuf
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)  # by axis label
    hints: Mapping[str, InputHint] = field(default_factory=dict)  # by input name
    gate: Gate | None = None
    chosen: Chosen | None = None  # where the source is a pattern
    notes: tuple[str, ...] = ()  # why each value was chosen, for plan and inspect
