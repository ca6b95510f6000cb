"""The plan's side of Triton's Python backend, without Triton: batches are joined, answered and taken apart."""

import importlib.util
import json
import sys
import types

import numpy as np
import pytest

from repogen.assets import TEMPLATES


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class Response:
    def __init__(self, tensors=(), error=None):
        self.answers = {tensor.name: tensor.array for tensor in tensors}
        self.error = error


class Request:
    def __init__(self, wanted=("y",), **inputs):
        self.wanted, self.inputs = wanted, {name: Tensor(name, array) for name, array in inputs.items()}

    def requested_output_names(self):
        return list(self.wanted)


class Engine:
    """y = 2x over pinned arrays that each run overwrites; at most 8 rows."""

    inputs, outputs = ("x",), ("y",)

    def __init__(self, path, **more):
        self.path, self.more, self.runs = path, more, []
        self.pinned = np.zeros(64, np.float32)
        self.answer = np.zeros(64, np.float32)
        self.closed = False

    def dtype(self, _name):
        return np.float32

    def room(self, shapes):
        return {"x": self.pinned[: int(np.prod(shapes["x"]))].reshape(shapes["x"])}

    def run(self, shapes):
        shape = shapes["x"]
        if shape[0] > 8:
            raise ValueError("no optimisation profile of the plan takes it")
        self.runs.append(shape)
        size = int(np.prod(shape))
        self.answer[:size] = self.pinned[:size] * 2
        return {"y": self.answer[:size].reshape(shape)}

    def close(self):
        self.closed = True


class Refused(Exception):
    pass


@pytest.fixture
def model(monkeypatch):
    backend = types.SimpleNamespace(
        Tensor=Tensor,
        InferenceResponse=Response,
        TritonError=str,
        TritonModelException=Refused,
        get_input_tensor_by_name=lambda request, name: request.inputs.get(name),
        triton_string_to_numpy=lambda name: {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32}[name],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    monkeypatch.setitem(sys.modules, "plan_engine", types.SimpleNamespace(Engine=Engine))
    spec = importlib.util.spec_from_file_location("plan_model", TEMPLATES / "embedded" / "plan_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(max_batch=8, dims=(2,), dtype="TYPE_FP32", reshape=None, **parameters):
        tensor = {"data_type": dtype, "dims": list(dims), **({"reshape": reshape} if reshape is not None else {})}
        config = {
            "name": "m", "max_batch_size": max_batch, "input": [{"name": "x", **tensor}],
            "output": [{"name": "y", **tensor}],
            "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        }  # fmt: skip
        made = module.TritonPythonModel()
        made.initialize({
            "model_config": json.dumps(config), "model_repository": "/r/m", "model_version": "3",
            "model_instance_device_id": "1",
        })  # fmt: skip
        return made

    return make


def x(rows, start=0.0, width=2):
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width) + start


def test_the_plan_is_opened_as_the_config_says(model):
    made = model(plan_file="a.plan", cuda_graphs="true")
    assert made.engine.path == "/r/m/3/a.plan"
    assert made.engine.more == {"device": 1, "cuda_graphs": True, "version_compatible": False}
    made.finalize()
    assert made.engine.closed


def test_requests_share_one_run_and_each_gets_its_own_rows(model):
    made = model()
    requests = [Request(x=x(rows, start)) for rows, start in ((1, 0), (3, 10), (2, 50))]
    answers = made.execute(requests)
    assert made.engine.runs == [(6, 2)]
    for request, answer in zip(requests, answers, strict=True):
        assert np.array_equal(answer.answers["y"], request.inputs["x"].array * 2)


def test_requests_of_other_shapes_do_not_overwrite_each_others_answers(model):
    made = model(dims=(-1,))
    requests = [Request(x=x(1, 0)), Request(x=x(2, 9, width=3)), Request(x=x(1, 5))]
    answers = made.execute(requests)
    assert sorted(made.engine.runs) == [(2, 2), (2, 3)]
    for request, answer in zip(requests, answers, strict=True):
        assert np.array_equal(answer.answers["y"], request.inputs["x"].array * 2)


def test_only_the_guilty_request_gets_the_error(model):
    made = model()
    requests = [Request(x=x(2)), Request(), Request(x=x(2).astype(np.int32)), Request(x=x(9)), Request(x=x(1, 7))]
    answers = made.execute(requests)
    assert [bool(answer.error) for answer in answers] == [False, True, True, True, False]
    assert "m: input x is missing" in answers[1].error
    assert "input x is int32" in answers[2].error
    assert "no optimisation profile" in answers[3].error
    assert np.array_equal(answers[0].answers["y"], x(2) * 2)
    assert np.array_equal(answers[4].answers["y"], x(1, 7) * 2)


def test_without_batching_each_request_is_a_run_with_an_answer_of_its_own(model):
    made = model(max_batch=0, dims=(-1, 2))
    requests = [Request(x=x(2)), Request(x=x(2, 40))]
    answers = made.execute(requests)
    assert made.engine.runs == [(2, 2), (2, 2)]
    for request, answer in zip(requests, answers, strict=True):
        assert np.array_equal(answer.answers["y"], request.inputs["x"].array * 2)


def test_one_number_a_sample_is_carried_as_a_row_of_one(model):
    made = model(dims=(1,), reshape={})
    (answer,) = made.execute([Request(x=x(3, width=1))])
    assert made.engine.runs == [(3,)]
    assert answer.answers["y"].shape == (3, 1)


def test_an_output_that_nobody_asked_for_is_not_sent(model):
    (answer,) = model().execute([Request(wanted=(), x=x(1))])
    assert answer.answers == {}


def test_a_config_that_is_not_the_plan_is_refused(model):
    with pytest.raises(Refused, match="input x is TYPE_INT32 in the config, float32 in the plan"):
        model(dtype="TYPE_INT32")
