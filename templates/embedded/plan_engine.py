"""Run a TensorRT plan on this machine's GPU: TensorRT 8.6 and later, CUDA's driver API, NumPy, nothing else.

An `Engine` belongs to one thread: its stream, its pinned buffers and its execution contexts serve one run at a time.
"""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

_NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class Cuda:
    """The few calls of the CUDA driver that running a plan takes, in the device's primary context."""

    def __init__(self, device: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(handle), device)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else code}")

    def stream(self) -> int:
        handle = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING)
        assert handle.value is not None
        return handle.value

    def device_memory(self, size: int) -> int:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def pinned_memory(self, size: int) -> int:
        address = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)), 0)
        assert address.value is not None
        return address.value

    def to_device(self, target: int, source: int, size: int, stream: int) -> None:
        self(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )

    def to_host(self, target: int, source: int, size: int, stream: int) -> None:
        self(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )

    def wait(self, stream: int) -> None:
        self("cuStreamSynchronize", ctypes.c_void_p(stream))


class Buffer:
    """Memory for one tensor on both sides, grown when a larger one comes."""

    def __init__(self, cuda: Cuda, dtype: Any) -> None:
        self.cuda = cuda
        self.dtype = np.dtype(dtype)
        self.size = -1
        self.host = self.device = 0
        self.array: Any = None

    def reserve(self, size: int) -> bool:
        """Make room for `size` bytes; True when the addresses changed."""
        if size <= self.size:
            return False
        self.free()
        self.host, self.device = self.cuda.pinned_memory(size), self.cuda.device_memory(size)
        self.size = size
        block = (ctypes.c_uint8 * max(size, 1)).from_address(self.host)
        whole = max(size, 1) // self.dtype.itemsize * self.dtype.itemsize
        self.array = np.frombuffer(block, np.uint8)[:whole].view(self.dtype)
        return True

    def free(self) -> None:
        if self.size >= 0:
            self.array = None
            self.cuda("cuMemFreeHost", ctypes.c_void_p(self.host))
            self.cuda("cuMemFree_v2", ctypes.c_uint64(self.device))
            self.size = -1


class Shapes(NamedTuple):
    """What is known of a run once its inputs' shapes are: the profile that takes them, and the outputs' shapes.

    An output whose shape depends on values has None until it has run.
    """

    profile: int
    inputs: tuple[tuple[int, ...], ...]
    outputs: dict[str, Any]


class Engine:
    """A plan, ready to run on one stream of its own."""

    def __init__(
        self, path: str, *, device: int = 0, cuda_graphs: bool = False, version_compatible: bool = False
    ) -> None:
        import tensorrt as trt

        self.trt = trt
        self.cuda = Cuda(device)
        self.errors: list[str] = []
        self.logger = _logger(trt, self.errors)
        trt.init_libnvinfer_plugins(self.logger, "")
        self.runtime = trt.Runtime(self.logger)
        if version_compatible:
            self.runtime.engine_host_code_allowed = True
        with open(path, "rb") as file:  # noqa: PTH123 - a str is what Triton gives
            self.engine = self.runtime.deserialize_cuda_engine(file.read())
        if self.engine is None:
            raise RuntimeError(f"TensorRT {trt.__version__} cannot load the plan: {'; '.join(self.errors)}")
        self.stream = self.cuda.stream()
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        is_input = {name: self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self.inputs = [name for name in names if is_input[name]]
        self.outputs = [name for name in names if not is_input[name]]
        self.on_host = {name for name in names if self.engine.get_tensor_location(name) == trt.TensorLocation.HOST}
        self.buffers = {name: Buffer(self.cuda, self.dtype(name)) for name in names}
        self.contexts: dict[int, Any] = {}
        self.known: dict[Any, Shapes] = {}
        self.current: dict[int, Any] = {}  # by profile: the shapes that its context has now
        self.allocators: dict[Any, Any] = {}  # by profile and output; contexts keep no reference
        self.cuda_graphs = cuda_graphs and not self.on_host
        self.graphs: dict[Any, int] = {}  # by shapes and copies; 0 where the plan cannot be recorded
        self.scratch = 0  # device memory that all contexts share: one runs at a time
        self.profiles = [
            {
                name: tuple(tuple(shape) for shape in self.engine.get_tensor_profile_shape(name, index))
                for name in self.inputs
                if name not in self.on_host
            }
            for index in range(self.engine.num_optimization_profiles)
        ]

    def dtype(self, name: str) -> Any:
        """Return NumPy's type of a tensor."""
        kind = self.engine.get_tensor_dtype(name).name
        if kind not in _NUMPY:
            raise RuntimeError(f"tensor {name} is {kind}, which NumPy does not have")
        return _NUMPY[kind]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape in the plan, -1 where it is free."""
        return tuple(self.engine.get_tensor_shape(name))

    def room(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Return pinned arrays of these shapes, for the caller to write the inputs into before `run`."""
        arrays = {}
        for name in self.inputs:
            shape = shapes[name]
            buffer = self.buffers[name]
            if buffer.reserve(math.prod(shape) * buffer.dtype.itemsize):
                self._forget()
            arrays[name] = buffer.array[: math.prod(shape)].reshape(shape)
        return arrays

    def run(self, shapes: dict[str, tuple[int, ...]], *, copies: bool = True) -> dict[str, Any]:
        """Run on what `room` holds; the arrays returned are pinned, and good until the next run.

        Without `copies` the run is on what the device holds, and the answers stay there.
        """
        found, recorded = self._start(shapes, copies=copies)
        self.cuda.wait(self.stream)
        if self.cuda_graphs and not recorded:
            self.graphs[found.inputs, copies] = self._capture(found, copies=copies)
        return self._results(found)

    def start(self, shapes: dict[str, tuple[int, ...]], *, copies: bool = True) -> None:
        """Put a run on the stream, as `run` does, and do not wait for it."""
        self._start(shapes, copies=copies)

    def wait(self) -> None:
        """Wait for everything that was started."""
        self.cuda.wait(self.stream)

    def _start(self, shapes: dict[str, tuple[int, ...]], *, copies: bool) -> tuple[Shapes, bool]:
        """Launch a run: as a recorded graph where there is one, and say whether that was tried already."""
        key = tuple(shapes[name] for name in self.inputs)
        values = tuple(tuple(self._host_values(name, shapes[name])) for name in self.inputs if name in self.on_host)
        found = self.known.get((key, values))
        if found is None:
            found = self.known[key, values] = self._learn(shapes, key)
        graph = self.graphs.get((key, copies), -1)
        if graph > 0:
            self.cuda("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(self.stream))
        else:
            self._enter(found, values)
            self._launch(found, copies=copies)
        return found, graph >= 0

    def close(self) -> None:
        """Give everything back, the plan last."""
        for graph in self.graphs.values():
            if graph:
                self.cuda("cuGraphExecDestroy", ctypes.c_void_p(graph))
        self.graphs.clear()
        for buffer in self.buffers.values():
            buffer.free()
        self.contexts.clear()
        if self.scratch:
            self.cuda("cuMemFree_v2", ctypes.c_uint64(self.scratch))
        self.cuda("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
        self.engine = self.runtime = None

    def _host_values(self, name: str, shape: tuple[int, ...]) -> Any:
        return self.buffers[name].array[: math.prod(shape)].tolist()

    def _forget(self) -> None:
        """Addresses changed: contexts must be told the new ones, and graphs hold the old."""
        self.current.clear()
        for graph in self.graphs.values():
            if graph:
                self.cuda("cuGraphExecDestroy", ctypes.c_void_p(graph))
        self.graphs.clear()

    def _context(self, profile: int) -> Any:
        if profile not in self.contexts:
            context = self._new_context()
            if context is None:
                raise RuntimeError(f"no execution context: {'; '.join(self.errors[-3:])}")
            # TensorRT 8.6 gives the first context profile 0 whichever is wanted, and a later one none.
            same = context.active_optimization_profile == profile
            if not same and not context.set_optimization_profile_async(profile, self.stream):
                raise RuntimeError(f"profile {profile} cannot be used: {'; '.join(self.errors[-3:])}")
            self.cuda.wait(self.stream)
            self.contexts[profile] = context
        return self.contexts[profile]

    def _new_context(self) -> Any:
        """Make a context; those of several profiles share their scratch memory."""
        engine = self.engine
        if engine.num_optimization_profiles == 1:
            return engine.create_execution_context()
        strategy = getattr(self.trt, "ExecutionContextAllocationStrategy", None)
        if strategy is None:
            context, size = engine.create_execution_context_without_device_memory(), engine.device_memory_size
        else:
            context = engine.create_execution_context(strategy.USER_MANAGED)
            size = getattr(engine, "device_memory_size_v2", None) or engine.device_memory_size
        if context is not None:
            self.scratch = self.scratch or self.cuda.device_memory(size)
            if hasattr(context, "set_device_memory"):
                context.set_device_memory(self.scratch, size)
            else:
                context.device_memory = self.scratch
        return context

    def _learn(self, shapes: dict[str, tuple[int, ...]], key: tuple[tuple[int, ...], ...]) -> Shapes:
        """Find the profile for these shapes, and the shapes of what comes out; make room for that."""
        profile = self._profile_for(shapes)
        context = self._context(profile)
        self._tell_inputs(context, key)
        outputs: dict[str, Any] = {}
        for name in self.outputs:
            shape = tuple(context.get_tensor_shape(name))
            buffer = self.buffers[name]
            known = -1 not in shape
            size = math.prod(shape) * buffer.dtype.itemsize if known else context.get_max_output_size(name)
            if buffer.reserve(size):
                self._forget()
            outputs[name] = shape if known else None
        self.current.pop(profile, None)
        return Shapes(profile, key, outputs)

    def _profile_for(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """Return the profile that these shapes fit, the one with the nearest optimum when several do."""
        best, nearest = -1, math.inf
        for index, spans in enumerate(self.profiles):
            if all(_within(shapes[name], span) for name, span in spans.items()):
                away = sum(
                    (have - want) ** 2 for name, span in spans.items() for have, want in zip(shapes[name], span[1])
                )
                if away < nearest:
                    best, nearest = index, away
        if best < 0:
            shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ValueError(f"no optimisation profile of the plan takes {shown}")
        return best

    def _tell_inputs(self, context: Any, key: tuple[tuple[int, ...], ...]) -> None:
        for name, shape in zip(self.inputs, key):
            buffer = self.buffers[name]
            context.set_tensor_address(name, buffer.host if name in self.on_host else buffer.device)
            if not context.set_input_shape(name, shape):
                raise ValueError(f"input {name} cannot be {list(shape)}: {'; '.join(self.errors[-1:])}")

    def _enter(self, found: Shapes, values: Any) -> None:
        """Tell the profile's context shapes and addresses, unless it has just these."""
        if self.current.get(found.profile) == (found.inputs, values):
            return
        context = self._context(found.profile)
        self._tell_inputs(context, found.inputs)
        for name, shape in found.outputs.items():
            buffer = self.buffers[name]
            context.set_tensor_address(name, buffer.host if name in self.on_host else buffer.device)
            if shape is None:
                allocator = self.allocators[found.profile, name] = _allocator(self.trt, buffer)
                context.set_output_allocator(name, allocator)
        self.current[found.profile] = (found.inputs, values)

    def _launch(self, found: Shapes, *, copies: bool) -> None:
        """Put copies and plan on the stream."""
        for name, shape in zip(self.inputs, found.inputs):
            if copies and name not in self.on_host:
                buffer = self.buffers[name]
                self.cuda.to_device(buffer.device, buffer.host, math.prod(shape) * buffer.dtype.itemsize, self.stream)
        if not self.contexts[found.profile].execute_async_v3(self.stream):
            raise RuntimeError(f"the plan did not run: {'; '.join(self.errors[-1:])}")
        for name, shape in found.outputs.items():
            if copies and name not in self.on_host:
                buffer = self.buffers[name]
                size = buffer.size if shape is None else math.prod(shape) * buffer.dtype.itemsize
                self.cuda.to_host(buffer.host, buffer.device, size, self.stream)

    def _capture(self, found: Shapes, *, copies: bool) -> int:
        """Record one whole run as a CUDA graph; 0 where the plan does something that cannot be recorded."""
        if None in found.outputs.values():
            return 0
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self.cuda("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), _RELAXED)
            try:
                self._launch(found, copies=copies)
            finally:
                self.cuda("cuStreamEndCapture", ctypes.c_void_p(self.stream), ctypes.byref(graph))
            self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
            self.cuda("cuGraphDestroy", graph)
        except (CudaError, RuntimeError):
            return 0
        return ready.value or 0

    def _results(self, found: Shapes) -> dict[str, Any]:
        results = {}
        for name, shape in found.outputs.items():
            actual = shape if shape is not None else self.allocators[found.profile, name].shape
            results[name] = self.buffers[name].array[: math.prod(actual)].reshape(actual)
        return results


def _within(shape: tuple[int, ...], span: Any) -> bool:
    low, _, high = span
    return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high))


def _logger(trt: Any, errors: list[str]) -> Any:
    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if int(severity) <= int(trt.Logger.ERROR):
                errors.append(text)
                del errors[:-20]

    return Logger()


def _allocator(trt: Any, buffer: Buffer) -> Any:
    """Return what tells TensorRT where an output of unknown size goes, and is told its shape."""

    class Allocator(trt.IOutputAllocator):
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            return buffer.device if size <= buffer.size else 0

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
