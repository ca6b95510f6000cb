"""From a manifest to the models that should be served: read, prove, decide."""

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from repogen.errors import ManifestError, ModelError
from repogen.files import model_file
from repogen.intent import decide_onnx, decide_python
from repogen.manifest import Manifest, ModelEntry, load_manifest
from repogen.model import Graph, InputHint, ModelFile, Proof, ServedModel, ShapeRange
from repogen.onnx_graph import read_graph, refuse_what_is_not_onnx
from repogen.proof import prove

Progress = Callable[[str], None]


def desired_models(path: Path, *, jobs: int = 2, progress: Progress = lambda _: None) -> tuple[ServedModel, ...]:
    """Return what the manifest at `path` wants served, in its order.

    Raises ManifestError and ModelError; the first in the manifest's order when there are several.
    """
    return models_of(load_manifest(path), jobs=jobs, progress=progress)


def models_of(manifest: Manifest, *, jobs: int = 2, progress: Progress = lambda _: None) -> tuple[ServedModel, ...]:
    """Return what a manifest wants served, in its order, `jobs` models at a time."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return tuple(pool.map(partial(_one, manifest, progress), manifest.models))


def chosen(
    path: Path, only: Sequence[str], *, jobs: int = 2, progress: Progress = lambda _: None
) -> tuple[Path, tuple[ServedModel, ...]]:
    """Return the repository of the manifest at `path`, and those of its models that `only` names (none: all)."""
    manifest = load_manifest(path)
    for name in only:
        if name not in manifest.models:
            hint = f"it has {', '.join(manifest.models)}"
            raise ManifestError(f"there is no model {name!r}", where=manifest.where("models"), hint=hint)
    wanted = {name: entry for name, entry in manifest.models.items() if name in only or not only}
    return manifest.repository, models_of(replace(manifest, models=wanted), jobs=jobs, progress=progress)


def read_and_prove(path: Path, entry: ModelEntry | None = None) -> tuple[Graph, Proof, tuple[ModelFile, ...]]:
    """Return the facts of one ONNX file: what it declares, what was proved of it, and its files."""
    refuse_what_is_not_onnx(path)
    model = model_file("model.onnx", path)
    graph = read_graph(path, model.sha256)
    files = (model, *(model_file(external.name, path.parent / external.name) for external in graph.external))
    digest = hashlib.sha256("".join(f"{file.name}\0{file.sha256}\0" for file in files).encode()).hexdigest()
    hints = {} if entry is None else {
        name: InputHint(said.values, said.range) for name, said in entry.inputs.items() if said.values or said.range
    }  # fmt: skip
    shapes = {} if entry is None else {label: ShapeRange(**span.model_dump()) for label, span in entry.shapes.items()}
    proof = prove(graph, digest=digest, hints=hints, shapes=shapes)
    return graph, proof, files


def _one(manifest: Manifest, progress: Progress, name: str) -> ServedModel:
    entry = manifest.models[name]
    where = partial(_where, manifest, name)
    path = manifest.model_path(name)
    progress(name)
    try:
        if (entry.backend or _backend_of(path)) == "python":
            return decide_python(name, entry, _python_files(path, entry, where), where)
        graph, proof, files = read_and_prove(path, entry)
    except ModelError as error:
        raise ModelError(f"{error.where} {error.message}", where=where("source"), hint=error.hint) from error
    _check_sha256(entry, files[0], where)
    return decide_onnx(name, entry, _with_declared(proof, graph), files, where)


def _where(manifest: Manifest, name: str, *key: str | int) -> str:
    return manifest.where("models", name, *key)


def _backend_of(path: Path) -> str:
    return "python" if path.suffix == ".py" else "onnxruntime"


def _python_files(path: Path, entry: ModelEntry, where: Callable[..., str]) -> tuple[ModelFile, ...]:
    if not path.is_file():
        hint = "name the model.py that Triton's Python backend is to run"
        raise ModelError("there is no such file", where=str(path), hint=hint)
    file = model_file("model.py", path)
    _check_sha256(entry, file, where)
    return (file,)


def _check_sha256(entry: ModelEntry, file: ModelFile, where: Callable[..., str]) -> None:
    if entry.sha256 is not None and file.sha256 != entry.sha256:
        hint = "it was replaced, or the manifest is out of date"
        raise ManifestError(f"{file.source} has sha256 {file.sha256}", where=where("sha256"), hint=hint)


def served_by_default(path: Path, graph: Graph, proof: Proof, files: tuple[ModelFile, ...]) -> ServedModel:
    """Return how an ONNX file would be served by a manifest that says nothing of it but its source."""
    entry = ModelEntry(source=str(path))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).strip("._-") or "model"
    return decide_onnx(name, entry, _with_declared(proof, graph), files, lambda *_: str(path))


def _with_declared(proof: Proof, graph: Graph) -> Proof:
    """Return the proof with the tensors that the file declares, where the model could not be opened to see more."""
    return proof if proof.inputs else replace(proof, inputs=graph.inputs, outputs=graph.outputs)
