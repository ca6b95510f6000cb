import shutil
import subprocess
import sys

import pytest

from repogen.desired import desired_models
from tests.conftest import ROOT
from tests.serverkit import needs_server


def test_one_sample_for_each_size_with_concrete_shapes(project):
    manifest = project / "repogen.yaml"
    manifest.write_text(
        manifest.read_text()
        + "    warmup: auto\n    dynamic_batching: {preferred_batch_size: [2]}\n    shapes: {W: {min: 1, opt: 5, max: 9}}\n"
    )
    (model,) = desired_models(manifest)
    samples = model.config["model_warmup"]
    assert [sample["batch_size"] for sample in samples] == [1, 2, 4]
    assert samples[0]["inputs"]["x"] == {"data_type": "TYPE_FP32", "dims": [5], "zero_data": True}


def test_known_values_become_a_file(project):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text() + "    warmup: auto\n    inputs: {x: {values: [2.5]}}\n")
    (model,) = desired_models(manifest)
    assert model.config["model_warmup"][0]["inputs"]["x"]["input_data_file"] == "input_0"
    (file,) = model.extra_files
    assert file.name == "warmup/input_0"
    assert set(memoryview(file.content).cast("f")) == {2.5}


@pytest.mark.server
@needs_server[1]
@pytest.mark.models
@pytest.mark.skipif(not (ROOT / "examples/models/magika.onnx").exists(), reason="python examples/fetch_models.py")
def test_the_real_server_runs_them(tmp_path):
    """A failing warm-up fails the load, so a ready server has run each of them."""
    for name in ("silero_vad", "text_rec", "magika"):
        shutil.copy(ROOT / "examples/models" / f"{name}.onnx", tmp_path)
    (tmp_path / "repogen.yaml").write_text(
        'triton: "26.08"\n'
        "defaults: {warmup: auto, instances: [{kind: cpu}]}\n"
        "models:\n"
        "  magika: {source: magika.onnx, max_batch_size: 4}\n"
        "  silero_vad: {source: silero_vad.onnx}\n"
        "  text_rec: {source: text_rec.onnx, max_batch_size: 2, dynamic_batching: {preferred_batch_size: [2]}}\n"
    )
    command = [sys.executable, "-m", "repogen", "serve", "-f", str(tmp_path / "repogen.yaml"), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("READY") == 3
