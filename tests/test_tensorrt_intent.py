"""How a model becomes a plan: target, types, profiles, instances, and the config that Triton reads."""

from pathlib import Path

import pytest

from repogen import pbtxt
from repogen.desired import desired_models
from repogen.embedded import embed
from repogen.errors import ManifestError
from repogen.manifest import load_manifest
from repogen.plan_tensors import differences
from repogen.releases import RELEASES
from repogen.render import render
from repogen.tensorrt_intent import server_flags, target_of, what_is_built
from tests.serverkit import onnx_file


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("repogen.plan_models.gpus", lambda: ())


def write(folder: Path, *lines, top=('gpu: "9.0"',), triton="26.03"):
    onnx_file(
        folder / "net.onnx",
        [("Gather", ["table", "ids"], ["e"], {}), ("ReduceMean", ["e"], ["y"], {"axes": [1], "keepdims": 0})],
        [("ids", "INT64", ["N", "T"])],
        [("y", "FLOAT", ["N", 4])],
        {"table": __import__("numpy").ones((10, 4), "float32")},
    )
    text = "".join(f"{line}\n" for line in (
        f'triton: "{triton}"', *top, "models:", "  net:", "    source: net.onnx", "    backend: tensorrt",
        "    max_batch_size: 8", "    shapes: {T: {min: 1, opt: 16, max: 128}}", *(f"    {line}" for line in lines),
    ))  # fmt: skip
    (folder / "repogen.yaml").write_text(text)
    return folder / "repogen.yaml"


def decided(folder, *lines, **more):
    return desired_models(write(folder, *lines, **more))[0]


def test_a_plan_is_for_the_release_and_the_gpu_of_the_manifest(tmp_path):
    model = decided(tmp_path)
    assert (model.build.kind, model.build.version, model.build.capability) == ("tensorrt", "10.16", "9.0")
    assert what_is_built(model.build) == "TensorRT 10.16, sm_90, fp32, batch up to 8"
    assert model.build.profiles[0].shapes == {"ids": ((1, 1), (8, 16), (8, 128))}


def test_the_config_is_one_of_a_plan(tmp_path):
    config = pbtxt.parse(render(decided(tmp_path, "optimization: {cuda_graphs: true}")))
    assert (config.backend, config.platform) == ("tensorrt", "tensorrt_plan")
    assert config.default_model_filename == "model.plan"
    assert config.optimization.cuda.graphs
    assert [group.Kind.Name(group.kind) for group in config.instance_group] == ["KIND_GPU"]
    assert list(config.instance_group[0].profile) == []


@pytest.mark.parametrize(
    ("triton", "dtype"), [("24.01", "TYPE_INT32"), ("24.05", "TYPE_INT64"), ("26.07", "TYPE_INT64")]
)
def test_int64_is_int32_before_tensorrt_10(tmp_path, triton, dtype):
    model = decided(tmp_path, triton=triton)
    assert model.inputs[0].dtype == dtype
    stand_in = embed(model, cpus=2)
    assert stand_in.parameters.get("narrowed", "[]") == ('["ids"]' if dtype == "TYPE_INT32" else "[]")


def test_every_profile_is_listed(tmp_path):
    model = decided(
        tmp_path, "profiles:", "  - {batch: {min: 1, opt: 1, max: 1}}", "  - {batch: {min: 1, opt: 8, max: 8}}",
        "instances: [{kind: gpu, count: 2}, {kind: gpu, profile: [1]}]",
    )  # fmt: skip
    config = pbtxt.parse(render(model))
    assert [list(group.profile) for group in config.instance_group] == [["0", "1"], ["1"]]


def test_a_manifest_may_name_a_tensorrt_that_is_not_its_releases(tmp_path):
    model = decided(tmp_path, top=('gpu: "9.0"', 'tensorrt: "8.6.0"'))
    assert model.build.version == "8.6.0"
    assert model.inputs[0].dtype == "TYPE_INT32"


def test_each_profile_is_warmed_up_at_its_best_size_and_at_those_that_are_batched_to(tmp_path):
    model = decided(
        tmp_path, "warmup: auto", "profiles:", "  - {batch: {min: 1, opt: 1, max: 1}}",
        "  - {batch: {min: 1, opt: 6, max: 8}, shapes: {T: {min: 1, opt: 100, max: 128}}}",
    )  # fmt: skip
    warmed = pbtxt.parse(render(model)).model_warmup
    assert [(sample.batch_size, list(sample.inputs["ids"].dims)) for sample in warmed] == [
        (1, [16]), (1, [100]), (6, [100]), (8, [100]),
    ]  # fmt: skip


def test_a_profile_that_an_instance_does_not_have_is_not_warmed_up(tmp_path):
    """Triton runs every sample on every instance, and one that fits none of its profiles fails the load."""
    model = decided(
        tmp_path, "warmup: auto", "profiles:", "  - {batch: {min: 1, opt: 1, max: 1}}",
        "  - {batch: {min: 4, opt: 6, max: 8}}", "instances: [{kind: gpu}, {kind: gpu, profile: [1]}]",
    )  # fmt: skip
    warmed = pbtxt.parse(render(model)).model_warmup
    assert [sample.batch_size for sample in warmed] == [6, 8]


def test_a_models_own_gpu_wins(tmp_path):
    assert decided(tmp_path, 'gpu: "8.9"').build.capability == "8.9"


def test_without_gpu_and_without_the_key_there_is_nothing_to_build_for(tmp_path):
    with pytest.raises(ManifestError, match="this machine has none to go by") as raised:
        decided(tmp_path, top=())
    assert "compute_cap" in raised.value.hint


def test_the_gpu_of_this_machine_is_the_default(tmp_path):
    manifest = load_manifest(write(tmp_path, top=()))
    entry = manifest.models["net"]
    target = target_of(manifest, entry, RELEASES["26.03"], here="8.9", rtx="", where=manifest.where)
    assert target.capability == "8.9"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["instances: [{kind: cpu}]"], "a plan runs on GPUs only"),
        (["instances: [{kind: gpu, profile: [1]}]"], "profile 1 does not exist: the plan has 1, from 0"),
        (["plugins: [lib.so]"], "there is no plugin library"),
        (['gpu: "7.5"', "hardware_compatible: ampere_plus"], "ampere_plus needs a GPU of compute capability 8.0"),
        (["builder: kubernetes"], "builder"),
        (["workspace: 8"], "is not a size"),
    ],
)
def test_what_a_plan_cannot_be(tmp_path, lines, message):
    with pytest.raises(ManifestError, match=message):
        decided(tmp_path, *lines)


def test_flags_that_the_server_needs_are_told(tmp_path):
    (tmp_path / "ops.so").write_bytes(b"\x7fELF")
    model = decided(tmp_path, "version_compatible: true", "plugins: [ops.so]")
    assert server_flags([model]) == (
        "--backend-config=tensorrt,version-compatible=true",
        "--backend-config=tensorrt,plugins=ops.so",
    )
    assert any("version-compatible=true" in note for note in model.notes)
    assert server_flags([decided(tmp_path)]) == ()


def test_a_tensor_without_axes_is_not_for_a_plan(tmp_path):
    manifest = write(tmp_path)
    onnx_file(
        tmp_path / "net.onnx",
        [("Mul", ["x", "by"], ["y"], {})],
        [("x", "FLOAT", ["N", 4]), ("by", "FLOAT", [])],
        [("y", "FLOAT", ["N", 4])],
    )
    manifest.write_text(
        manifest.read_text().replace("    shapes: {T: {min: 1, opt: 16, max: 128}}\n", "").replace("size: 8", "size: 0")
    )
    with pytest.raises(ManifestError, match="'by' has no axis"):
        desired_models(manifest)


def test_without_a_plan_the_graph_stands_in(tmp_path):
    stand_in = embed(decided(tmp_path), cpus=2)
    assert stand_in.backend == "python"
    assert [file.name for file in stand_in.files] == ["model.onnx", "model.py"]
    config = pbtxt.parse(render(stand_in))
    assert config.platform == ""
    assert config.instance_group[0].Kind.Name(config.instance_group[0].kind) == "KIND_CPU"


def row(kind, name, dtype, dims, **more):
    return {"kind": kind, "name": name, "dtype": dtype, "dims": dims, "shape_tensor": False, **more}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"dtype": "TYPE_INT32"}, ["input 'ids' is TYPE_INT32, not TYPE_INT64"]),
        ({"dims": [8, -1]}, ["input 'ids' has the fixed first axis 8, so the plan takes no batches"]),
        ({"dims": [-1]}, ["input 'ids' has 1 axes, not 2"]),
        ({"shape_tensor": True}, ["input 'ids' is one whose values are sizes"]),
        ({"name": "other"}, ["input 'ids' is missing", "it has another input 'other'"]),
    ],
)
def test_a_plan_is_compared_with_its_graph(tmp_path, change, said):
    rows = [row("input", "ids", "TYPE_INT64", [-1, -1]) | change, row("output", "y", "TYPE_FP32", [-1, 4])]
    assert differences(decided(tmp_path), rows) == said
