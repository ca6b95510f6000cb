import pytest

from repogen.errors import ManifestError
from repogen.manifest import load_manifest

GOOD = """\
triton: "26.08"
defaults:
  dynamic_batching: {max_queue_delay: 1ms}
  instances: [{kind: cpu}]
models:
  a:
    source: a.onnx
    dynamic_batching: {max_queue_delay: 2ms, preferred_batch_size: [4]}
  b:
    source: b.onnx
"""


def load(tmp_path, text):
    path = tmp_path / "repogen.yaml"
    path.write_text(text)
    return load_manifest(path)


def test_defaults_stand_under_each_model(tmp_path):
    manifest = load(tmp_path, GOOD)
    assert manifest.models["a"].dynamic_batching.max_queue_delay == 2000
    assert manifest.models["b"].dynamic_batching.max_queue_delay == 1000
    assert [group.kind for group in manifest.models["a"].instances] == ["cpu"]
    assert manifest.repository == tmp_path / "model_repository"
    assert manifest.model_path("a") == tmp_path / "a.onnx"


def test_an_unquoted_release_is_read_as_written(tmp_path):
    assert load(tmp_path, GOOD.replace('"26.08"', "26.10")).triton == "26.10"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("  b:\n", "  b:\n    max_batchsize: 3\n", r":10 models.b.max_batchsize: unknown key .*did you mean 'max_batch_size'"),
        ("max_queue_delay: 2ms", "max_queue: 2ms", r":8 models.a.dynamic_batching.max_queue: .*did you mean 'max_queue_delay'"),
        ("kind: cpu", "knd: cpu", r":4 defaults.instances\[0\].knd: .*did you mean 'kind'"),
        ("  b:\n", "  a:\n", r":9 models.a: 'a' is given twice, first on line 6"),
        ("2ms", "2", r":8 models.a.dynamic_batching.max_queue_delay: 2 is not a duration"),
        ("2ms", "2 parsecs", r":8 .*'2 parsecs' is not a duration"),
        ("  b:", "  b/c:", r":9 models.b/c: 'b/c' cannot be a model's name"),
        ("  b:", "  ..:", "cannot be a model's name"),
        ("  b:", "  'b ':", "cannot be a model's name"),
        ("  b:", "  b.:", "cannot be a model's name"),
        ("  b:", "  CON:", "cannot be a model's name"),
        ("  b:", "  é:", "cannot be a model's name"),
        ("  b:", "  '':", "cannot be a model's name"),
        ("  b:", f"  {'x' * 129}:", "cannot be a model's name"),
        ("  b:", "  A:", "'A' and 'a' are the same folder"),
        ("[4]", "[0]", r":8 models.a.dynamic_batching.preferred_batch_size\[0\]: must be at least 1, not 0"),
        ("kind: cpu", "kind: tpu", r"\.kind: input should be 'cpu', 'gpu', 'auto' or 'model', not 'tpu'"),
        ("[{kind: cpu}]", "[]", r":4 defaults.instances: must not be empty"),
        ("source: b.onnx", "sauce: b.onnx", r"did you mean 'source'"),
        ("    source: b.onnx\n", "    backend: python\n", r":9 models.b: 'source' is missing"),
        ("source: b.onnx", "source: b.onnx\n    backend: ensemble", r"an ensemble is made of its steps"),
        ("source: b.onnx", "source: b.onnx\n    precision: fp8", r":11 models.b.precision: fp8 is not built"),
        ("source: b.onnx", "source: b.onnx\n    version: '01'", r"must be a whole number, not '01'"),
        ("source: b.onnx", "source: b.onnx\n    shapes: {W: {min: 4, opt: 2, max: 8}}", "must ascend, not 4, 2, 8"),
        ('"26.08"', '"26.8"', r":1 triton: '26.8' is not a Triton release .*did you mean '26.08'"),
        (GOOD, "[]", "a manifest is a mapping"),
        (GOOD, "", "a manifest is a mapping"),
        (GOOD, "triton: '26.08'\nmodels: {}\n", r":2 models: must not be empty"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_line_and_key(tmp_path, before, after, message):
    assert before in GOOD
    with pytest.raises(ManifestError, match=message):
        load(tmp_path, GOOD.replace(before, after, 1))


def test_the_environment_is_expanded_in_paths_and_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELS", str(tmp_path / "secret"))
    manifest = load(tmp_path, GOOD.replace("a.onnx", "${MODELS}/a.onnx"))
    assert manifest.model_path("a") == tmp_path / "secret" / "a.onnx"
    monkeypatch.delenv("MODELS")
    with pytest.raises(ManifestError, match=r":7 models.a.source: the environment has no MODELS"):
        manifest.model_path("a")
