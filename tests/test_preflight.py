"""`inspect --tensorrt`: NVIDIA's own parser and builder say what would not work, without a GPU."""

import importlib.util
import json

import numpy as np
import pytest

from tests.serverkit import onnx_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None,
    reason="tensorrt-rtx is not installed (pip install 'repogen[tensorrt]')",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))


def test_a_graph_that_tensorrt_takes(tmp_path, invoke):
    onnx_file(tmp_path / "a.onnx", [("Relu", ["x"], ["y"], {})], [("x", "FLOAT", ["N", 4])], [("y", "FLOAT", ["N", 4])])
    said = invoke("inspect", "--tensorrt", tmp_path / "a.onnx").stdout
    assert "TensorRT: parsed and built in" in said
    assert "may differ, and the plan made here is not for Triton" in said


def test_every_unsupported_node_is_named_with_its_operator(tmp_path, invoke):
    onnx_file(
        tmp_path / "a.onnx",
        [
            ("Det", ["x"], ["a"], {"name": "first"}),
            ("Relu", ["a"], ["b"], {}),
            ("Det", ["x"], ["c"], {"name": "second"}),
            ("Add", ["b", "c"], ["y"], {}),
        ],
        [("x", "FLOAT", ["N", 4, 4])],
        [("y", "FLOAT", ["N"])],
    )
    result = invoke("inspect", "--tensorrt", "--json", tmp_path / "a.onnx", code=1)
    problems = json.loads(result.stdout)["tensorrt"]["problems"]
    assert [(row["operator"], row["node"]) for row in problems] == [("Det", "first"), ("Det", "second")]
    assert "TensorRT cannot take Det 'first'" in result.stderr


def test_types_that_strong_typing_refuses(tmp_path, invoke):
    from onnx import TensorProto

    onnx_file(
        tmp_path / "a.onnx",
        [("Cast", ["x"], ["h"], {"to": TensorProto.FLOAT16}), ("MatMul", ["h", "w"], ["y"], {})],
        [("x", "FLOAT", ["N", 4])],
        [("y", "FLOAT16", ["N", 4])],
        {"w": np.eye(4, dtype=np.float32)},
    )
    from repogen.files import model_file
    from repogen.model import Build, BuilderOptions, Profile
    from repogen.preflight import preflight

    profile = Profile({"x": ((1, 4), (1, 4), (1, 4))})
    files = (model_file("model.onnx", tmp_path / "a.onnx"),)
    found = preflight(Build(files, (profile,), BuilderOptions(), "tensorrt_rtx", "", ""))
    assert not found.passed
    assert any("type" in problem.message.lower() for problem in found.problems), found.problems


def test_an_input_without_a_profile_is_named(tmp_path):
    from repogen.files import model_file
    from repogen.model import Build, BuilderOptions
    from repogen.preflight import preflight, report

    onnx_file(tmp_path / "a.onnx", [("Relu", ["x"], ["y"], {})], [("x", "FLOAT", ["N", 4])], [("y", "FLOAT", ["N", 4])])
    files = (model_file("model.onnx", tmp_path / "a.onnx"),)
    found = preflight(Build(files, (), BuilderOptions(), "tensorrt_rtx", "", ""))
    assert found.missing_profiles == ("x",)
    assert report(found)[0].startswith("input 'x' has a free axis")
