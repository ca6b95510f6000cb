"""`repogen build`: what an indexed job runs."""

import importlib.util
import json

import pytest

from tests.serverkit import onnx_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="pip install 'repogen[tensorrt]'"
)


@pytest.fixture
def plans(project):
    for name in ("one", "two"):
        onnx_file(
            project / f"{name}.onnx",
            [("Add" if name == "one" else "Mul", ["x", "x"], ["y"], {})],
            [("x", "FLOAT", ["N", "W"])],
            [("y", "FLOAT", ["N", "W"])],
        )
    entry = "backend: tensorrt, max_batch_size: 4, shapes: {W: {min: 1, opt: 4, max: 8}}"
    (project / "repogen.yaml").write_text(
        'triton: "26.08"\ntensorrt: rtx\ngpu: "9.0"\nmodels:\n'
        f"  one: {{source: one.onnx, {entry}}}\n  two: {{source: two.onnx, {entry}}}\n  plain: {{source: add.onnx}}\n"
    )
    return project


def test_an_index_builds_its_own_model_into_the_cache_and_publishes_nothing(plans, invoke, monkeypatch, tmp_path):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    arguments = ["build", "-f", plans / "repogen.yaml", "-m", "one", "-m", "two", "--json"]
    assert json.loads(invoke(*arguments, "--index", "1").stdout) == {"built": ["two"], "models": ["two"]}
    assert json.loads(invoke(*arguments).stdout) == {"built": ["one"], "models": ["one", "two"]}
    assert not (plans / "model_repository").exists()
    assert "two  in the cache" in invoke("build", "-f", plans / "repogen.yaml", "-m", "two").stdout
    assert "plain  nothing to build" in invoke("build", "-f", plans / "repogen.yaml", "-m", "plain").stdout


def test_an_index_beyond_the_models_named(plans, invoke):
    said = invoke("build", "-f", plans / "repogen.yaml", "-m", "one", "--index", "1", code=2).stderr
    assert "--index: there are 1 models and no number 1" in said
