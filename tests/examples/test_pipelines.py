"""The example pipelines on the real server: the same answers as the libraries that their models come from."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.serverkit import needs_server

FOLDER = ROOT / "examples" / "pipelines"
needs_models = pytest.mark.skipif(
    not (ROOT / "examples" / "models" / "minilm.onnx").exists(),
    reason="python examples/fetch_models.py --pipelines and examples/pipelines/export_minilm.py bring them",
)


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.server
@needs_server[1]
@needs_models
def test_both_pipelines_answer_as_the_libraries_do(tmp_path):
    pytest.importorskip("tokenizers")
    manifest = tmp_path / "repogen.yaml"
    text = (FOLDER / "repogen.yaml").read_text()
    text = text.replace("steps/", f"{FOLDER}/steps/").replace("../", f"{FOLDER.parent}/")
    text = text.replace("samples: ", f"samples: {FOLDER}/")
    manifest.write_text(text)
    ask = f'{sys.executable} {FOLDER}/answers.py --url "$REPOGEN_URL"'
    command = [sys.executable, "-m", "repogen", "serve", "-f", str(manifest), "--", "sh", "-c", ask]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("least cosine 1.0000") == 2


@pytest.mark.models
@needs_models
def test_the_manifest_is_whole_and_its_code_is_what_it_names():
    from repogen.desired import desired_models

    models = {model.name: model for model in desired_models(FOLDER / "repogen.yaml")}
    assert [it.name for it in models["ocr"].outputs] == ["text", "confidence"]
    assert models["embed"].max_batch_size == 32
    assert [it.dims for it in models["embed"].outputs] == [(384,)]
    assert models["ocr"].max_batch_size == 0


@pytest.mark.models
@needs_models
def test_check_names_the_edge_of_every_broken_pipeline():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import ensembles as bench
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    for case in bench.broken(32, seed=3):
        found = bench.findings(case.tree)
        assert bench.names_the_edge(case, found), (case.kind, case.what, [one.message for one in found])
