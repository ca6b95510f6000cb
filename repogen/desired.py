"""From a manifest to the models that should be served: read, prove, decide."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

from repogen import llm
from repogen.child import MEMORY
from repogen.class_labels import with_labels
from repogen.ensembles import decide_ensemble, in_order, with_members
from repogen.errors import ManifestError, ModelError
from repogen.files import model_file
from repogen.intent import DEFAULT_MAX_BATCH, decide_onnx, decide_python
from repogen.lowered import Prepared, in_precision
from repogen.manifest import Manifest, ModelEntry, load_manifest
from repogen.model import Graph, InputHint, ModelFile, Proof, ServedModel, ShapeRange
from repogen.newer_fields import refuse_newer_fields
from repogen.newest import with_newest
from repogen.onnx_graph import read_graph, refuse_what_is_not_onnx, with_weights
from repogen.plan_models import as_plan
from repogen.proof import prove
from repogen.python_steps import check_written, code_notes, python_files
from repogen.releases import RELEASES, Release
from repogen.sample_file import sample_hints, served_sample_hints
from repogen.servable import advice, refuse_newer_than, refuse_unservable
from repogen.warmup import warmed

Progress = Callable[[str], None]
_SLOW = 0.02  # seconds: a model that takes longer is read or run anew, and the next one need not wait for it


def desired_models(
    path: Path, *, jobs: int = 2, progress: Progress = lambda _: None, memory: int = MEMORY
) -> tuple[ServedModel, ...]:
    """Return what the manifest at `path` wants served, in its order.

    Raises ManifestError and ModelError; the first in the manifest's order when there are several.
    """
    return models_of(load_manifest(path), jobs=jobs, progress=progress, memory=memory)


def models_of(
    manifest: Manifest, *, jobs: int = 2, progress: Progress = lambda _: None, memory: int = MEMORY
) -> tuple[ServedModel, ...]:
    """Return what a manifest wants served, in its order, `jobs` models at a time; ensembles of those found first."""
    manifest = with_newest(manifest)
    llm.refuse_crowded(manifest)
    pipelines = in_order(manifest)
    if not pipelines:
        return _models_of(manifest, list(manifest.models), jobs, progress, memory)
    plain = [name for name in manifest.models if name not in pipelines]
    found = {model.name: model for model in _models_of(manifest, plain, jobs, progress, memory)}
    for name in pipelines:
        progress(name)
        found[name] = _ensemble(manifest, name, found)
    return tuple(found[name] for name in manifest.models)


def _models_of(
    manifest: Manifest, names: Sequence[str], jobs: int, progress: Progress, memory: int
) -> tuple[ServedModel, ...]:
    one = partial(_one, manifest, progress, memory)
    found: list[ServedModel] = []
    begun: deque[Future[ServedModel]] = deque()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            for name in names:
                begun.append(pool.submit(one, name))
                wait([begun[-1]], timeout=_SLOW)  # while all is remembered, threads only get in each other's way
                while begun and begun[0].done():
                    found.append(begun.popleft().result())
            return (*found, *(future.result() for future in begun))
        finally:
            pool.shutdown(cancel_futures=True)


def chosen(
    path: Path, only: Sequence[str], *, jobs: int = 2, progress: Progress = lambda _: None, members: bool = False
) -> tuple[Path, tuple[ServedModel, ...]]:
    """Return the repository of the manifest at `path`, and those of its models that `only` names (none: all).

    `members`: with what the ensembles among them call.
    """
    manifest = load_manifest(path)
    refuse_unknown(manifest, only)
    wanted = with_members(manifest, only or tuple(manifest.models))
    narrowed = replace(manifest, models={name: manifest.models[name] for name in wanted})
    found = models_of(narrowed, jobs=jobs, progress=progress)
    return manifest.repository, tuple(model for model in found if members or not only or model.name in only)


def refuse_unknown(manifest: Manifest, only: Sequence[str]) -> None:
    """Raise ManifestError where `only` names a model that the manifest does not have."""
    for name in only:
        if name not in manifest.models:
            hint = f"it has {', '.join(manifest.models)}"
            raise ManifestError(f"there is no model {name!r}", where=manifest.where("models"), hint=hint)


def read_and_prove(
    path: Path,
    entry: ModelEntry | None = None,
    *,
    samples: Path | None = None,
    where: Callable[..., str] = lambda *_: "",
    check: Callable[[Graph], None] = lambda _: None,
    memory: int = MEMORY,
) -> tuple[Graph, Proof, tuple[ModelFile, ...]]:
    """Return the facts of one ONNX file: what it declares, what was proved of it, and its files.

    `samples` is an .npz of the user's own inputs; `check` may refuse the graph before it is run; the proof may
    take `memory` bytes. Raises ModelError, and ManifestError for samples that do not fit.
    """
    refuse_what_is_not_onnx(path)
    model = model_file("model.onnx", path)
    graph = read_graph(path, model.sha256, memory=memory)
    check(graph)
    files = (model, *(model_file(external.name, path.parent / external.name) for external in graph.external))
    digest = hashlib.sha256("".join(f"{file.name}\0{file.sha256}\0" for file in files).encode()).hexdigest()
    graph = with_weights(graph, digest, memory=memory)
    hints = {} if entry is None else {
        name: InputHint(said.values, said.range) for name, said in entry.inputs.items() if said.values or said.range
    }  # fmt: skip
    if samples is not None:
        hints |= sample_hints(samples, graph.inputs, where("samples"))
    shapes = {} if entry is None else {label: ShapeRange(**span.model_dump()) for label, span in entry.shapes.items()}
    asked = DEFAULT_MAX_BATCH if entry is None or entry.max_batch_size is None else entry.max_batch_size
    proof = prove(graph, digest=digest, hints=hints, shapes=shapes, max_batch=asked, memory=memory)
    if not proof.hints:  # it was not run: what is known of the values still stands
        proof = replace(proof, hints={**graph.hints, **hints})
    library = entry is not None and "op_library_filename" in (entry.config.get("model_operations") or {})
    refuse_unservable(graph, proof, operator_library=library)
    return graph, proof, files


def _ensemble(manifest: Manifest, name: str, members: Mapping[str, ServedModel]) -> ServedModel:
    where = partial(_where, manifest, name)

    def declared(member: str, part: str, tensor: str) -> str:
        written = bool(getattr(manifest.models[member], part))
        return manifest.where("models", member, *((part, tensor) if written else ("source",)))

    model = _sampled(decide_ensemble(name, manifest.models[name], members, where, declared), manifest, where)
    return _finished(model, manifest, where)


def _one(manifest: Manifest, progress: Progress, memory: int, name: str) -> ServedModel:
    entry = manifest.models[name]
    where = partial(_where, manifest, name)
    if entry.backend in llm.BACKENDS:
        return _finished(llm.decide_llm(name, entry, manifest.source.path.parent, where), manifest, where)
    path = manifest.model_path(name)
    release = RELEASES[manifest.triton]
    newer = partial(refuse_newer_than, release, where=manifest.where("triton"))
    progress(name)
    try:
        if (entry.backend or _backend_of(path)) == "python":
            return _finished(_python(name, path, manifest, where), manifest, where)
        samples = None if entry.samples is None else manifest.source.path.parent / entry.samples
        check = newer if entry.backend != "tensorrt" else lambda _: None
        graph, proof, files = read_and_prove(path, entry, samples=samples, where=where, check=check, memory=memory)
    except ModelError as error:
        raise ModelError(f"{error.where} {error.message}", where=where("source"), hint=error.hint) from error
    _check_sha256(entry, files[0], where)
    folder = manifest.source.path.parent
    made = in_precision(entry, graph, proof, files, folder=folder, where=where, memory=memory)
    if entry.backend == "tensorrt":
        model = _gated(_decided(name, entry, made.graph, made.proof, made.files, where, None), made)
        planned = as_plan(model, manifest, entry, made.graph, release, where, lowering=made.lowering)
        return _finished(planned, manifest, where)
    newer(made.graph)
    model = _gated(_decided(name, entry, made.graph, made.proof, made.files, where, release), made)
    return _finished(model, manifest, where)


def _gated(model: ServedModel, made: Prepared) -> ServedModel:
    """Add by what the model is judged before it is published, and what was done to its graph."""
    gate = None if made.gate is None else replace(made.gate, max_batch_size=model.max_batch_size)
    return replace(model, gate=gate, notes=(*model.notes, made.note) if made.note else model.notes)


def _finished(model: ServedModel, manifest: Manifest, where: Callable[..., str]) -> ServedModel:
    """Add what comes of the model as a whole: labels beside it, and warm-up requests."""
    entry = manifest.models[model.name]
    model = replace(with_labels(model, entry, manifest.source.path.parent, where), templates=manifest.templates)
    if chosen := manifest.chosen.get(model.name):
        model = replace(model, chosen=chosen, notes=(chosen.why, *model.notes))
    if model.config:
        from repogen.pbtxt import intended  # protobuf, for those who need it

        refuse_newer_fields(intended(model, "", where("config")), RELEASES[manifest.triton], where())
    return warmed(model) if entry.warmup == "auto" else model


def _where(manifest: Manifest, name: str, *key: str | int) -> str:
    return manifest.where("models", name, *key)


def _backend_of(path: Path) -> str:
    return "python" if path.suffix == ".py" else "onnxruntime"


def _python(name: str, path: Path, manifest: Manifest, where: Callable[..., str]) -> ServedModel:
    entry = manifest.models[name]
    check_written(entry.requirements, where)
    files = python_files(path, entry, manifest.source.path.parent, pinned=manifest.pinned_code, where=where)
    model = _sampled(decide_python(name, entry, files, where), manifest, where)
    return replace(model, notes=(*model.notes, *code_notes(files, entry)))


def _sampled(model: ServedModel, manifest: Manifest, where: Callable[..., str]) -> ServedModel:
    """Add the samples of a model that has no graph to prove them by."""
    said = manifest.models[model.name].samples
    if said is None:
        return model
    return replace(
        model,
        hints={**model.hints, **served_sample_hints(manifest.source.path.parent / said, model, where("samples"))},
    )


def _check_sha256(entry: ModelEntry, file: ModelFile, where: Callable[..., str]) -> None:
    if entry.sha256 is not None and file.sha256 != entry.sha256:
        hint = "it was replaced, or the manifest is out of date"
        raise ManifestError(f"{file.source} has sha256 {file.sha256}", where=where("sha256"), hint=hint)


def served_by_default(path: Path, graph: Graph, proof: Proof, files: tuple[ModelFile, ...]) -> ServedModel:
    """Return how an ONNX file would be served by a manifest that says nothing of it but its source."""
    entry = ModelEntry(source=str(path))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).strip("._-") or "model"
    return _decided(name, entry, graph, proof, files, lambda *_: str(path), None)


def _decided(
    name: str,
    entry: ModelEntry,
    graph: Graph,
    proof: Proof,
    files: tuple[ModelFile, ...],
    where: Callable[..., str],
    release: Release | None,
) -> ServedModel:
    """Return how an ONNX model is served, with what is known of its inputs' values and what people should know."""
    proof = _with_declared(proof, graph)
    model = decide_onnx(name, entry, proof, files, where)
    fixed = frozenset(label for label, span in entry.shapes.items() if span.min == span.max)
    notes = (*model.notes, *advice(graph, proof, model, release=release, fixed=fixed))
    return replace(model, hints={**model.hints, **proof.hints}, notes=notes)


def _with_declared(proof: Proof, graph: Graph) -> Proof:
    """Return the proof with the tensors that the file declares, where the model could not be opened to see more."""
    return proof if proof.inputs else replace(proof, inputs=graph.inputs, outputs=graph.outputs)
