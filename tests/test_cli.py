import json
import os
import subprocess
import sys

import pytest

from tests.conftest import tree


def test_wrong_models_are_one_line_errors_and_nothing_is_written(project, invoke):
    whole = (project / "add.onnx").read_bytes()
    cases = {
        "missing": (None, "there is no such file"),
        "empty": (b"", "is empty"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer.*git lfs pull"),
        "html": (b"<!DOCTYPE html><html>", "HTML or XML page"),
        "truncated": (whole[: len(whole) // 2], "not an ONNX file, or was cut short"),
        "text": (b"hello there", "not an ONNX file"),
    }
    for name, (content, message) in cases.items():
        (project / "add.onnx").unlink(missing_ok=True)
        if content is not None:
            (project / "add.onnx").write_bytes(content)
        check_refused(project, invoke, message, ":7 models.add.source", name)
    (project / "add.onnx").unlink(missing_ok=True)
    (project / "add.onnx").mkdir()
    check_refused(project, invoke, "is a directory", ":7 models.add.source", "directory")


def check_refused(project, invoke, message, where, name):
    import re

    before = tree(project)
    result = invoke("sync", "-f", project / "repogen.yaml", code=2)
    error = result.stderr.strip()
    assert len(error.splitlines()) == 1, name
    assert re.search(message, error), error
    assert where in error, error
    assert "Traceback" not in result.output
    assert tree(project) == before
    assert not (project / "served").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("max_batch_size", "max_batchsize", "did you mean 'max_batch_size'"),
        ("    max_batch_size: 4\n", "    max_batch_size: 4\n    max_batch_size: 5\n", "given twice"),
        ("    max_batch_size: 4\n", "    dynamic_batching: {max_queue_delay: 2 furlongs}\n", "is not a duration"),
        ("  add:", "  a/b:", "cannot be a model's name"),
    ],
)  # fmt: skip
def test_wrong_manifests_likewise(project, invoke, before, after, message):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace(before, after, 1))
    check_refused(project, invoke, message, "repogen.yaml:", message)


def test_a_truncated_file_is_refused_at_every_length(project, invoke):
    from repogen.errors import ModelError
    from repogen.onnx_graph import read_graph, refuse_what_is_not_onnx

    whole = (project / "add.onnx").read_bytes()
    cut = project / "cut.onnx"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        try:
            refuse_what_is_not_onnx(cut)
            graph = read_graph(cut, f"cut at {length}")
        except ModelError:
            continue
        assert graph.outputs, length  # a prefix that is a whole protobuf, and has a graph with outputs


def test_a_second_sync_writes_nothing_and_says_so(project, invoke):
    assert "published 1 of 1" in invoke("sync", "-f", project / "repogen.yaml").stdout
    before = {path: path.stat().st_ctime_ns for path in (project / "served").rglob("*")}
    assert "nothing to do" in invoke("sync", "-f", project / "repogen.yaml").stdout
    assert {path: path.stat().st_ctime_ns for path in (project / "served").rglob("*")} == before


def test_plan_changes_nothing_and_tells_by_its_exit_code(project, invoke):
    before = tree(project)
    invoke("plan", "-f", project / "repogen.yaml")
    result = invoke("plan", "-f", project / "repogen.yaml", "--exit-code", "--json", code=1)
    assert json.loads(result.stdout)["counts"] == {"create": 1}
    assert tree(project) == before
    invoke("sync", "-f", project / "repogen.yaml")
    invoke("plan", "-f", project / "repogen.yaml", "--exit-code")


def test_hand_edits_are_not_overwritten(project, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    config = project / "served/models/add/config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    result = invoke("sync", "-f", project / "repogen.yaml", code=1)
    assert "add would be overwritten" in result.stderr
    assert config.read_text().endswith("# mine\n")
    invoke("sync", "-f", project / "repogen.yaml", "--overwrite")
    assert not config.read_text().endswith("# mine\n")


def test_json_is_one_document_on_stdout(project, invoke):
    for arguments in (["plan"], ["sync"], ["inspect"]):
        target = [project / "add.onnx"] if arguments == ["inspect"] else ["-f", project / "repogen.yaml"]
        result = invoke(*arguments, *target, "--json")
        json.loads(result.stdout)
    result = invoke("plan", "-f", project / "none.yaml", "--json", code=2)
    assert json.loads(result.stdout)["error"]["kind"] == "ManifestError"


def test_inspect_proves_batching_and_shows_an_entry(project, invoke):
    text = invoke("inspect", project / "add.onnx").stdout
    assert "batching: yes, proved at batch 1, 2, 3 and 8" in text
    assert "source: " in text
    found = json.loads(invoke("inspect", project / "add.onnx", "--json").stdout)
    assert found["inputs"] == [{"name": "x", "dtype": "TYPE_FP32", "shape": ["N", "W"]}]
    assert found["batching"]["proved"] is True


def test_verify_without_a_server_says_what_to_do(project, invoke):
    assert "repogen serve" in invoke("verify", "-f", project / "repogen.yaml", code=4).stderr
    result = invoke("verify", "-f", project / "repogen.yaml", "--url", "127.0.0.1:1", code=4)
    assert "no Triton answers at 127.0.0.1:1" in result.stderr
    assert "no model 'x'" in invoke("verify", "-f", project / "repogen.yaml", "-m", "x", code=2).stderr


def test_a_bug_is_told_as_one_with_its_traceback_in_a_file(project, invoke, monkeypatch, tmp_path):
    import repogen.commands.plan

    def broken(*_, **__):
        raise RuntimeError("oh no")

    monkeypatch.setattr(repogen.commands.plan, "planned", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = invoke("plan", "-f", project / "repogen.yaml", code=70)
    assert "a bug in repogen: RuntimeError: oh no" in result.stderr
    (log,) = tmp_path.glob("repogen-*.log")
    assert "Traceback" in log.read_text()


def test_usage_errors_exit_2(invoke):
    invoke("nonsense", code=2)
    invoke("plan", "--nope", code=2)
    invoke("inspect", code=2)


def test_colour_only_on_a_terminal(project):
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-m", "repogen", "plan", "-f", project / "repogen.yaml"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert "\x1b" not in done.stdout + done.stderr


def test_schema_is_a_json_schema_that_accepts_the_manifest(project, invoke):
    import jsonschema
    import yaml

    schema = json.loads(invoke("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    manifest = yaml.safe_load((project / "repogen.yaml").read_text())
    jsonschema.validate(manifest, schema)
    manifest["models"]["add"]["max_batchsize"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, schema)
