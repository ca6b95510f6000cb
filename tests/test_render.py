import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repogen import pbtxt
from repogen.desired import desired_models
from repogen.errors import ManifestError
from repogen.model import DynamicBatching, Instances, ModelFile, ServedModel, ServedTensor
from repogen.render import render
from tests.serverkit import onnx_file

GOLDEN = Path(__file__).parent / "golden"

MODEL = ServedModel(
    name="m",
    backend="onnxruntime",
    source="m.onnx",
    max_batch_size=4,
    inputs=(ServedTensor("x", "TYPE_FP32", (3, -1)),),
    outputs=(ServedTensor("y", "TYPE_INT64", (1,), reshape=()),),
    instances=(Instances("gpu", 2, (0, 1)),),
    dynamic_batching=DynamicBatching(2000, (2, 4)),
    files=(ModelFile("model.onnx", Path("m.onnx"), "0" * 64, 7),),
)


@pytest.mark.parametrize("case", sorted(path.name for path in GOLDEN.iterdir()))
def test_golden(case, tmp_path, request):
    """Each folder of golden/ is a manifest and the config that it gives; `--update-golden` rewrites the latter."""
    shutil.copy(GOLDEN / case / "repogen.yaml", tmp_path)
    shutil.copytree(GOLDEN / case, tmp_path, dirs_exist_ok=True)
    onnx_file(
        tmp_path / "image.onnx",
        [("GlobalAveragePool", ["image"], ["p"], {}), ("Flatten", ["p"], ["scores"], {})],
        [("image", "FLOAT", ["N", 3, "H", "W"])],
        [("scores", "FLOAT", ["N", 3])],
    )
    onnx_file(
        tmp_path / "scalar.onnx",
        [("Mul", ["x", "k"], ["y"], {})],
        [("x", "FLOAT", [2, None]), ("k", "FLOAT", [])],
        [("y", "FLOAT", [2, None])],
    )
    onnx_file(tmp_path / "rank1.onnx", [("Neg", ["x"], ["y"], {})], [("x", "INT64", ["N"])], [("y", "INT64", ["N"])])
    for model in desired_models(tmp_path / "repogen.yaml"):
        expected = GOLDEN / case / f"{model.name}.pbtxt"
        text = render(model)
        if request.config.getoption("--update-golden"):
            expected.write_text(text)
        assert text == expected.read_text()
        assert pbtxt.parse(text).name == model.name


names = st.text(min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(tensor=names, output=names, key=st.text(max_size=20), value=names)
def test_any_text_round_trips(tensor, output, key, value):
    model = replace(
        MODEL,
        inputs=(ServedTensor(tensor, "TYPE_FP32", (1,)),),
        outputs=(ServedTensor(output, "TYPE_FP32", (1,)),),
        parameters={key: value},
    )
    try:
        text = render(model)
    except UnicodeEncodeError:
        assert any(0xD800 <= ord(c) <= 0xDFFF for c in tensor + output + key + value)
        return
    config = pbtxt.parse(text)
    assert config.input[0].name == tensor
    assert config.output[0].name == output
    if key != pbtxt.FINGERPRINT:
        assert config.parameters[key].string_value == value


@pytest.mark.parametrize(
    "name", ["{{ 7*7 }}", "{% import 'os' %}", "{# x #}", "a\nb", 'q"u', "b\\s", "}", "出力", "\x00"]
)
def test_template_syntax_in_names_is_text(name):
    text = render(replace(MODEL, inputs=(ServedTensor(name, "TYPE_FP32", (1,)),)))
    assert pbtxt.parse(text).input[0].name == name
    assert "49" not in text.replace(MODEL.name, "").split("repogen_fingerprint")[0]


def test_other_fields_are_merged_as_protobuf():
    model = replace(
        MODEL,
        config={
            "dynamic_batching": {"preserve_ordering": True},
            "response_cache": {"enable": True},
            "model_warmup": [{"name": "w", "batch_size": 1}],
        },
    )
    config = pbtxt.parse(render(model))
    assert config.dynamic_batching.preserve_ordering
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert config.response_cache.enable
    assert config.model_warmup[0].name == "w"


def test_a_list_replaces_ours():
    model = replace(MODEL, config={"instance_group": [{"kind": "KIND_CPU", "count": 3}]})
    assert [group.count for group in pbtxt.parse(render(model)).instance_group] == [3]


def test_another_scheduler_replaces_the_batcher():
    model = replace(MODEL, dynamic_batching=None, config={"sequence_batching": {"max_sequence_idle_microseconds": 5}})
    assert pbtxt.parse(render(model)).WhichOneof("scheduling_choice") == "sequence_batching"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"nope": 1}, 'no field named "nope"'),
        ({"name": "x"}, "may not set 'name'"),
        ({"optimization": 3}, "ModelConfig"),
    ],
)
def test_a_wrong_free_field_is_refused(extra, message):
    with pytest.raises(ManifestError, match=message):
        render(replace(MODEL, config=extra))


def test_the_fingerprint_changes_with_config_and_files():
    other_file = replace(MODEL, files=(ModelFile("model.onnx", Path("m.onnx"), "1" * 64, 7),))
    other_config = replace(MODEL, max_batch_size=5)
    marks = {
        pbtxt.parse(render(m)).parameters[pbtxt.FINGERPRINT].string_value for m in (MODEL, other_file, other_config)
    }
    assert len(marks) == 3
    assert render(MODEL) == render(MODEL)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ('name: "other"\nbackend: {{ config.backend | quote }}\n', "differs from what was meant"),
        ("nonsense {{ config.name }}\n", "cannot parse"),
        ("{{ missing_thing }}\n", "'missing_thing' is undefined"),
        ("{{ config.__class__.__mro__[1].__subclasses__() }}\n", "unsafe"),
    ],
)
def test_a_users_template_cannot_lie(tmp_path, template, message):
    (tmp_path / "config.pbtxt.j2").write_text(template)
    with pytest.raises(pbtxt.RenderError, match=message):
        render(replace(MODEL, templates=tmp_path))


def test_a_users_template_may_add_comments(tmp_path):
    (tmp_path / "_macros.j2").write_text(
        "# ours\n" + (Path(__file__).parents[1] / "templates" / "_macros.j2").read_text()
    )
    assert pbtxt.parse(render(replace(MODEL, templates=tmp_path))).name == "m"


def test_a_manifest_names_the_users_templates(project):
    folder = project / "ours"
    folder.mkdir()
    (folder / "_macros.j2").write_text(
        "# ours\n" + (Path(__file__).parents[1] / "templates" / "_macros.j2").read_text()
    )
    manifest = project / "repogen.yaml"
    manifest.write_text("templates: ours\n" + manifest.read_text())
    (model,) = desired_models(manifest)
    assert model.templates == folder
    assert pbtxt.parse(render(model)).max_batch_size == 4
    lying = project / "lying"
    lying.mkdir()
    (lying / "config.pbtxt.j2").write_text('name: "another"\n')
    with pytest.raises(pbtxt.RenderError, match="differs from what was meant"):
        render(replace(model, templates=lying))
    manifest.write_text(manifest.read_text().replace("templates: ours", "templates: none"))
    with pytest.raises(ManifestError, match=r"repogen.yaml:1 templates: .*none holds no templates"):
        desired_models(manifest)
