"""Build the plans that are not in the cache: one child process each, watched, timed, and stopped cleanly."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from repogen import build_cache
from repogen.build_key import build_key, facts_of
from repogen.builder_process import BuilderFailed, ask, question_of
from repogen.builders import BUILDERS
from repogen.errors import ConversionError, Refused, RepogenError
from repogen.gpu import gpus
from repogen.model import Build, PendingBuild, ServedModel
from repogen.plan_header import read_header
from repogen.plan_tensors import differences
from repogen.preflight import Preflight, Problem, preflight
from repogen.tensorrt_intent import RTX, what_is_built

_PUBLISH_RTX = "REPOGEN_PUBLISH_RTX"
_KEPT_LINES = 12
_SHOWN_CAUSES = 8
_NO_TENSORRT = (
    "run this where the target's TensorRT and GPU are, let it use docker there (builder: docker), or share the plan "
    "through build_cache:"
)
_HINTS = {
    "no_gpu": _NO_TENSORRT,
    "no_library": _NO_TENSORRT,
    "version": "install that TensorRT, say builder: docker, or correct triton: or tensorrt: in the manifest",
    "capability": "build on a GPU of that kind, correct gpu: in the manifest, or allow hardware_compatible:",
    "workspace": "the GPU has less memory than that: lower workspace:",
    "unsupported": "repogen inspect --tensorrt says more; a plugin, another opset or backend: onnxruntime are ways out",
    "profiles": "write shapes: or profiles: for them",
}


@dataclass(frozen=True)
class Step:
    """How far the build of a model's plan is: `done` of `of` steps of a phase; `of` is 0 where nobody counts."""

    model: str
    phase: str
    done: int = 0
    of: int = 0
    parent: str = ""


Progress = Callable[[Step], None]


def resolved(model: ServedModel) -> ServedModel:
    """Return a tensorrt model with its plan from the cache, or with what has to be built for it."""
    assert model.build is not None
    key = build_key(model.build)
    entry, reason = build_cache.find(key, shared=model.build.shared_cache)
    unfit = "" if entry is None else unfit_for(model.build, entry.plan.source, entry.facts)
    if entry is None or unfit:
        reason = f"the cached one {unfit}" if unfit else reason
        what = what_is_built(model.build)
        return replace(model, files=(), pending=(PendingBuild(build_cache.PLAN, key, what, reason),))
    return replace(model, files=(entry.plan,), pending=())


def unfit_for(build: Build, plan: Path, facts: Mapping[str, Any]) -> str:
    """Return why the file `plan` is not for the server and the GPUs that `build` is for, "" where it is."""
    header = read_header(plan)
    wanted = tuple(int(part) for part in build.version.split(".") if part)
    if header.rtx != (build.kind == RTX):
        return f"is of TensorRT{'-RTX' if header.rtx else ''}, not of TensorRT{'' if header.rtx else '-RTX'}"
    if header.version[: len(wanted)] != wanted and not build.options.version_compatible:
        return f"was built by TensorRT {'.'.join(map(str, header.version))}, and the server has {build.version}"
    capability = facts.get("gpu", {}).get("capability", "")
    if capability and capability != build.capability and not build.options.hardware_compatible:
        return f"was built for compute capability {capability}, and the GPUs that serve have {build.capability}"
    return ""


def runs_here(build: Build) -> bool:
    """Say whether this machine can run a plan of `build`: it has such a GPU, and TensorRT of that version."""
    if build.kind == RTX or not any(gpu.capability == build.capability for gpu in gpus()):
        return False
    try:
        have = metadata.version("tensorrt").split(".")
    except metadata.PackageNotFoundError:
        return False
    wanted = build.version.split(".")
    return have[: len(wanted)] == wanted


def refuse_not_for_triton(models: Sequence[ServedModel]) -> None:
    """Raise Refused for a plan of TensorRT-RTX: no Triton loads one. An environment variable lets tests publish it."""
    for model in models:
        if model.build is not None and model.build.kind == RTX and os.environ.get(_PUBLISH_RTX) != "1":
            raise Refused(
                "its plan is of TensorRT-RTX, which is there to try a graph out and which Triton cannot load",
                where=model.name,
                hint="remove `tensorrt: rtx` from the manifest to build with the server's own TensorRT",
            )


def build_pending(
    models: Sequence[ServedModel], *, progress: Progress = lambda _: None, timing_cache: bool = True
) -> tuple[ServedModel, ...]:
    """Return `models` with every pending plan built, one after the other: builds beside each other mistime tactics.

    Raises ConversionError, with the last lines of the builder's log, for the first that fails; the plans built
    before it are in the cache.
    """
    return tuple(_built(model, progress, timing_cache=timing_cache) if model.pending else model for model in models)


def _built(model: ServedModel, progress: Progress, *, timing_cache: bool) -> ServedModel:
    assert model.build is not None
    key = model.pending[0].key
    with build_cache.building(key, lambda: progress(Step(model.name, "waiting for another process"))):
        again = resolved(model)
        if not again.pending:  # another process built it meanwhile
            return again
        with build_cache.staging() as folder:
            answer = _answer(model, folder, progress, timing_cache=timing_cache)
            _check(model, answer)
            facts = {
                "what": what_is_built(model.build),
                "decided_by": facts_of(model.build),
                "built": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                **{name: answer[name] for name in ("kind", "version", "gpu", "seconds", "workspace", "warnings")},
                "tensors": answer["tensors"],
                "read_from": answer["read_from"],
            }
            build_cache.add(key, folder, facts, shared=model.build.shared_cache)
    return resolved(model)


def _check(model: ServedModel, answer: Mapping[str, Any]) -> None:
    """Refuse a plan whose tensors are not those that the config will name."""
    unlike = differences(model, answer["tensors"])
    if unlike:
        raise ConversionError(
            f"the plan is not what its graph is: {'; '.join(unlike)}",
            where=model.name,
            hint="nothing was published; say so to repogen's authors, or serve it with backend: onnxruntime",
        )


def _answer(model: ServedModel, folder: Path, progress: Progress, *, timing_cache: bool) -> dict[str, Any]:
    """Return the builder's answer. Raises ConversionError saying why there is none."""
    assert model.build is not None
    question = question_of(model.build, "build", folder, timing_cache=timing_cache)
    builder = import_module(BUILDERS[model.build.builder])
    if lacking := builder.missing():
        raise ConversionError(f"cannot be built: {lacking}", where=model.name, hint=_NO_TENSORRT)
    command = builder.command(
        folders=[file.source.parent.resolve() for file in (*model.build.onnx, *model.build.options.plugins)],
        output=folder,
        release=model.build.release,
    )
    try:
        answer = ask(command, question, seconds=model.build.timeout, tell=lambda row: progress(Step(model.name, **row)))
    except BuilderFailed as failure:
        message = f"the builder {failure}{_tail(failure.log)}"
        hint = "its whole output is above with -v; a smaller workspace: may help" if failure.log else ""
        raise ConversionError(message, where=model.name, hint=hint) from None
    if "error" in answer:
        raise _failure(model, answer)
    return answer


def _failure(model: ServedModel, answer: Mapping[str, Any]) -> ConversionError:
    assert model.build is not None
    if answer["error"] not in ("no_gpu", "no_library") or model.build.kind == RTX:
        return _said(model.name, answer)
    found = _tried(model.build)
    if found is not None and not found.passed:
        causes = [str(problem) for problem in found.problems] + [f"{one}: no profile" for one in found.missing_profiles]
        message = f"TensorRT would not take this graph: {_listed(causes)} ({found.caveat})"
        return ConversionError(message, where=model.name, hint=_HINTS["unsupported"])
    passed = "" if found is None else f" The graph itself passed its pre-flight: {found.caveat}."
    message = f"no plan was built: {answer['message']}; it needs {what_is_built(model.build)}.{passed}"
    return ConversionError(message, where=model.name, hint=_NO_TENSORRT)


def _tried(build: Build) -> Preflight | None:
    try:
        return preflight(build)
    except RepogenError:  # it would have been good to know, but is not what went wrong
        return None


def _listed(causes: Sequence[str]) -> str:
    more = f"; {len(causes) - _SHOWN_CAUSES} more" if len(causes) > _SHOWN_CAUSES else ""
    return "; ".join(causes[:_SHOWN_CAUSES]) + more


def _said(name: str, answer: Mapping[str, Any]) -> ConversionError:
    causes = [str(Problem(row["node"], row["operator"], row["message"])) for row in answer["details"]]
    message = answer["message"] + (f": {_listed(causes)}" if causes else "")
    if answer["error"] == "build":
        message += _tail(answer["log"])
    if answer["error"] in ("no_gpu", "no_library", "version", "capability"):
        message = f"no plan was built: {message}"
    return ConversionError(message, where=name, hint=_HINTS.get(answer["error"], ""))


def _tail(lines: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in lines[-_KEPT_LINES:])
