"""Real problem reports about models and their configs, each with the right value or the exact refusal.

The numbers are those of the reports that they retell; every test goes the way of the command line: a manifest and an
ONNX file in, models and their config.pbtxt out.
"""

import os
import shutil

import numpy as np
import pytest
from onnx import TensorProto, helper

from repogen import pbtxt
from repogen.desired import desired_models
from repogen.errors import ManifestError, ModelError
from repogen.files import sha256
from repogen.onnx_graph import read_graph
from repogen.render import render
from tests.onnx_models import BOOL, FLOAT, INT64, STRING, UINT8, elementwise, external, graph, linear, node, save


@pytest.fixture
def served(tmp_path):
    """Return the model that a manifest with one entry for `path` wants, and its parsed config.pbtxt."""

    def decide(path, entry="", triton="26.08"):
        manifest = tmp_path / "repogen.yaml"
        lines = "".join(f"\n    {line}" for line in entry.splitlines())
        manifest.write_text(
            f'triton: "{triton}"\nrepository: out\ndefaults: {{instances: [{{kind: cpu}}]}}\n'
            f"models:\n  m:\n    source: {path}{lines}\n"
        )
        (model,) = desired_models(manifest)
        return model, pbtxt.parse(render(model))

    return decide


def shape(config, name):
    return next(list(tensor.dims) for tensor in (*config.input, *config.output) if tensor.name == name)


def kind(config, name):
    from tritonclient.grpc import model_config_pb2

    number = next(tensor.data_type for tensor in (*config.input, *config.output) if tensor.name == name)
    return model_config_pb2.DataType.Name(number)


def notes(model):
    return "\n".join(model.notes)


def test_case_1_a_fixed_batch_of_one_stays_in_the_dims(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", [1, 3, 512, 512], [1, 3, 512, 512])
    model, config = served(path, "max_batch_size: 1")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert shape(config, "x") == [1, 3, 512, 512]
    assert "axis 0 of input 'x' is fixed at 1" in model.notes[0]
    with pytest.raises(ManifestError, match=r"dynamic_batching.*max_batch_size is 0.*fixed at 1"):
        served(path, "dynamic_batching: true")


def test_case_3_a_literal_is_never_widened_and_looks_like_a_trace(tmp_path, served):
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("ReduceMean", ["e"], ["m"], axes=[1]),
        node("Expand", ["m", "s"], ["logits"]),
    ]
    table = np.ones((100, 25), np.float32)
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [("ids", INT64, ["N", "S"])],
        [("logits", FLOAT, ["N", 256, 25])],
        {"table": table, "s": np.array([1, 256, 25])},
    )
    model, config = served(path)
    assert shape(config, "logits") == [256, 25]
    assert "axis 1 of output 'logits' is 256 although S of input 'ids' is free" in notes(model)


def test_case_4_a_typo_in_dims_names_the_axis(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", [1, 3, 224, 224], [1, 3, 224, 224])
    with pytest.raises(ManifestError, match=r"axis 3 of 'x': the graph has 224, the manifest 244"):
        served(path, "inputs: {x: {dims: [1, 3, 224, 244]}}")


def test_case_5_no_layout_is_written_for_four_dims(tmp_path, served):
    _, config = served(elementwise(tmp_path / "m.onnx", [1, 3, 300, 300], [1, 3, 300, 300]), "max_batch_size: 1")
    assert (config.max_batch_size, shape(config, "x"), config.input[0].format) == (0, [1, 3, 300, 300], 0)


def test_case_6_one_default_for_a_hundred_models(tmp_path):
    linear(tmp_path / "m0.onnx")
    for index in range(1, 100):
        shutil.copy(tmp_path / "m0.onnx", tmp_path / f"m{index}.onnx")
    entries = "".join(f"  m{index}: {{source: m{index}.onnx}}\n" for index in range(99))
    manifest = tmp_path / "repogen.yaml"
    manifest.write_text(
        'triton: "26.08"\ndefaults: {max_batch_size: 16, instances: [{kind: cpu}]}\nmodels:\n'
        f"{entries}  m99: {{source: m99.onnx, max_batch_size: 2}}\n"
    )
    models = desired_models(manifest)
    assert [model.max_batch_size for model in models] == [16] * 99 + [2]
    assert all("as asked; batching proved" in model.notes[0] for model in models)


def test_case_7_and_11_batching_a_static_graph_is_refused_before_any_build(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", [1, 3, 224, 224], [1, 3, 224, 224])
    with pytest.raises(ManifestError, match=r"max_batch_size.*16 is asked.*fixed at 1.*free batch axis"):
        served(path, "max_batch_size: 16")


@pytest.mark.parametrize("declared", [["N", 3], ["M", 3], ["N", "K"], None])
def test_case_8_a_batch_baked_into_a_reshape_is_named(tmp_path, served, declared):
    path = save(
        tmp_path / "m.onnx",
        [node("Reshape", ["x", "shape"], ["y"], name="/head/Reshape")],
        [("x", FLOAT, ["N", 3])],
        [("y", FLOAT, declared)],
        {"shape": np.array([1, 3])},
    )
    model, config = served(path)
    assert config.max_batch_size == 0
    assert "Reshape '/head/Reshape' with the constant 'shape' [1, 3]" in model.notes[0]


def test_case_8_a_batch_baked_in_before_the_last_node_is_named_too(tmp_path, served):
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "shape"], ["s"], name="flatten"),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [("x", FLOAT, ["N", 2, 3])],
        [("y", FLOAT, ["N", 2])],
        {"shape": np.array([1, 6]), "w": np.ones((6, 2), np.float32)},
    )
    model, _ = served(path)
    assert model.max_batch_size == 0
    assert "Reshape 'flatten' with the constant 'shape' [1, 6]" in model.notes[0]


def test_case_9_answers_that_depend_on_the_neighbours(tmp_path, served):
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0], name="mean"), node("Sub", ["x", "m"])]
    path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 3])], [("y", FLOAT, ["N", 3])])
    model, config = served(path)
    assert config.max_batch_size == 0
    assert "answers change at batch 2: output 'y'" in model.notes[0]
    assert "ReduceMean 'mean'" in model.notes[0]
    with pytest.raises(ManifestError, match="8 is asked, but this model cannot be batched"):
        served(path, "max_batch_size: 8")


def test_case_10_the_batch_axis_needs_no_range_of_its_own(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", ["BATCHSIZE", 3, "H", 224], ["BATCHSIZE", 3, "H", 224])
    model, config = served(path, "max_batch_size: 16\nshapes: {H: {min: 32, opt: 64, max: 128}}")
    assert set(model.shapes) == {"H"}
    assert (config.max_batch_size, shape(config, "x")) == (16, [3, -1, 224])
    with pytest.raises(ManifestError, match=r"shapes\.W.*no free axis 'W'.*free axes: BATCHSIZE, H"):
        served(path, "shapes: {W: {min: 1, opt: 1, max: 2}}")


def test_case_14_and_15_a_profile_that_does_not_begin_at_one(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", ["N", 16], ["N", 16])
    with pytest.raises(ManifestError, match=r"shapes\.N.*begins at 4.*the batcher may send 1"):
        served(path, "max_batch_size: 8\nshapes: {N: {min: 4, opt: 8, max: 8}}")
    with pytest.raises(ManifestError, match=r"ends at 300, but max_batch_size is 256"):
        served(path, "max_batch_size: 256\nshapes: {x.0: {min: 1, opt: 128, max: 300}}")
    assert served(path, "max_batch_size: 8\nshapes: {N: {min: 1, opt: 4, max: 8}}")[0].max_batch_size == 8


def test_case_16_a_scalar_input(tmp_path, served):
    nodes = [node("Cast", ["t"], ["f"], to=FLOAT), node("Mul", ["x", "f"])]
    path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 4]), ("t", INT64, [])], [("y", FLOAT, ["N", 4])])
    model, config = served(path)
    assert (config.max_batch_size, shape(config, "t"), shape(config, "x")) == (0, [1], [-1, 4])
    assert "input 't' is a scalar" in model.notes[0]


def test_case_16_an_unknown_rank_is_not_a_scalar(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", None, None)
    with pytest.raises(ModelError, match="gives no rank for input 'x'"):
        served(path)


def test_case_18_a_scalar_output(tmp_path, served):
    path = save(
        tmp_path / "m.onnx", [node("ReduceSum", ["x"], ["z"], keepdims=0)], [("x", FLOAT, ["N", 3])], [("z", FLOAT, [])]
    )
    model, config = served(path)
    assert (config.max_batch_size, shape(config, "z")) == (0, [1])
    assert "output 'z' is a scalar: drop it from the graph's outputs" in model.notes[0]


def test_case_20_and_21_the_graphs_type_is_right(tmp_path, served):
    path = save(
        tmp_path / "m.onnx", [node("Cast", ["users"], to=FLOAT)], [("users", INT64, ["N"])], [("y", FLOAT, ["N"])]
    )
    with pytest.raises(ManifestError, match=r"the graph has TYPE_INT64, the manifest FP32 \(use TYPE_INT64\)"):
        served(path, "inputs: {users: {dtype: FP32}}")
    _, config = served(path)
    assert (shape(config, "users"), kind(config, "users")) == ([1], "TYPE_INT64")
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []


def test_case_22_bytes_stay_bytes(tmp_path, served):
    nodes = [node("Cast", ["image"], ["f"], to=FLOAT), node("Mul", ["f", "k"])]
    spec = [("image", UINT8, ["N", "H", "W", 3])]
    path = save(tmp_path / "m.onnx", nodes, spec, [("y", FLOAT, ["N", "H", "W", 3])], {"k": np.float32(1 / 255)})
    model, config = served(path)
    assert (kind(config, "image"), shape(config, "image"), model.max_batch_size) == ("TYPE_UINT8", [-1, -1, 3], 8)
    assert model.hints["image"].range == (0, 256)


def test_case_23_a_bool_mask(tmp_path, served):
    nodes = [node("Where", ["mask", "ids", "zero"], ["y"])]
    inputs = [("mask", BOOL, ["N", "S"]), ("ids", INT64, ["N", "S"])]
    path = save(tmp_path / "m.onnx", nodes, inputs, [("y", INT64, ["N", "S"])], {"zero": np.array(0)})
    model, config = served(path)
    assert (kind(config, "mask"), model.max_batch_size) == ("TYPE_BOOL", 8)


@pytest.mark.parametrize(("element", "expected"), [(FLOAT, "TYPE_FP32"), (TensorProto.FLOAT16, "TYPE_FP16")])
def test_case_24_the_type_outside_is_the_graphs(tmp_path, served, element, expected):
    _, config = served(elementwise(tmp_path / "m.onnx", ["N", 8], ["N", 8], element))
    assert kind(config, "x") == kind(config, "y") == expected


def test_case_26_strings_keep_the_axis_beside_the_batch(tmp_path, served):
    _, config = served(elementwise(tmp_path / "m.onnx", ["N", 1], ["N", 1], STRING))
    assert (config.max_batch_size, shape(config, "x"), kind(config, "x")) == (8, [1], "TYPE_STRING")


@pytest.mark.parametrize(
    "name", ["Inputs/uid_batch_ph:0", "images:0", "onnx::Cast_0", "a.b", 'q"u\\o', "出力", "{{7*7}}"]
)
def test_case_28_names_are_kept_byte_for_byte(tmp_path, served, name):
    path = save(tmp_path / "m.onnx", [node("Relu", [name], ["y"])], [(name, FLOAT, ["N", 3])], [("y", FLOAT, ["N", 3])])
    model, config = served(path)
    assert config.input[0].name == model.inputs[0].name == name


def test_case_30_an_unused_input_must_be_sent(tmp_path, served):
    inputs = [("x", FLOAT, ["N", 3]), ("u", INT64, ["N", 1])]
    model, config = served(save(tmp_path / "m.onnx", [node("Relu", ["x"])], inputs, [("y", FLOAT, ["N", 3])]))
    assert [tensor.name for tensor in config.input] == ["x", "u"]
    assert "input 'u' is read by no node, but every request must carry it" in notes(model)


def test_case_32_weights_beside_the_model_are_published_with_it(tmp_path, served):
    path = external(tmp_path / "m.onnx", {"location": "weights/w.bin", "offset": "0", "length": "16"})
    with pytest.raises(ModelError, match=r"weights of 'w' lie in 'weights/w.bin', which is not there"):
        served(path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    model, _ = served(path)
    assert [file.name for file in model.files] == ["model.onnx", "weights/w.bin"]
    assert model.max_batch_size == 8


def test_case_34_what_people_copy_in_place_of_a_model(tmp_path, served):
    linear(tmp_path / "good.onnx")
    whole = (tmp_path / "good.onnx").read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for content, message in (
        (b"", "is empty"),
        (pointer, "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "HTML or XML page"),
        (b'{"message": "Not Found"}', "JSON text"),
        (os.urandom(4000), "is not an ONNX file|holds no graph|cannot be read"),
    ):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ModelError, match=message):
            served(tmp_path / "bad.onnx")
    for length in range(3, len(whole), 19):
        (tmp_path / "bad.onnx").write_bytes(whole[:length])
        with pytest.raises(ModelError):
            served(tmp_path / "bad.onnx")


def test_case_49_optional_sequence_and_map_are_refused_by_name(tmp_path, served):
    tensor = helper.make_tensor_type_proto(FLOAT, ["N", 3])
    types = {
        "optional": helper.make_optional_type_proto(tensor),
        "sequence": helper.make_sequence_type_proto(tensor),
        "map": helper.make_map_type_proto(INT64, tensor),
    }
    for what, proto in types.items():
        made = graph([node("Relu", ["x"])], [("x", FLOAT, ["N", 3])], [("y", FLOAT, ["N", 3])])
        made.input.append(helper.make_value_info("extra", proto))
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=f"input 'extra' is an? {what}, not a tensor"):
            served(tmp_path / "m.onnx")


def test_case_51_custom_operators_are_listed(tmp_path, served):
    nodes = [node("Foo", ["x"], ["a"], domain="acme"), node("Foo", ["a"], ["y"], domain="acme")]
    path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 3])], [("y", FLOAT, ["N", 3])], domains={"acme": 1})
    with pytest.raises(ModelError, match=r"acme:Foo \(2 nodes\).*op_library_filename"):
        served(path)
    model, config = served(path, "config: {model_operations: {op_library_filename: [/opt/libacme.so]}}")
    assert list(config.model_operations.op_library_filename) == ["/opt/libacme.so"]
    assert "ONNX Runtime does not open it" in model.notes[0]


def test_case_52_branches_of_unlike_rank(tmp_path, served):
    then = graph([node("Identity", ["x"], ["t"])], [], [("t", FLOAT, ["N"])])
    other = graph([node("Unsqueeze", ["x", "axes"], ["e"])], [], [("e", FLOAT, ["N", 1])], {"axes": np.array([1])})
    path = save(
        tmp_path / "m.onnx",
        [node("If", ["cond"], ["y"], name="squeeze", then_branch=then, else_branch=other)],
        [("cond", BOOL, []), ("x", FLOAT, ["N"])],
        [("y", FLOAT, None)],
    )
    with pytest.raises(
        ModelError, match=r"no rank for output 'y'.*If 'squeeze' gives rank .* branch.*fold the condition"
    ):
        served(path)


def test_case_55_constants_beyond_fp16_are_found(tmp_path, served):
    nodes = [node("Mul", ["x", "huge"], ["m"]), node("ReduceMean", ["m"], axes=[1], keepdims=0)]
    path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 8])], [("y", FLOAT, ["N"])], {"huge": np.float32(1e12)})
    model, _ = served(path)
    assert "constants that FP16 cannot hold: huge 1e+12" in notes(model)
    assert read_graph(path, sha256(path)).beyond_fp16[0][0] == "huge"


def test_case_57_a_protobuf_over_two_gib_is_refused_unread(tmp_path, served):
    with (tmp_path / "m.onnx").open("wb") as file:
        file.write(b"\x08\x08")
        file.truncate(2**31)
    with pytest.raises(ModelError, match="cannot have more than 2 GiB.*external data"):
        served(tmp_path / "m.onnx")


def test_case_64_indices_stay_inside_their_table(tmp_path, served):
    table = {"table": np.arange(400, dtype=np.float32).reshape(100, 4)}
    path = save(
        tmp_path / "m.onnx",
        [node("Gather", ["table", "ids"])],
        [("ids", INT64, ["N", "S"])],
        [("y", FLOAT, ["N", "S", 4])],
        table,
    )
    model, config = served(path)
    assert config.max_batch_size == 8
    assert model.hints["ids"].range == (0, 100)
    assert "values of 'ids': 0 to 99 (rows of 'table'" in notes(model)
    assert "requests that differ in S are never merged" in notes(model)


def test_case_64_integers_of_which_nothing_is_known_are_flagged(tmp_path, served):
    path = save(
        tmp_path / "m.onnx", [node("Cast", ["n"], to=FLOAT)], [("n", INT64, ["N", 2])], [("y", FLOAT, ["N", 2])]
    )
    assert "values of 'n': 0 and 1, nothing is known of them" in notes(served(path)[0])
    model, _ = served(path, "inputs: {n: {range: [0, 50]}}")
    assert "nothing is known" not in notes(model)


@pytest.mark.parametrize("element", ["FLOAT8E4M3FN", "INT4", "UINT4", "COMPLEX64", "COMPLEX128", "FLOAT4E2M1"])
def test_types_that_triton_does_not_carry_are_refused_by_name(tmp_path, served, element):
    path = elementwise(tmp_path / "m.onnx", ["N", 3], ["N", 3], getattr(TensorProto, element))
    with pytest.raises(ModelError, match=f"input 'x' has type {element}, which Triton does not carry"):
        served(path)


@pytest.mark.parametrize(
    ("opset", "ir", "triton", "message"),
    [
        (21, 11, "24.10", "IR version 11, and ONNX Runtime 1.19.2 of Triton 24.10 opens up to 10"),
        (22, 10, "24.10", "opset 22 of ai.onnx, and ONNX Runtime 1.19.2 of Triton 24.10 knows up to 21"),
        (24, 11, "25.11", "opset 24 of ai.onnx, and ONNX Runtime 1.23.2 of Triton 25.11 knows up to 23"),
    ],
)
def test_models_newer_than_the_pinned_release(tmp_path, served, opset, ir, triton, message):
    path = save(
        tmp_path / "m.onnx",
        [node("Relu", ["x"])],
        [("x", FLOAT, ["N", 3])],
        [("y", FLOAT, ["N", 3])],
        opset=opset,
        ir=ir,
    )
    with pytest.raises(ManifestError, match=f"triton: .*{message}.*pin triton: '2[56]"):
        served(path, triton=triton)
    assert served(path, triton="26.08")[0].max_batch_size == 8


def test_bf16_before_the_backend_had_it(tmp_path, served):
    path = elementwise(tmp_path / "m.onnx", ["N", 4], ["N", 4], TensorProto.BFLOAT16)
    with pytest.raises(
        ManifestError, match=r"triton: .*'x' of type BF16, which the onnxruntime backend has from 26\.03 on"
    ):
        served(path, triton="26.02")
    _, config = served(path, triton="26.03")
    assert (kind(config, "x"), config.max_batch_size) == ("TYPE_BF16", 0)
