from repogen import pbtxt, server
from repogen.desired import desired_models
from repogen.fingerprint import model_files
from repogen.object_layout import arranged, is_named_by_content
from repogen.publish import write_model
from repogen.render import render
from repogen.triton import Client
from tests.serverkit import needs_server, onnx_file

ECHO = """import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(r, "x").as_numpy() + 1)])
                for r in requests]
"""


def only(project):
    (model,) = desired_models(project / "repogen.yaml")
    return model


def test_the_name_is_made_of_the_content_and_stands_in_the_config(project):
    first = arranged(only(project))
    (name,) = model_files(first)
    assert is_named_by_content(name)
    config = pbtxt.parse(render(first))
    assert name == f"1/{config.default_model_filename}"
    assert list(config.version_policy.specific.versions) == [1]
    assert arranged(only(project)) == first
    onnx_file(
        project / "add.onnx",
        [("Mul", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    assert set(model_files(arranged(only(project)))).isdisjoint({name})


def test_a_version_policy_of_the_users_stays(project):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text() + "    versions: {all: true}\n")
    assert pbtxt.parse(render(arranged(only(project)))).version_policy.HasField("all")


def test_check_finds_nothing_wrong_with_it(project, invoke):
    write_model(model := arranged(only(project)), render(model), project / "repository" / "add")
    assert "error" not in invoke("check", project / "repository").stdout.lower().replace("0 errors", "")


class TestServed:
    pytestmark = needs_server

    def test_the_real_triton_loads_a_file_of_that_name(self, tmp_path):
        import numpy as np

        (tmp_path / "model.py").write_text(ECHO)
        (tmp_path / "repogen.yaml").write_text(
            'triton: "26.08"\nmodels:\n  echo:\n    source: model.py\n    backend: python\n    max_batch_size: 0\n'
            "    instances: [{kind: cpu}]\n    inputs: {x: {dtype: FP32, dims: [2]}}\n"
            "    outputs: {y: {dtype: FP32, dims: [2]}}\n"
        )
        model = arranged(only(tmp_path))
        write_model(model, render(model), tmp_path / "served" / "echo")
        with server.start(tmp_path / "served") as triton, Client(triton.grpc) as client:
            answer = client.infer("echo", {"x": np.zeros(2, np.float32)})
        assert answer["y"].tolist() == [1, 1]
