"""Look at a plan that was just built, as the server will open it: its layers, their times, its tensors."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repogen.assets import plan_engine

_RUNS = 20


def inspect_plan(trt: Any, output: Path, question: Mapping[str, Any]) -> list[tuple[str, str, Any, Any, bool]]:
    """Write `layers.json` and `times.json` beside the plan, and return its tensors: kind, name, type, shape, sizes."""
    plan = plan_engine().Engine(str(output / "model.plan"), version_compatible=question["version_compatible"])
    inspector = plan.engine.create_engine_inspector()
    (output / "layers.json").write_text(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    with contextlib.suppress(Exception):  # times are worth having, but no reason to lose a plan that is right
        (output / "times.json").write_text(json.dumps(_layer_times(trt, plan, question)))
    return [
        (
            kind,
            name,
            plan.engine.get_tensor_dtype(name),
            plan.shape(name),
            plan.engine.is_shape_inference_io(name),
        )
        for kind, names in (("input", plan.inputs), ("output", plan.outputs))
        for name in names
    ]


def _layer_times(trt: Any, plan: Any, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the mean milliseconds of each layer at the first profile's optimum, zeros as inputs."""

    class Times(trt.IProfiler):  # type: ignore[misc] # TensorRT's classes have no types
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.found: dict[str, list[float]] = {}

        def report_layer_time(self, name: str, milliseconds: float) -> None:
            self.found.setdefault(name, []).append(milliseconds)

    profile = question["profiles"][0] if question["profiles"] else {"shapes": {}, "values": {}}
    shapes = {}
    for name in plan.inputs:
        span, values = profile["shapes"].get(name), profile["values"].get(name)
        fixed = (len(values[1]),) if values else plan.shape(name)
        shapes[name] = tuple(span[1]) if span else fixed
    for name, room in plan.room(shapes).items():
        room[...] = profile["values"][name][1] if name in profile["values"] else 0
    plan.run(shapes)  # the first run is no measure
    times = Times()
    for context in plan.contexts.values():
        context.profiler = times
    for _ in range(_RUNS):
        plan.run(shapes)
    return [{"layer": name, "ms": round(sum(found) / len(found), 6)} for name, found in times.found.items()]
