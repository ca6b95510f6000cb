import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from repogen.embedded import RUNNER, devices, embed
from repogen.model import DynamicBatching, Instances, ModelFile, ServedModel, ServedTensor

MODEL = ServedModel(
    name="text_rec",
    backend="onnxruntime",
    source="rec.onnx",
    max_batch_size=32,
    inputs=(
        ServedTensor("x", "TYPE_FP32", (3, -1), labels=("", "W")),
        ServedTensor("s", "TYPE_INT64", (1,), scalar=True),
    ),
    outputs=(ServedTensor("y", "TYPE_FP32", (-1,), labels=("W",)),),
    instances=(Instances("gpu", 2, gpus=(0, 1)), Instances("cpu", 1)),
    dynamic_batching=DynamicBatching(max_queue_delay=2000),
    files=(
        ModelFile("model.onnx", Path("rec.onnx"), "0" * 64, 10),
        ModelFile("weights.bin", Path("w"), "1" * 64, 5),
    ),
    parameters={"kept": "yes"},
)


def test_the_stand_in_is_the_same_model():
    stand_in = embed(MODEL, cpus=8)
    same = ("name", "source", "max_batch_size", "inputs", "outputs", "dynamic_batching", "version", "shapes")
    assert all(getattr(stand_in, field) == getattr(MODEL, field) for field in same)
    assert stand_in.backend == "python"
    assert stand_in.instances == (Instances("cpu", 2), Instances("cpu", 1))


def test_the_runner_is_told_what_to_do():
    parameters = embed(MODEL, cpus=8).parameters
    assert parameters["kept"] == "yes"
    assert parameters["onnx_file"] == "model.onnx"
    assert json.loads(parameters["scalars"]) == ["s"]


@pytest.mark.parametrize(
    ("kinds", "said"), [(["cpu"], "CPU"), (["gpu"], "GPU"), (["cpu", "gpu", "cpu"], "CPU and GPU"), ([], "CPU")]
)
def test_what_runs_them_is_told(kinds, said):
    assert devices([replace(MODEL, instances=(Instances(kind, 1),)) for kind in kinds]) == said
    assert devices([embed(MODEL, cpus=1)]) == "CPU"


@pytest.mark.parametrize(("cpus", "threads"), [(1, "1"), (3, "1"), (8, "2")])
def test_the_cores_are_shared_by_the_instances(cpus, threads):
    assert embed(MODEL, cpus=cpus).parameters["intra_op_threads"] == threads


def test_the_runner_is_added_to_the_files():
    files = embed(MODEL, cpus=1).files
    assert files[:2] == MODEL.files
    assert files[2].name == "model.py"
    assert files[2].source == RUNNER
    assert files[2].sha256 == hashlib.sha256(RUNNER.read_bytes()).hexdigest()


def test_a_python_model_stays_as_it_is():
    model = replace(MODEL, backend="python", files=(ModelFile("model.py", Path("m.py"), "2" * 64, 3),))
    stand_in = embed(model, cpus=4)
    assert stand_in == replace(model, instances=stand_in.instances)
    assert {group.kind for group in stand_in.instances} == {"cpu"}
