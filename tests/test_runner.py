"""The Python-backend model by itself: a fake of Triton's module, and a session that is a function."""

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.serverkit import RUNNER

pytest.importorskip("onnxruntime")
NUMPY = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_STRING": np.object_}


class Tensor:
    def __init__(self, name, value):
        self.name, self.value = name, value

    def as_numpy(self):
        return self.value


class Response:
    def __init__(self, output_tensors=(), error=None):
        self.outputs = {tensor.name: tensor.value for tensor in output_tensors}
        self.error = error and str(error)


class Request:
    def __init__(self, feeds, wanted=("y",)):
        self.feeds, self.wanted = feeds, list(wanted)

    def requested_output_names(self):
        return self.wanted


class Session:
    """Runs `compute`, and remembers the batches that it saw."""

    def __init__(self, compute, inputs, outputs):
        self.compute, self.inputs, self.outputs = compute, inputs, outputs
        self.runs = []

    def get_inputs(self):
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_outputs(self):
        return [SimpleNamespace(name=name) for name in self.outputs]

    def get_overridable_initializers(self):
        return []

    def run(self, names, feeds):
        self.runs.append((names, {name: value.shape for name, value in feeds.items()}))
        values = self.compute(**feeds)
        return [values[name] for name in names]


def triton_module():
    module = ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse = Tensor, Response
    module.TritonError = module.TritonModelException = RuntimeError
    module.triton_string_to_numpy = NUMPY.__getitem__
    module.get_input_tensor_by_name = lambda request, name: (
        Tensor(name, request.feeds[name]) if name in request.feeds else None
    )
    return module


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """Make a runner over `compute` for a config of inputs x (and more) and outputs y (and more)."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_module())
    spec = importlib.util.spec_from_file_location("embedded_runner", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(compute, *, batch=8, inputs=None, outputs=None, graph=None, scalars=()):
        inputs, outputs = inputs or {"x": "TYPE_FP32"}, outputs or {"y": "TYPE_FP32"}
        read, made = graph or (list(inputs), list(outputs))
        session = Session(compute, read, made)
        monkeypatch.setattr(module, "open_session", lambda _path, _threads: session)
        config = {
            "name": "m",
            "max_batch_size": batch,
            "input": [{"name": name, "data_type": kind} for name, kind in inputs.items()],
            "output": [{"name": name, "data_type": kind} for name, kind in outputs.items()],
            "parameters": {"scalars": {"string_value": json.dumps(list(scalars))}},
        }
        model = module.TritonPythonModel()
        model.initialize({"model_config": json.dumps(config), "model_repository": str(tmp_path), "model_version": "1"})
        return model, session

    return make


def full(rows, value, width=2):
    return np.full((rows, width), value, np.float32)


def double(x):
    return {"y": x * 2}


def test_one_run_for_requests_that_fit(runner):
    model, session = runner(double)
    responses = model.execute([Request({"x": full(rows, rows)}) for rows in (1, 3, 2)])
    assert session.runs == [(["y"], {"x": (6, 2)})]
    for rows, response in zip((1, 3, 2), responses, strict=True):
        np.testing.assert_array_equal(response.outputs["y"], full(rows, rows * 2))


def test_shapes_are_grouped_and_answers_keep_their_places(runner):
    model, session = runner(double)
    widths = (2, 3, 2, 0)
    responses = model.execute([Request({"x": full(1, place, width)}) for place, width in enumerate(widths)])
    assert [shapes["x"] for _, shapes in session.runs] == [(2, 2), (1, 3), (1, 0)]
    for place, (width, response) in enumerate(zip(widths, responses, strict=True)):
        np.testing.assert_array_equal(response.outputs["y"], full(1, place * 2, width))


def test_without_batching_each_request_runs_alone(runner):
    model, session = runner(double, batch=0)
    model.execute([Request({"x": full(1, 1)}), Request({"x": full(1, 1)})])
    assert [shapes["x"] for _, shapes in session.runs] == [(1, 2), (1, 2)]


def test_only_what_is_asked_is_computed(runner):
    model, session = runner(lambda x: {"y": x, "z": -x, "w": x}, outputs=dict.fromkeys(("y", "z", "w"), "TYPE_FP32"))
    first, second, third = model.execute([Request({"x": full(1, 1)}, wanted) for wanted in (["y"], ["z", "y"], [])])
    assert session.runs == [(["y", "z"], {"x": (3, 2)})]
    assert (list(first.outputs), list(second.outputs), list(third.outputs)) == (["y"], ["y", "z"], [])


def test_only_the_guilty_request_fails(runner):
    def picky(x):
        if (x < 0).any():
            raise RuntimeError("negative")
        return {"y": x}

    model, session = runner(picky)
    responses = model.execute([Request({"x": full(1, value)}) for value in (1, -1, 2)])
    assert [response.error for response in responses] == [None, "m: negative", None]
    np.testing.assert_array_equal(responses[2].outputs["y"], full(1, 2))
    assert len(session.runs) == 4


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        pytest.param(lambda x: {"y": x.sum(0, keepdims=True)}, "has 1 rows for a batch of 2", id="rows"),
        pytest.param(lambda x: {"y": np.array(x.sum())}, "has no batch axis", id="rank-0"),
        pytest.param(lambda x: {"y": x.astype(np.int64)}, "is int64, its config says TYPE_FP32", id="type"),
        pytest.param(lambda x: {"y": [x]}, "is not a tensor but a list", id="sequence"),
        pytest.param(lambda x: {"y": None}, "is not a tensor but a NoneType", id="nothing"),
    ],
)
def test_an_answer_that_would_be_wrong_is_an_error(runner, compute, says):
    model, _ = runner(compute)
    (response,) = model.execute([Request({"x": full(2, 1)})])
    assert says in response.error
    assert response.outputs == {}


def test_a_missing_input_is_an_error(runner):
    model, _ = runner(double)
    (response,) = model.execute([Request({})])
    assert response.error == "m: input x is missing"


def test_a_rank_0_output_without_batching(runner):
    model, _ = runner(lambda x: {"y": np.array(x.sum())}, batch=0)
    (response,) = model.execute([Request({"x": full(1, 3)})])
    assert response.outputs["y"].tolist() == [6]


def test_scalars(runner):
    kinds = {"x": "TYPE_FP32", "s": "TYPE_FP32"}
    model, session = runner(lambda x, s: {"y": x * s}, inputs=kinds, scalars=["s"])
    requests = [Request({"x": full(rows, 1), "s": full(rows, s, 1)}) for rows, s in ((1, 5), (2, 5), (1, 7))]
    responses = model.execute(requests)
    assert [shapes for _, shapes in session.runs] == [{"x": (3, 2), "s": ()}, {"x": (1, 2), "s": ()}]
    assert [response.outputs["y"].flat[0] for response in responses] == [5, 5, 7]


@pytest.mark.parametrize("value", [np.zeros((0, 1), np.float32), np.array([[1], [2]], np.float32)])
def test_a_scalar_that_is_not_one_value(runner, value):
    model, _ = runner(lambda x, s: {"y": x}, inputs={"x": "TYPE_FP32", "s": "TYPE_FP32"}, scalars=["s"])
    (response,) = model.execute([Request({"x": full(2, 1), "s": value})])
    assert "input s is a scalar" in response.error


def test_strings(runner):
    seen = []

    def echo(x):
        seen.extend(x.flat)
        return {"y": x}

    model, _ = runner(echo, inputs={"x": "TYPE_STRING"}, outputs={"y": "TYPE_STRING"})
    good, bad = np.array([["é".encode(), b""]], object), np.array([[b"\xff", b"a"]], object)
    first, second, third = model.execute([Request({"x": value}) for value in (good, bad, np.zeros((1, 0), object))])
    assert seen == ["é", ""]
    assert first.outputs["y"].tolist() == good.tolist()
    assert "m: input x is not UTF-8" in second.error
    assert third.outputs["y"].shape == (1, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param({"inputs": {"x": "TYPE_BF16"}}, "x is BF16", id="bf16"),
        pytest.param({"graph": (["x", "h"], ["y"])}, "graph's input h is not in the config", id="more"),
        pytest.param({"graph": ([], ["y"])}, "config's input x is not in the graph", id="no-input"),
        pytest.param({"graph": (["x"], ["z"])}, "config's output y is not in the graph", id="no-output"),
    ],
)
def test_a_config_that_does_not_fit_the_graph(runner, options, says):
    with pytest.raises(RuntimeError, match=says):
        runner(double, **options)
