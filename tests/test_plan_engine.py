"""The runner of plans, against a stand-in of TensorRT and of the CUDA driver that keeps every address and call honest."""

import ctypes
import importlib.util
import math
import sys
import types

import numpy as np
import pytest

from repogen.assets import TEMPLATES


class Driver:
    """A CUDA driver whose device is host memory: asynchronous work is done at `wait`, as late as may be."""

    def __init__(self, _device):
        self.blocks, self.queue, self.recording, self.graphs, self.log = {}, [], None, {}, []

    def __call__(self, name, *arguments):
        self.log.append(name)
        if name in ("cuMemFree_v2", "cuMemFreeHost"):
            assert self.blocks.pop(arguments[0].value) is not None, "freed twice"
        elif name == "cuStreamBeginCapture_v2":
            self.recording = []
        elif name == "cuStreamEndCapture":
            self.graphs[len(self.graphs) + 1], self.recording = self.recording, None
            arguments[1]._obj.value = len(self.graphs)
        elif name == "cuGraphInstantiateWithFlags":
            arguments[0]._obj.value = arguments[1].value
        elif name == "cuGraphLaunch":
            self.queue += self.graphs[arguments[0].value]

    def stream(self):
        return 77

    def _block(self, size):
        block = (ctypes.c_uint8 * max(size, 1))()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    device_memory = pinned_memory = _block

    def do(self, work):
        (self.queue if self.recording is None else self.recording).append(work)

    def to_device(self, target, source, size, _stream):
        self.do(lambda: ctypes.memmove(target, source, size))

    to_host = to_device

    def wait(self, _stream):
        for work in self.queue:
            work()
        self.queue.clear()


class Context:
    def __init__(self, engine):
        self.engine, self.active_optimization_profile = engine, -1 if engine.made else 0
        engine.made += 1
        self.shapes, self.addresses, self.allocators = {}, {}, {}

    def set_optimization_profile_async(self, index, _stream):
        self.active_optimization_profile = index
        return True

    def set_input_shape(self, name, shape):
        low, _, high = self.engine.get_tensor_profile_shape(name, self.active_optimization_profile)
        self.shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def set_output_allocator(self, name, allocator):
        self.allocators[name] = allocator

    def get_tensor_shape(self, name):
        return (-1,) if self.engine.counted and name == "y" else self.shapes["x"]

    def get_max_output_size(self, _name):
        return math.prod(self.shapes["x"]) * 4

    def execute_async_v3(self, _stream):
        self.engine.runs.append((self.active_optimization_profile, self.shapes["x"]))
        shape, source, target = self.shapes["x"], self.addresses["x"], self.addresses["y"]

        def work():
            x = np.frombuffer((ctypes.c_uint8 * (math.prod(shape) * 4)).from_address(source), np.float32)
            y = x[x > 0] if self.engine.counted else x * 2
            ctypes.memmove(target, y.tobytes(), y.nbytes)
            if self.engine.counted:
                self.allocators["y"].notify_shape("y", y.shape)

        self.engine.driver.do(work)
        return True


class Plan:
    """y = 2x, or the positive ones of x (`counted`): x [N, 2] of the profiles given."""

    num_io_tensors = 2

    def __init__(self, profiles, *, counted=False):
        self.profiles, self.counted, self.made, self.runs = profiles, counted, 0, []
        self.num_optimization_profiles = len(profiles)
        self.device_memory_size = 128

    def get_tensor_name(self, index):
        return "xy"[index]

    def get_tensor_mode(self, name):
        return name

    def get_tensor_location(self, _name):
        return "device"

    def get_tensor_dtype(self, _name):
        return types.SimpleNamespace(name="FLOAT")

    def get_tensor_shape(self, _name):
        return (-1, 2)

    def get_tensor_profile_shape(self, _name, index):
        return tuple((size, 2) for size in self.profiles[index])

    def create_execution_context(self):
        return Context(self)

    create_execution_context_without_device_memory = create_execution_context


def tensorrt(plan):
    class Runtime:
        def __init__(self, _logger):
            pass

        def deserialize_cuda_engine(self, _content):
            return plan

    class Base:
        pass

    names = types.SimpleNamespace
    return names(
        ILogger=Base, IOutputAllocator=Base, Logger=names(ERROR=1), Runtime=Runtime, TensorIOMode=names(INPUT="x"),
        TensorLocation=names(HOST="host"), init_libnvinfer_plugins=lambda *_: True, __version__="8.6.0",
    )  # fmt: skip


@pytest.fixture
def engine(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("plan_engine", TEMPLATES / "embedded" / "plan_engine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "Cuda", Driver)
    (tmp_path / "model.plan").write_bytes(b"plan")

    def make(plan, **more):
        monkeypatch.setitem(sys.modules, "tensorrt", tensorrt(plan))
        made = module.Engine(str(tmp_path / "model.plan"), **more)
        plan.driver = made.cuda
        return made

    return make


def run(engine, rows, start=1.0):
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + start
    engine.room({"x": x.shape})["x"][...] = x
    return x, engine.run({"x": x.shape})["y"]


def test_answers_are_those_of_the_plan_at_every_size(engine):
    made = engine(Plan([(1, 4, 8)]))
    for rows in (1, 8, 3, 1, 8):
        x, y = run(made, rows, start=rows)
        assert y.shape == (rows, 2)
        assert np.array_equal(y, x * 2)


@pytest.mark.parametrize("graphs", [False, True])
def test_each_size_goes_to_the_profile_that_is_nearest(engine, graphs):
    plan = Plan([(1, 1, 4), (1, 8, 8)])
    made = engine(plan, cuda_graphs=graphs)
    for rows in (8, 1, 4, 5, 1, 8):
        x, y = run(made, rows, start=rows)
        assert np.array_equal(y, x * 2)
    asked = {shape[0]: profile for profile, shape in plan.runs}
    assert asked == {8: 1, 1: 0, 4: 0, 5: 1}
    assert plan.made == 2


def test_no_profile_takes_it(engine):
    made = engine(Plan([(1, 4, 8)]))
    with pytest.raises(ValueError, match=r"no optimisation profile of the plan takes x \[9, 2\]"):
        run(made, 9)
    x, y = run(made, 2)
    assert np.array_equal(y, x * 2)


def test_a_recorded_run_is_replayed_and_sees_new_inputs(engine):
    plan = Plan([(1, 4, 8)])
    made = engine(plan, cuda_graphs=True)
    for start in (1.0, 5.0, 9.0):
        x, y = run(made, 4, start=start)
        assert np.array_equal(y, x * 2)
    assert len(plan.runs) == 2  # once for real, once recorded
    assert made.cuda.log.count("cuGraphLaunch") == 2


def test_growing_buffers_drop_what_was_recorded_with_the_old_addresses(engine):
    made = engine(Plan([(1, 4, 8)]), cuda_graphs=True)
    for rows in (2, 2, 8, 2, 2):
        x, y = run(made, rows, start=rows * 3)
        assert np.array_equal(y, x * 2)
    assert made.cuda.log.count("cuGraphExecDestroy") == 1


def test_an_output_whose_size_depends_on_values(engine):
    made = engine(Plan([(1, 4, 8)], counted=True), cuda_graphs=True)
    for start, count in ((-3.0, 4), (1.0, 8), (-7.0, 0)):
        x, y = run(made, 4, start=start)
        assert y.shape == (count,)
        assert np.array_equal(y, x[x > 0])
    assert "cuGraphLaunch" not in made.cuda.log


def test_without_copies_the_device_keeps_its_inputs(engine):
    made = engine(Plan([(1, 4, 8)]))
    run(made, 2, start=1.0)
    made.room({"x": (2, 2)})["x"][...] = 100
    made.run({"x": (2, 2)}, copies=False)
    made.start({"x": (2, 2)}, copies=False)
    made.wait()
    assert np.array_equal(made.run({"x": (2, 2)})["y"], np.full((2, 2), 200))


def test_close_gives_everything_back(engine):
    made = engine(Plan([(1, 1, 4), (1, 8, 8)]), cuda_graphs=True)
    run(made, 8)
    run(made, 1)
    run(made, 1)
    made.close()
    assert made.cuda.blocks == {}
