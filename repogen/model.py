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


@dataclass(frozen=True)
class ServedModel:
    """Everything that decides one model's folder in the repository."""

    name: str
    backend: str  # onnxruntime | python
    source: str  # as written in the manifest
    max_batch_size: int
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    instances: tuple[Instances, ...]
    dynamic_batching: DynamicBatching | None
    files: tuple[ModelFile, ...]
    pending: tuple[PendingBuild, ...] = ()  # files that a sync builds before it publishes
    extra_files: tuple[ExtraFile, ...] = ()
    version: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # other ModelConfig fields, merged as protobuf
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)  # by axis label
    hints: Mapping[str, InputHint] = field(default_factory=dict)  # by input name
    notes: tuple[str, ...] = ()  # why each value was chosen, for plan and inspect
