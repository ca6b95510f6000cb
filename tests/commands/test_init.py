import json
import shutil

import pytest
import yaml

from repogen.desired import desired_models


@pytest.fixture
def folder(project):
    (project / "repogen.yaml").unlink()
    (project / "sub").mkdir()
    shutil.copy(project / "add.onnx", project / "sub" / "model.onnx")
    shutil.copy(project / "add.onnx", project / "sub" / "Add.onnx")
    shutil.copy(project / "add.onnx", project / "sub" / "it's: a #model.onnx")
    return project


def test_a_folder_in_one_go_gives_a_manifest_that_plans(folder, invoke):
    text = invoke("init", folder, "-o", folder / "repogen.yaml", "--kind", "cpu").stdout
    assert "with 4 models" in text
    models = desired_models(folder / "repogen.yaml")
    assert sorted(model.name for model in models) == ["Add_2", "add", "it_s_a_model", "sub"]
    assert {model.max_batch_size for model in models} == {8}
    written = (folder / "repogen.yaml").read_text()
    assert all("#" in line for line in written.splitlines() if "max_batch_size" in line)
    invoke("plan", "-f", folder / "repogen.yaml")


def test_what_cannot_be_read_is_left_out_and_said(folder, invoke):
    (folder / "bad.onnx").write_bytes(b"junk")
    result = invoke("init", folder, "-o", folder / "repogen.yaml", "--json", code=1)
    assert list(json.loads(result.stdout)["left_out"]) == [str(folder / "bad.onnx")]
    assert "# bad: " in (folder / "repogen.yaml").read_text()
    assert "bad" not in yaml.safe_load((folder / "repogen.yaml").read_text())["models"]


def test_an_existing_manifest_is_not_overwritten_unasked(folder, invoke):
    (folder / "repogen.yaml").write_text("mine")
    assert "--force" in invoke("init", folder, "-o", folder / "repogen.yaml", code=2).stderr
    assert (folder / "repogen.yaml").read_text() == "mine"
    invoke("init", folder, "-o", folder / "repogen.yaml", "--force")


def test_a_folder_without_models(tmp_path, invoke):
    assert "no ONNX file" in invoke("init", tmp_path, "-o", tmp_path / "m.yaml", code=2).stderr
    assert not (tmp_path / "m.yaml").exists()
