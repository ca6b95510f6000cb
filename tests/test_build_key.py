"""The key of a plan: every fact that decides it changes the key, and nothing else does."""

from dataclasses import replace
from pathlib import Path

import pytest

from repogen.build_key import build_key
from repogen.files import model_file
from repogen.model import Build, BuilderOptions, ModelFile, Profile

A, B, C = (character * 64 for character in "abc")


def file(name, sha256):
    return ModelFile(name, Path("/models") / name, sha256, 10)


BUILD = Build(
    onnx=(file("model.onnx", A), file("weights.bin", B)),
    profiles=(Profile({"x": ((1, 4), (8, 4), (8, 4))}, {"size": ((1,), (2,), (3,))}),),
    options=BuilderOptions(workspace=2**30, optimization_level=3, plugins=(file("p.so", C),)),
    kind="tensorrt",
    version="10.16",
    capability="9.0",
    precision="fp16",
    lowering="one way",
)
OTHER_SHAPE = Profile({"x": ((1, 4), (4, 4), (8, 4))}, BUILD.profiles[0].values)
OTHER_VALUES = Profile(BUILD.profiles[0].shapes, {"size": ((1,), (2,), (4,))})


def options(**changes):
    return {"options": replace(BUILD.options, **changes)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"onnx": (file("model.onnx", B), BUILD.onnx[1])}, id="onnx bytes"),
        pytest.param({"onnx": (BUILD.onnx[0], file("weights.bin", A))}, id="external data"),
        pytest.param({"onnx": BUILD.onnx[:1]}, id="no external data"),
        pytest.param({"precision": "int8"}, id="precision"),
        pytest.param({"lowering": "another way"}, id="lowering and calibration"),
        pytest.param({"profiles": (OTHER_SHAPE,)}, id="profile's shapes"),
        pytest.param({"profiles": (OTHER_VALUES,)}, id="profile's values"),
        pytest.param({"profiles": (*BUILD.profiles, OTHER_SHAPE)}, id="another profile"),
        pytest.param({"profiles": ()}, id="no profile"),
        pytest.param(options(workspace=2**31), id="workspace"),
        pytest.param(options(optimization_level=4), id="optimisation level"),
        pytest.param(options(tf32=False), id="tf32"),
        pytest.param(options(version_compatible=True), id="version compatible"),
        pytest.param(options(hardware_compatible="ampere_plus"), id="hardware compatible"),
        pytest.param(options(plugins=(file("p.so", A),)), id="plugin's bytes"),
        pytest.param(options(plugins=()), id="no plugin"),
        pytest.param({"kind": "tensorrt_rtx"}, id="TensorRT-RTX"),
        pytest.param({"version": "11.2.1"}, id="TensorRT version"),
        pytest.param({"capability": "8.9"}, id="compute capability"),
    ],
)
def test_every_fact_that_decides_a_plan_changes_its_key(change):
    assert build_key(replace(BUILD, **change)) != build_key(BUILD)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"builder": "docker"}, id="who builds"),
        pytest.param({"timeout": 1.0}, id="time limit"),
        pytest.param({"shared_cache": "s3://bucket"}, id="shared cache"),
        pytest.param({"release": "26.03"}, id="release with the same TensorRT"),
    ],
)
def test_who_builds_where_does_not(change):
    assert build_key(replace(BUILD, **change)) == build_key(BUILD)


def test_the_order_of_profiles_counts_and_that_of_weights_files_does_not():
    two = replace(BUILD, profiles=(BUILD.profiles[0], OTHER_SHAPE))
    assert build_key(two) != build_key(replace(two, profiles=two.profiles[::-1]))
    more = (*BUILD.onnx, file("more.bin", C))
    assert build_key(replace(BUILD, onnx=more)) == build_key(replace(BUILD, onnx=(more[0], more[2], more[1])))


def test_one_flipped_byte_of_external_data_is_another_key(tmp_path):
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes(4096))
    before = replace(BUILD, onnx=(BUILD.onnx[0], model_file("weights.bin", weights)))
    weights.write_bytes(bytes(4000) + b"\1" + bytes(95))
    after = replace(BUILD, onnx=(BUILD.onnx[0], model_file("weights.bin", weights)))
    assert build_key(before) != build_key(after)
