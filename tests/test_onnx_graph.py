"""What is read from an ONNX file, and what is refused before anything is read."""

import itertools
import os
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

from repogen import child
from repogen.errors import ModelError
from repogen.files import sha256
from repogen.onnx_graph import read_graph, refuse_what_is_not_onnx, with_weights
from tests.onnx_models import BOOL, FLOAT, INT64, STRING, elementwise, external, graph, info, linear, node, save


def read(path):
    refuse_what_is_not_onnx(path)
    return read_graph(path, sha256(path))


def test_axes_as_they_are_declared(tmp_path):
    path = elementwise(tmp_path / "m.onnx", ["N", None, 3, "floor(W/4)", "?"], None)
    found = read(path)
    assert found.inputs[0].dims == ("N", "x.1", 3, "floor(W/4)", "x.4")
    assert found.outputs[0].dims is None
    assert read(elementwise(tmp_path / "s.onnx", [], [])).inputs[0].dims == ()


def test_an_output_without_a_type_is_left_to_onnx_runtime(tmp_path):
    made = graph([node("Relu", ["x"])], [("x", FLOAT, ["N", 3])], [])
    made.output.add(name="y")
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert read(tmp_path / "m.onnx").outputs[0].dtype == ""
    from repogen.desired import read_and_prove

    _, proof, _ = read_and_prove(tmp_path / "m.onnx")
    assert (proof.outputs[0].dtype, proof.batchable) == ("TYPE_FP32", True)


def test_initializers_that_are_inputs_too_are_defaults(tmp_path):
    inputs = [("x", FLOAT, ["N", 3]), ("k", FLOAT, [3])]
    path = save(
        tmp_path / "m.onnx", [node("Mul", ["x", "k"])], inputs, [("y", FLOAT, ["N", 3])], {"k": np.ones(3, np.float32)}
    )
    found = read(path)
    assert [tensor.name for tensor in found.inputs] == ["x"]
    assert [tensor.name for tensor in found.defaults] == ["k"]


def test_operators_of_subgraphs_and_functions_are_counted(tmp_path):
    inner = graph([node("Relu", ["x"], ["a"])], [], [("a", FLOAT, ["N", 3])])
    other = graph([node("Relu", ["x"], ["b"])], [], [("b", FLOAT, ["N", 3])])
    nodes = [node("If", ["c"], ["i"], then_branch=inner, else_branch=other), node("Twice", ["i"], ["y"], domain="mine")]
    made = graph(nodes, [("x", FLOAT, ["N", 3]), ("c", BOOL, [])], [("y", FLOAT, ["N", 3])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    twice = helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], opsets[:1])
    model = helper.make_model(made, opset_imports=opsets, ir_version=8, functions=[twice])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = read(tmp_path / "m.onnx")
    assert found.operators == {"Add": 1, "If": 1, "Relu": 2, "mine:Twice": 1}
    assert (found.subgraphs, found.custom) == (2, ())


def test_sizes_that_depend_on_values_and_inputs_that_become_shapes(tmp_path):
    nodes = [
        node("NonZero", ["x"], ["z"], name="find"),
        node("Cast", ["n"], ["n64"], to=INT64),
        node("Concat", ["n64", "three"], ["shape"], axis=0),
        node("Expand", ["k", "shape"], ["e"], name="grow"),
    ]
    inputs = [("x", FLOAT, ["N", 3]), ("n", TensorProto.INT32, [1])]
    outputs = [("z", INT64, [2, "Z"]), ("e", FLOAT, ["A", 3])]
    constants = {"three": np.array([3]), "k": np.ones(1, np.float32)}
    found = read(save(tmp_path / "m.onnx", nodes, inputs, outputs, constants))
    assert found.data_dependent == ("NonZero 'find'",)
    assert found.shape_inputs == {"n": "Expand 'grow'"}
    assert found.hints["n"].range == (1, 4)


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "hints"),
    [
        (
            [node("Gather", ["t", "i"], axis=1)],
            [("i", INT64, ["N"])],
            {"t": np.ones((9, 5), np.float32)},
            {"i": (0, 5)},
        ),
        (
            [node("Gather", ["t", "i"], ["a"]), node("Gather", ["u", "i"], ["b"]), node("Add", ["a", "b"])],
            [("i", INT64, ["N"])],
            {"t": np.ones((9, 5), np.float32), "u": np.ones((7, 5), np.float32)},
            {"i": (0, 7)},
        ),
        (
            [node("Unsqueeze", ["i", "a"], ["j"]), node("GatherElements", ["t", "j"], axis=0)],
            [("i", INT64, [4])],
            {"t": np.ones((6, 1), np.float32), "a": np.array([1])},
            {"i": (0, 6)},
        ),
        ([node("Div", ["x", "d"])], [("x", INT64, ["N"]), ("d", INT64, ["N"])], {}, {"d": (1, 4)}),
        ([node("Gather", ["x", "i"], axis=1)], [("x", FLOAT, ["N", "S"]), ("i", INT64, [2])], {}, {"i": (0, 1)}),
    ],
)
def test_values_are_derived_from_the_graph(tmp_path, nodes, inputs, constants, hints):
    kind = INT64 if nodes[-1].op_type == "Div" else FLOAT
    found = read(save(tmp_path / "m.onnx", nodes, inputs, [("y", kind, None)], constants))
    assert {name: hint.range for name, hint in found.hints.items()} == hints
    assert all(hint.why for hint in found.hints.values())


def test_numbers_as_text_and_settings(tmp_path):
    nodes = [node("Cast", ["s"], ["f"], to=FLOAT), node("Equal", ["rate", "k"], ["e"])]
    inputs = [("s", STRING, ["N"]), ("rate", INT64, [])]
    found = read(
        save(tmp_path / "m.onnx", nodes, inputs, [("f", FLOAT, ["N"]), ("e", BOOL, [])], {"k": np.array(16000)})
    )
    assert found.hints["s"].values == ("1", "2", "3")
    assert found.hints["rate"].values == (16000,)


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/hostname", "sub/../../w.bin", "", ".", "w\0.bin", "link.bin", "linked/w.bin", "sub"]
)
def test_weights_outside_the_folder_or_behind_links(tmp_path, location):
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (home / "link.bin").symlink_to(tmp_path / "w.bin")
    (home / "linked").symlink_to(tmp_path)
    path = external(home / "m.onnx", {"location": location, "length": "16"})
    with pytest.raises(ModelError, match="weights of 'w' lie in .*(outside|not a regular file|not there)"):
        read(path)


def test_weights_behind_a_hard_link_a_fifo_or_a_device(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(16))
    os.link(tmp_path / "secret", tmp_path / "hard.bin")
    os.mkfifo(tmp_path / "fifo.bin")
    for location, message in (("hard.bin", "hard link"), ("fifo.bin", "not a regular file")):
        path = external(tmp_path / "m.onnx", {"location": location, "length": "16"})
        started = time.monotonic()
        with pytest.raises(ModelError, match=f"weights of 'w'.*{message}"):
            read(path)
        assert time.monotonic() - started < 10  # a FIFO that is opened waits for ever


def test_the_model_itself_is_no_weights_file(tmp_path):
    with pytest.raises(ModelError, match="the model itself"):
        read(external(tmp_path / "m.onnx", {"location": "m.onnx", "length": "16"}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-1", "length": "16"}, "have the offset '-1'"),
        ({"offset": "0", "length": "-16"}, "have the length '-16'"),
        ({"offset": "1e3", "length": "16"}, "have the offset '1e3'"),
        ({"offset": "0", "length": "16", "__class__": "x"}, "unknown key '__class__'"),
        ({"offset": "0", "length": "99999999999999"}, "have 99999999999999 bytes where its type and shape need 16"),
        ({"offset": "8", "length": "16"}, "end at byte 24 of 'w.bin', which has 16"),
        ({"offset": "99"}, "end at byte 115 of 'w.bin', which has 16"),
    ],
)
def test_spans_that_cannot_be_believed(tmp_path, entries, message):
    (tmp_path / "w.bin").write_bytes(bytes(16))
    with pytest.raises(ModelError, match=f"weights of 'w' .*{message}"):
        read(external(tmp_path / "m.onnx", {"location": "w.bin", **entries}))


def two_weights(path, spans):
    made = graph([node("Add", ["x", "w0"], ["a"]), node("Add", ["a", "w1"])], [("x", FLOAT, [4])], [("y", FLOAT, [4])])
    for index, (offset, length) in enumerate(spans):
        tensor = TensorProto(name=f"w{index}", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        made.initializer.append(tensor)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_may_share_a_span_but_not_lie_over_each_other(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(32))
    assert read(two_weights(tmp_path / "a.onnx", [(0, 16), (16, 16)])).external[0].size == 32
    assert read(two_weights(tmp_path / "b.onnx", [(0, 16), (0, 16)])).external[0].size == 32
    with pytest.raises(ModelError, match="weights of 'w1' lie over those of 'w0'"):
        read(two_weights(tmp_path / "c.onnx", [(0, 16), (8, 16)]))


def test_constants_beyond_fp16_in_weights_files_too(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.array([1, -1e6, np.nan, 5], np.float32).tobytes())
    path = external(tmp_path / "m.onnx", {"location": "w.bin", "offset": "0", "length": "16"})
    found = read(path)
    assert found.beyond_fp16 == ()
    assert with_weights(found, sha256(path)).beyond_fp16 == (("w", 1e6),)


def test_constants_beyond_fp16_of_every_kind(tmp_path):
    nodes = [
        node("Constant", [], ["a"], value_float=7e4),
        node("Constant", [], ["b"], value=helper.make_tensor("", FLOAT, [1], [float("-inf")])),
        node("Constant", [], ["c"], value_floats=[1.0, 65504.0]),
        *(
            node("Add", [one, two], [three])
            for one, two, three in (("x", "a", "d"), ("d", "b", "e"), ("e", "d64", "f"))
        ),
        node("Add", ["f", "c"]),
    ]
    constants = {"d64": np.float32(-3.4e38)}
    found = read(save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [2])], [("y", FLOAT, [2])], constants))
    assert dict(found.beyond_fp16) == {
        "a": 7e4,
        "b": float("inf"),
        "d64": pytest.approx(3.4e38),
    }


def test_a_prefix_of_a_model_is_never_taken_for_one(tmp_path):
    whole = linear(tmp_path / "m.onnx").read_bytes()
    cut = tmp_path / "cut.onnx"
    for length in itertools.chain(range(1, len(whole), len(whole) // 12), [len(whole) - 1]):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            read(cut)


def heavy(path):
    """48 MB of weights inside the file."""
    weights = {"w": np.zeros(12 * 10**6, np.float32)}
    return save(path, [node("Add", ["x", "w"])], [("x", FLOAT, [1])], [("y", FLOAT, [12 * 10**6])], weights)


def test_the_child_is_bounded_and_its_end_is_told(tmp_path):
    with pytest.raises(child.ChildFailed, match=r"needs more than .* of memory"):
        child.ask("onnx_facts", {"path": str(heavy(tmp_path / "m.onnx"))}, memory=100 * 2**20)
    with pytest.raises(child.ChildFailed, match="did not finish within 0"):
        child.ask("onnx_facts", {"path": "x"}, seconds=0.01)
    with pytest.raises(child.ChildFailed, match="it ended with .*KeyError"):
        child.ask("onnx_facts", {})


def test_too_little_memory_is_an_error_that_names_the_file(tmp_path):
    path = heavy(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be read: it needs more than"):
        read_graph(path, "another digest", memory=100 * 2**20)


def test_a_graph_of_a_hundred_thousand_nodes(tmp_path):
    count = 100_000
    nodes = [node("Identity", [f"t{index}"], [f"t{index + 1}"]) for index in range(count)]
    path = save(tmp_path / "m.onnx", nodes, [("t0", FLOAT, ["N", 4])], [(f"t{count}", FLOAT, ["N", 4])])
    assert read(path).operators == {"Identity": count}


def test_both_branches_are_looked_at(tmp_path):
    one = graph([node("Identity", ["x"], ["t"])], [], [("t", FLOAT, ["N"])])
    two = graph([node("Unsqueeze", ["x", "a"], ["e"])], [], [("e", FLOAT, ["N", 1])], {"a": np.array([1])})
    made = helper.make_graph(
        [node("If", ["c"], ["y"], name="fork", then_branch=one, else_branch=two)],
        "g",
        [info(("c", BOOL, [])), info(("x", FLOAT, ["N"]))],
        [info(("y", FLOAT, None))],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (sentence,) = read(tmp_path / "m.onnx").branches
    assert "If 'fork' gives rank" in sentence
