"""From a decided ONNX model to its plan: what is built for which target, and whether it is in the cache."""

from collections.abc import Callable
from importlib import metadata

from repogen.builds import resolved
from repogen.errors import ManifestError
from repogen.files import model_file
from repogen.gpu import gpus
from repogen.manifest import Manifest, ModelEntry
from repogen.model import Graph, ModelFile, ServedModel
from repogen.releases import Release
from repogen.tensorrt_intent import decide_tensorrt, target_of

_RTX_PACKAGE = "tensorrt-rtx-cu13-bindings"


def as_plan(
    model: ServedModel,
    manifest: Manifest,
    entry: ModelEntry,
    graph: Graph,
    release: Release,
    where: Callable[..., str],
    *,
    lowering: str = "",
) -> ServedModel:
    """Return a model that was decided as ONNX as the plan of its files; the plan is in `files` or in `pending`.

    `lowering` is a digest of how the files were lowered to the entry's precision. Raises ManifestError.
    """
    here = "" if entry.gpu or manifest.gpu or manifest.tensorrt == "rtx" else _capability_here()
    target = target_of(manifest, entry, release, here=here, rtx=_rtx_version(), where=where)
    return resolved(
        decide_tensorrt(
            model,
            entry,
            graph,
            target,
            onnx=model.files,
            plugins=_plugins(manifest, entry, where),
            lowering=lowering,
            shared_cache=manifest.build_cache,
            where=where,
        )
    )


def _capability_here() -> str:
    found = gpus()
    return found[0].capability if found else ""


def _rtx_version() -> str:
    try:
        return metadata.version(_RTX_PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def _plugins(manifest: Manifest, entry: ModelEntry, where: Callable[..., str]) -> tuple[ModelFile, ...]:
    found = []
    for number, name in enumerate(entry.plugins):
        path = manifest.source.path.parent / name
        if not path.is_file():
            message = f"there is no plugin library {path}"
            raise ManifestError(message, where=where("plugins", number), hint="name the .so file")
        found.append(model_file(name, path))
    return tuple(found)
