"""Build a plan, or only try to: the one module that imports TensorRT, always in a process of its own.

Run as `python -m repogen.builders.tensorrt`: one JSON question on stdin; JSON lines on stdout, `{"progress": …}`
any number of times and one `{"answer": …}` at the end; TensorRT's log on stderr. TensorRT without a GPU may end
the process by a signal, and so may a plugin or a bug: whoever asks must expect that.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from repogen.builders.explicit_weights import spelled_out
from repogen.builders.inspection import inspect_plan
from repogen.builders.logs import Log
from repogen.builders.parser_errors import parser_errors
from repogen.gpu import read_gpus

Question = dict[str, Any]
_PR_SET_PDEATHSIG = 1
_MODULES = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt_rtx_bindings"}
_TRITON = {
    "FLOAT": "TYPE_FP32",
    "HALF": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "INT8": "TYPE_INT8",
    "UINT8": "TYPE_UINT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "BOOL": "TYPE_BOOL",
}
_OBEY = "OBEY_PRECISION_CONSTRAINTS"
_STRONGLY_TYPED = 10
"""TensorRT's major version from which the graph's types are the plan's."""


class Failed(Exception):
    """Why there is no plan: `kind` for programs, `details` one row a cause."""

    def __init__(self, kind: str, message: str, details: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details or []


def main() -> None:
    """Answer the question on stdin."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not the answer
    question = json.loads(sys.stdin.readline())
    log = Log(lambda row: out.write(json.dumps({"progress": row}) + "\n"))
    signal.signal(signal.SIGINT, lambda *_: log.cancel())
    try:
        answer = _TASKS[question["task"]](question, log)
    except Failed as failure:
        answer = {"error": failure.kind, "message": str(failure), "details": failure.details, "log": log.last()}
    out.write(json.dumps({"answer": answer}) + "\n")
    out.flush()
    os._exit(0)  # destructors of half-built engines have nothing to add


def _preflight(question: Question, log: Log) -> dict[str, Any]:
    """Parse, and build where that is possible; keep nothing."""
    trt = _library(question["kind"])
    session = _Session(trt, question, log)
    problems = session.unsupported() or session.parse_problems()
    missing = [] if problems else session.without_profile()
    if not problems and not missing:
        try:
            session.build()
        except Failed as failure:
            if failure.kind == "cancelled":
                raise
            problems = [{"node": "", "operator": "", "message": text} for text in log.errors or [str(failure)]]
    return {
        "kind": question["kind"],
        "version": trt.__version__,
        "problems": problems,
        "missing_profiles": missing,
        "tensors": session.tensors() if not problems else [],
        "warnings": log.warnings,
        "seconds": session.seconds,
    }


def _build(question: Question, log: Log) -> dict[str, Any]:
    """Build, look at what was built, and write plan, layers and times into the output folder."""
    gpu = _gpu_for(question)
    trt = _library(question["kind"])
    _check_version(trt, question)
    session = _Session(trt, question, log)
    problems = session.unsupported() or session.parse_problems()
    if problems:
        raise Failed("unsupported", "TensorRT cannot take this graph", problems)
    missing = session.without_profile()
    if missing:
        raise Failed("profiles", f"there is no range for {', '.join(missing)}")
    data = session.build()
    output = Path(question["output"])
    (output / "model.plan").write_bytes(data)
    answer = {
        "kind": question["kind"],
        "version": trt.__version__,
        "gpu": gpu,
        "seconds": session.seconds,
        "workspace": session.workspace,
        "warnings": log.warnings,
        "tensors": session.tensors(),
        "read_from": "network",
    }
    if gpu and question["kind"] == "tensorrt":
        log.note("inspecting")
        try:
            rows = inspect_plan(trt, output, question)
        except RuntimeError as error:
            raise Failed("build", f"the plan cannot be opened again: {error}") from None
        tensors = [_tensor(*row[:4], is_shape=row[4]) for row in rows]
        answer |= {"tensors": tensors, "read_from": "engine"}
    elif log.layers:
        (output / "layers.txt").write_text("\n".join(log.layers) + "\n")
    return answer


def _library(kind: str) -> Any:
    """Import TensorRT, or TensorRT-RTX under the name by which Polygraphy looks for it."""
    if kind == "tensorrt_rtx":
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
    try:
        module = import_module(_MODULES[kind])
    except ImportError as error:
        raise Failed("no_library", f"{_MODULES[kind]} cannot be imported: {error}") from None
    sys.modules.setdefault(kind, module)
    return module


def _gpu_for(question: Question) -> dict[str, Any]:
    """Return the GPU that builds, found before TensorRT is touched. TensorRT-RTX needs none."""
    found = read_gpus()
    wanted = question["capability"]
    if question["kind"] == "tensorrt_rtx":
        return {}
    if not found:
        raise Failed("no_gpu", "this machine has no NVIDIA GPU, without which TensorRT builds nothing")
    if wanted and found[0]["capability"] != wanted and not question["hardware_compatible"]:
        message = f"the GPU here has compute capability {found[0]['capability']} ({found[0]['name']}), not {wanted}"
        raise Failed("capability", message)
    return found[0]


def _check_version(trt: Any, question: Question) -> None:
    wanted = question["version"]
    have = trt.__version__.split(".")
    if question["kind"] == "tensorrt" and wanted and have[: len(wanted.split("."))] != wanted.split("."):
        raise Failed("version", f"TensorRT {trt.__version__} is installed here, not {wanted}")


class _Session:
    """One graph on its way through a builder."""

    def __init__(self, trt: Any, question: Question, log: Log) -> None:
        self.trt = trt
        self.question = question
        self.log = log
        self.major = 99 if question["kind"] == "tensorrt_rtx" else int(trt.__version__.split(".")[0])
        self.seconds = 0.0
        self.workspace = 0
        for plugin in question["plugins"]:
            ctypes.CDLL(plugin)
        self.logger = _logger(trt, log)
        try:
            self.builder = trt.Builder(self.logger)
        except TypeError:
            raise Failed("no_gpu", "TensorRT's builder cannot start on this machine") from None
        initialise = getattr(trt, "init_libnvinfer_plugins", None)
        if initialise is not None:
            initialise(self.logger, "")
        self.network = self.builder.create_network(self._network_flags())
        self.parser = trt.OnnxParser(self.network, self.logger)
        if question["version_compatible"] and self.major < _STRONGLY_TYPED:
            self.parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)

    def _network_flags(self) -> int:
        """Return the flags by name: their numbers differ between versions, and so does what is needed."""
        flags = self.trt.NetworkDefinitionCreationFlag
        if self.major < _STRONGLY_TYPED:
            return 1 << int(flags.EXPLICIT_BATCH)
        return 1 << int(flags.STRONGLY_TYPED) if self.major == _STRONGLY_TYPED else 0

    def unsupported(self) -> list[dict[str, Any]]:
        """Return every node that the parser does not know, where it can list them all."""
        if not hasattr(self.parser, "supports_model_v2"):
            return []
        path = self.question["onnx"]
        network = self.builder.create_network(self._network_flags())  # the parser does not keep it alive
        probe = self.trt.OnnxParser(network, self.logger)
        if probe.supports_model_v2(Path(path).read_bytes(), path):
            return []
        return parser_errors(probe)

    def parse_problems(self) -> list[dict[str, Any]]:
        self.log.note("reading the graph")
        path = Path(self.question["onnx"])
        with tempfile.TemporaryDirectory(prefix="repogen-build-") as folder:
            if self.major < _STRONGLY_TYPED and self.question["precision"] == "int8":
                path = spelled_out(path, Path(folder))
            if self.parser.parse_from_file(str(path)):
                return []
        return parser_errors(self.parser) or [{"node": "", "operator": "", "message": "the parser gave no reason"}]

    def inputs(self) -> list[Any]:
        return [self.network.get_input(index) for index in range(self.network.num_inputs)]

    def without_profile(self) -> list[str]:
        """Return the inputs with a free axis, or whose values are shapes, of which no profile speaks."""
        named = [profile["shapes"].keys() | profile["values"].keys() for profile in self.question["profiles"]]
        return [
            tensor.name
            for tensor in self.inputs()
            if (-1 in tuple(tensor.shape) or tensor.is_shape_tensor)
            and not (named and all(tensor.name in names for names in named))
        ]

    def tensors(self) -> list[dict[str, Any]]:
        """Return the network's inputs and outputs."""
        outputs = [self.network.get_output(index) for index in range(self.network.num_outputs)]
        return [
            _tensor(kind, tensor.name, tensor.dtype, tensor.shape, is_shape=tensor.is_shape_tensor)
            for kind, found in (("input", self.inputs()), ("output", outputs))
            for tensor in found
        ]

    def build(self) -> bytes:
        from polygraphy.backend.trt import engine_bytes_from_network
        from polygraphy.exception import PolygraphyException

        started = time.monotonic()
        cache = self.question["timing_cache"] or None
        if cache:
            Path(cache).parent.mkdir(parents=True, exist_ok=True)
        self.log.note("building")
        try:
            data = engine_bytes_from_network((self.builder, self.network), self._config, save_timing_cache=cache)
        except PolygraphyException as error:
            if self.log.cancelled:
                raise Failed("cancelled", "the build was stopped") from None
            raise Failed("build", self.log.errors[-1] if self.log.errors else str(error)) from None
        finally:
            self.seconds = time.monotonic() - started
        return bytes(data)

    def _config(self, builder: Any, network: Any) -> Any:
        """Return the builder's configuration, with a workspace that was really taken over."""
        asked = self.question
        if self.major < _STRONGLY_TYPED and asked["precision"] in ("fp16", "bf16"):
            _keep_float(self.trt, network)
        config = self._create()(builder, network)
        if asked["kind"] == "tensorrt_rtx" and not asked["tf32"]:
            config.clear_flag(self.trt.BuilderFlag.TF32)  # Polygraphy leaves it to others there
        if self.major < _STRONGLY_TYPED:
            for flag in _precision_flags(asked["precision"]):
                config.set_flag(getattr(self.trt.BuilderFlag, flag))
        monitor = getattr(self.trt, "IProgressMonitor", None)
        if monitor is not None:
            self.monitor = _monitor(monitor, self.log)  # the config keeps no reference of its own
            config.progress_monitor = self.monitor
        pool = self.trt.MemoryPoolType.WORKSPACE
        self.workspace = config.get_memory_pool_limit(pool)
        if asked["workspace"] and self.workspace != asked["workspace"]:
            raise Failed("workspace", f"a workspace of {asked['workspace']} bytes was refused: it is {self.workspace}")
        return config

    def _create(self) -> Any:
        """Return Polygraphy's maker of the configuration, everything but precision set."""
        from polygraphy.backend.trt import CreateConfig, Profile

        asked, trt = self.question, self.trt
        profiles = []
        for said in asked["profiles"]:
            profile = Profile()
            for name, span in (said["shapes"] | said["values"]).items():
                profile.add(name, *map(tuple, span))
            profiles.append(profile)
        levels = getattr(trt, "HardwareCompatibilityLevel", None)
        options = {
            "profiles": profiles or None,
            "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
            "memory_pool_limits": {trt.MemoryPoolType.WORKSPACE: asked["workspace"]} if asked["workspace"] else None,
            "builder_optimization_level": asked["optimization_level"],
            "version_compatible": asked["version_compatible"] or None,
            "hardware_compatibility_level": _named(levels, asked["hardware_compatible"]),
        }
        if asked["kind"] == "tensorrt_rtx":
            from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

            return CreateConfigRTX(**options)
        cache = asked["timing_cache"]
        known = cache if cache and Path(cache).is_file() else None
        return CreateConfig(tf32=asked["tf32"], load_timing_cache=known, **options)


def _named(kinds: Any, name: str) -> Any:
    """Return the member of an enumeration that a question names, None for no name."""
    if not name:
        return None
    found = getattr(kinds, name.upper(), None)
    if found is None:
        raise Failed("version", f"this TensorRT knows no hardware compatibility {name!r}")
    return found


def _precision_flags(precision: str) -> tuple[str, ...]:
    """Return what TensorRT 8.6 must be allowed, beside a graph that was lowered already.

    Q/DQ pairs say by themselves what is int8, and nothing is pinned beside them: told to obey as well, its optimiser
    finds no format for a fused convolution (filterQDQFormats, "incorrectly marked as an int8 node", seen with 8.6.0).
    """
    if precision == "int8":
        return ("INT8", "FP16")
    return {"fp16": ("FP16", _OBEY), "bf16": ("BF16", _OBEY)}.get(precision, ())


def _keep_float(trt: Any, network: Any) -> None:
    """Hold the layers that the lowered graph left in FP32 there: a weakly typed network forgets them."""
    computing = {
        getattr(trt.LayerType, name) for name in ("SOFTMAX", "REDUCE", "NORMALIZATION", "UNARY", "ELEMENTWISE")
        if hasattr(trt.LayerType, name)
    }  # fmt: skip
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = [_types(layer) for layer in layers]
    if not any(trt.DataType.HALF in found for found in kinds):
        return
    for layer, found in zip(layers, kinds, strict=True):
        if layer.type in computing and found == {trt.DataType.FLOAT}:
            layer.precision = trt.DataType.FLOAT
            for place in range(layer.num_outputs):
                layer.set_output_type(place, trt.DataType.FLOAT)


def _types(layer: Any) -> set[Any]:
    """Return the types of a layer's inputs and outputs."""
    ends = [layer.get_input(place) for place in range(layer.num_inputs)]
    ends += [layer.get_output(place) for place in range(layer.num_outputs)]
    return {tensor.dtype for tensor in ends if tensor is not None}


def _tensor(kind: str, name: str, dtype: Any, shape: Any, *, is_shape: bool) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "dtype": _TRITON.get(dtype.name, dtype.name),
        "dims": [int(size) for size in shape],
        "shape_tensor": bool(is_shape),
    }


def _logger(trt: Any, log: Log) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc] # TensorRT's classes have no types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log.add(int(severity), text)

    return Logger()


def _monitor(base: Any, log: Log) -> Any:
    class Monitor(base):  # type: ignore[misc] # TensorRT's classes have no types
        def __init__(self) -> None:
            base.__init__(self)
            self.steps: dict[str, tuple[str, int]] = {}

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.steps[name] = (parent or "", steps)
            log.note(name, 0, steps, parent=parent or "")

        def step_complete(self, name: str, step: int) -> bool:
            parent, steps = self.steps.get(name, ("", 0))
            log.note(name, step + 1, steps, parent=parent)
            return not log.cancelled

        def phase_finish(self, name: str) -> None:
            self.steps.pop(name, None)

    return Monitor()


_TASKS = {"preflight": _preflight, "build": _build}

if __name__ == "__main__":
    main()
