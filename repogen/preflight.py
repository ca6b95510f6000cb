"""Try a graph with NVIDIA's own ONNX parser and builder where there is no GPU: TensorRT-RTX runs on any CPU.

Nothing that comes of it is served: TensorRT-RTX writes another format, and what it supports may differ in detail.
"""

import contextlib
import sys
from dataclasses import dataclass, replace

from repogen.builder_process import BuilderFailed, ask, question_of
from repogen.errors import ConversionError, ManifestError, MissingExtra
from repogen.model import Build, BuilderOptions, Graph, ServedModel
from repogen.profiles import profiles_of
from repogen.tensorrt_intent import RTX

CAVEAT = (
    "this was TensorRT-RTX {version}, on the CPU: what TensorRT itself supports may differ, and the plan made here is "
    "not for Triton"
)
_SECONDS = 600.0


@dataclass(frozen=True)
class Problem:
    """One reason why there would be no plan: a node and its operator where the reason is one."""

    node: str
    operator: str
    message: str

    def __str__(self) -> str:
        node = " ".join(part for part in (self.operator, repr(self.node) if self.node else "") if part)
        return f"{node}: {self.message}" if node else self.message


@dataclass(frozen=True)
class Preflight:
    """What the parser and the builder of TensorRT-RTX `version` said of a graph."""

    version: str
    problems: tuple[Problem, ...]
    missing_profiles: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.problems and not self.missing_profiles

    @property
    def caveat(self) -> str:
        return CAVEAT.format(version=self.version)


def preflight(build: Build, *, seconds: float = _SECONDS) -> Preflight:
    """Parse and build `build`'s graph with TensorRT-RTX, and keep nothing.

    Raises MissingExtra where that is not installed, and ConversionError where it ended without an answer.
    """
    # Compatibility and a workspace are matters of the GPU; what is tried here is the graph and its profiles.
    options = replace(
        build.options, workspace=0, version_compatible=False, hardware_compatible="", optimization_level=None
    )
    tried = replace(build, kind=RTX, version="", capability="", options=options)
    question = question_of(tried, "preflight", build.onnx[0].source.parent)
    name = str(build.onnx[0].source)
    try:
        answer = ask([sys.executable, "-m", "repogen.builders.tensorrt"], question, seconds=seconds)
    except BuilderFailed as failure:
        lines = "".join(f"\n    {line}" for line in failure.log[-8:])
        raise ConversionError(f"the pre-flight {failure}{lines}", where=name) from None
    if answer.get("error") == "no_library":
        raise MissingExtra("tensorrt-rtx", "tensorrt")
    if "error" in answer:
        raise ConversionError(f"the pre-flight failed: {answer['message']}", where=name)
    return Preflight(
        version=answer["version"],
        problems=tuple(Problem(row["node"], row["operator"], row["message"]) for row in answer["problems"]),
        missing_profiles=tuple(answer["missing_profiles"]),
        warnings=tuple(answer["warnings"]),
        seconds=answer["seconds"],
    )


def preflight_model(model: ServedModel, graph: Graph) -> Preflight:
    """Try an ONNX model as it would be served by default; raises what `preflight` does."""
    with contextlib.suppress(ManifestError):  # a range of values that nobody knows: the builder will name the input
        profiles = profiles_of(model, (), graph.shape_inputs, lambda *_: "")
        return preflight(Build(model.files, profiles, BuilderOptions(), RTX, "", ""))
    return preflight(Build(model.files, (), BuilderOptions(), RTX, "", ""))


def report(found: Preflight) -> list[str]:
    """Return what was found as lines for people."""
    lines = [f"TensorRT cannot take {problem}" for problem in found.problems]
    lines += [
        f"input {name!r} has a free axis or sizes as values, and no profile: write shapes: or profiles: for it"
        for name in found.missing_profiles
    ]
    if found.passed:
        lines.append(f"TensorRT: parsed and built in {found.seconds:.1f} s")
    return [*lines, f"note: {found.caveat}"]
