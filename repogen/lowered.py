"""From a proved ONNX model to the one that its manifest entry's precision asks for, and the gate that judges it."""

import glob
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repogen.child import MEMORY
from repogen.errors import ManifestError
from repogen.manifest import ModelEntry
from repogen.model import Gate, Graph, ModelFile, Proof, Tensor
from repogen.onnx_graph import read_graph
from repogen.precision.lowering import Calibration, Lowered, Source, lower

_HALF = {"fp16": "TYPE_FP16", "bf16": "TYPE_BF16"}
_LIMITS = ("cosine", "relative_l2", "max_abs", "top1", "nan")


@dataclass(frozen=True)
class Prepared:
    """A model in the precision that is asked for: what `Proof` and files then are, with a note for people.

    `lowering` is a digest of how it was lowered, "" for fp32.
    """

    graph: Graph
    proof: Proof
    files: tuple[ModelFile, ...]
    gate: Gate | None
    note: str = ""
    lowering: str = ""


def in_precision(
    entry: ModelEntry,
    graph: Graph,
    proof: Proof,
    files: tuple[ModelFile, ...],
    *,
    folder: Path,
    where: Callable[..., str],
    memory: int = MEMORY,
) -> Prepared:
    """Return the model lowered to `entry.precision`; `folder` is the manifest's. Raises ManifestError, ConversionError.

    `gate.max_batch_size` is as the proof has it; the decided one may be smaller.
    """
    gate = gate_of(entry, graph, proof, files, folder, where)
    if entry.precision == "fp32":
        _refuse_idle(entry, where)
        return Prepared(graph, proof, files, gate if entry.accuracy else None)
    _refuse_unrunnable(entry, where)
    options = entry.precision_options
    made = lower(
        source_of(graph, proof, files),
        entry.precision,
        calibration=calibration_of(entry, folder, where),
        keep=options.keep_fp32 if options else (),
        io=options.io if options else "fp32",
        where=where("calibration") if entry.calibration else where("precision"),
        memory=memory,
    )
    new = read_graph(made.files[0].source, made.files[0].sha256, memory=memory)
    return Prepared(
        replace(new, hints=graph.hints),
        _with_types(proof, entry),
        made.files,
        replace(gate, candidate=made.files[0].source),
        _note(made),
        _digest(made, entry),
    )


def source_of(graph: Graph, proof: Proof, files: Sequence[ModelFile]) -> Source:
    """Return what is to be lowered."""
    return Source(
        path=graph.path,
        digest=_digest_of(files),
        inputs=proof.inputs or graph.inputs,
        batched=bool(proof.batchable),
        size=sum(file.size for file in files),
        sizes=dict(proof.sizes),
        hints=dict(proof.hints),
    )


def _digest_of(files: Sequence[ModelFile]) -> str:
    return hashlib.sha256("".join(f"{file.name}\0{file.sha256}\0" for file in files).encode()).hexdigest()


def calibration_of(entry: ModelEntry, folder: Path, where: Callable[..., str]) -> Calibration | None:
    said = entry.calibration
    if said is None:
        return None
    files = data_files(folder, said.data, where("calibration", "data"))
    return Calibration(files, said.method, said.percentile, said.samples)


def data_files(folder: Path, pattern: str, where: str) -> tuple[Path, ...]:
    """Return the .npz files that `pattern` means: a file, a folder of them, or a glob, relative to `folder`."""
    path = folder / pattern
    if path.is_dir():
        found = sorted(path.glob("*.npz"))
    elif path.is_file():
        found = [path]
    else:
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 - `..` and `**`
    files = tuple(file for file in found if file.is_file())
    if not files:
        hint = "np.savez(file, **inputs) writes one"
        raise ManifestError(f"there are no .npz files at {path}", where=where, hint=hint)
    return files


def gate_of(
    entry: ModelEntry,
    graph: Graph,
    proof: Proof,
    files: Sequence[ModelFile],
    folder: Path,
    where: Callable[..., str],
) -> Gate:
    """Return by what a model in the entry's precision is judged; its candidate is still the model itself."""
    said = entry.accuracy
    data: tuple[Path, ...] = ()
    if said is not None and said.data is not None:
        data = data_files(folder, said.data, where("accuracy", "data"))
    elif entry.calibration is not None:
        data = data_files(folder, entry.calibration.data, where("calibration", "data"))
    limits = {} if said is None else {
        name: float(value) for name in _LIMITS if (value := getattr(said, name)) is not None
    }  # fmt: skip
    if said is not None and said.metric is None and (said.floor is not None or said.drop is not None):
        hint = "add metric: module:function"
        raise ManifestError("floor and drop are of a metric", where=where("accuracy"), hint=hint)
    return Gate(
        reference=graph.path,
        digest=_digest_of(files),
        candidate=graph.path,
        precision=entry.precision,
        inputs=proof.inputs or graph.inputs,
        max_batch_size=_batches(entry, proof),
        files=data,
        sizes=dict(proof.sizes),
        hints=dict(proof.hints),
        limits=limits,
        metric=said.metric or "" if said else "",
        floor=said.floor if said else None,
        drop=said.drop if said else None,
        folder=folder.absolute(),
        where=where("accuracy") if said else where("precision"),
    )


def _batches(entry: ModelEntry, proof: Proof) -> int:
    if not proof.batchable:
        return 0
    return max(proof.batches, default=1) if entry.max_batch_size is None else entry.max_batch_size


def _refuse_idle(entry: ModelEntry, where: Callable[..., str]) -> None:
    for key in ("calibration", "precision_options"):
        if getattr(entry, key) is not None:
            raise ManifestError(f"{key} is given, but the precision is fp32", where=where(key), hint="write precision:")


def _refuse_unrunnable(entry: ModelEntry, where: Callable[..., str]) -> None:
    if entry.backend == "tensorrt":
        return
    if entry.precision == "bf16":
        message = "ONNX Runtime has no bfloat16 kernels on CPUs, and not for every operator on GPUs"
        raise ManifestError(message, where=where("precision"), hint="write fp16, or backend: tensorrt")


def _with_types(proof: Proof, entry: ModelEntry) -> Proof:
    """Return the proof with the types that inputs and outputs now have."""
    if entry.precision_options is None or entry.precision_options.io != "graph":
        return proof

    def half(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        kind = _HALF[entry.precision]
        return tuple(replace(tensor, dtype=kind) if tensor.dtype == "TYPE_FP32" else tensor for tensor in tensors)

    return replace(proof, inputs=half(proof.inputs), outputs=half(proof.outputs))


def _note(made: Lowered) -> str:
    return "; ".join((made.what(), *made.notes[:3]))


def _digest(made: Lowered, entry: ModelEntry) -> str:
    parts = [entry.precision, [file.sha256 for file in made.files]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
