"""How the ONNX files beside a config are read: in one child, once a content, whatever they hold."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from repogen.check import onnx_file_rules, onnx_shape_rules, onnx_tensor_rules, onnxruntime_rules
from repogen.check.engine import check_repository
from repogen.check.examples import write_tree
from repogen.check.onnx_examples import CONFIG, constant, model_bytes, node, onnx_model, tensor
from repogen.check.onnx_facts import onnx_files, read_onnx
from repogen.check.subject import read_repository
from repogen.check.target import target_of
from tests import onnx_cases as graphs

RULES = (*onnx_file_rules.RULES, *onnx_shape_rules.RULES, *onnx_tensor_rules.RULES, *onnxruntime_rules.RULES)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))


def seen(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return read_onnx(path)


def dims(facts):
    return [row.dims for row in facts.outputs]


def test_tensors_are_told_as_the_backend_sees_them(tmp_path):
    facts = seen(tmp_path, graphs.with_unused())
    assert [(it.name, it.dtype, it.dims) for it in facts.inputs] == [
        ("x", "TYPE_FP32", (-1, 4)),
        ("u", "TYPE_FP32", (-1, 4)),
    ]
    assert facts.unused == ("u",)
    assert (facts.ir_version, facts.opsets["ai.onnx"]) == (8, 17)


@pytest.mark.parametrize(("ir", "overridable"), [(3, []), (8, ["k"])])
def test_constants_that_are_inputs_may_be_overridden_from_ir_4(ir, overridable, tmp_path):
    facts = seen(tmp_path, graphs.with_default(ir))
    assert [row.name for row in facts.inputs] == ["x"]
    assert [row.name for row in facts.overridable] == overridable
    assert facts.defaults == ("k",)


@pytest.mark.parametrize(
    ("data", "shape", "by"),
    [
        pytest.param(graphs.product(None), (-1, 3), "onnx", id="inference-alone"),
        pytest.param(graphs.unary(), (-1, 4), "onnx", id="settled-by-what-is-declared"),
        pytest.param(graphs.contradicted(), (-1, 3), "onnxruntime", id="contradiction"),
        pytest.param(graphs.product(("N", 5)), (-1, -1), "onnxruntime", id="contradiction-that-stays"),
        pytest.param(graphs.compressed(), (-1, 4), "onnxruntime", id="depends-on-values"),
        pytest.param(graphs.unary(x=("N", "S"), y=("N", "S")), (-1, -1), "onnx", id="follows-an-input"),
    ],
)
def test_a_session_is_opened_only_where_inference_leaves_something_open(data, shape, by, tmp_path):
    facts = seen(tmp_path, data)
    assert (dims(facts), facts.seen_by) == ([shape], by)


def test_rows_that_follow_the_batch_need_no_run(tmp_path):
    assert seen(tmp_path, graphs.unary(x=(None, 4), y=(None, 4))).rows_follow
    (tmp_path / "other").mkdir()
    assert not seen(tmp_path / "other", graphs.doubled()).rows_follow


def test_operators_inside_branches_are_found(tmp_path):
    from onnx import helper

    branches = [
        helper.make_graph([helper.make_node("Foo", ["x"], [name], domain="my.custom")], name, [], [tensor(name)])
        for name in ("a", "b")
    ]
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    data = model_bytes([choice], constants=[constant("c", [True], "BOOL", ())], domains={"my.custom": 1})
    facts = seen(tmp_path, data)
    assert facts.custom == ("my.custom:Foo",)
    assert facts.unused == ()


def test_what_takes_the_reader_down_is_a_finding_and_the_next_file_is_read(tmp_path, monkeypatch):
    from repogen.check import onnx_facts

    first = seen(tmp_path, graphs.unary())
    child = onnx_facts._READER._child
    assert child is not None
    os.kill(child.pid, 9)
    child.wait()
    (tmp_path / "b").mkdir()
    broken = seen(tmp_path / "b", graphs.unary("Neg"))
    assert "signal 9" in broken.problem
    (tmp_path / "c").mkdir()
    again = seen(tmp_path / "c", graphs.unary("Abs"))
    assert again.readable
    assert again.inputs == first.inputs


def test_an_answer_is_remembered_by_content(tmp_path):
    seen(tmp_path, graphs.unary("Sin"))
    kept = list((tmp_path / "cache" / "seen").iterdir())
    (tmp_path / "copy").mkdir()
    seen(tmp_path / "copy", graphs.unary("Sin"))
    assert list((tmp_path / "cache" / "seen").iterdir()) == kept


def test_weights_that_arrive_later_are_noticed(tmp_path):
    tree = onnx_model(file=graphs.weights_in("w.bin"))
    root = write_tree(tmp_path / "repository", tree)
    assert "RG858" in {it.code for it in check_repository(root, target_of("2.51"), RULES)}
    (root / "m/1/w.bin").write_bytes(graphs.WEIGHTS)
    assert check_repository(root, target_of("2.51"), RULES) == []


def test_only_served_versions_are_read(tmp_path):
    bad = graphs.unary(x=(1, 4), y=(1, 4))
    root = write_tree(tmp_path / "a", onnx_model(file=bad, files={"m/2/model.onnx": graphs.unary()}))
    assert [name for name, _ in onnx_files(read_repository(root).models["m"])] == ["2/model.onnx"]
    assert check_repository(root, target_of("2.51"), RULES) == []
    chosen = onnx_model(
        "version_policy { specific { versions: [1] } }", file=bad, files={"m/2/model.onnx": graphs.unary()}
    )
    found = check_repository(write_tree(tmp_path / "b", chosen), target_of("2.51"), RULES)
    assert {it.code for it in found} == {"RG362"}


def test_limits_that_are_only_inferred_warn(tmp_path):
    root = write_tree(tmp_path / "repository", onnx_model(file=graphs.unary(opset=26, ir=13)))
    severities = {}
    for server in ("26.05", "26.08"):
        found = check_repository(root, target_of(server), RULES)
        severities[server] = [(it.code, it.severity) for it in found]
    assert severities == {"26.05": [("RG852", "error")], "26.08": []}


@pytest.mark.parametrize(("gpu", "severity"), [(True, "error"), (False, "warning")])
def test_instances_of_any_kind_use_the_gpu_where_there_is_one(gpu, severity, tmp_path):
    bogus = 'optimization { execution_accelerators { gpu_execution_accelerator [{ name: "bogus" }] } }'
    root = write_tree(tmp_path / "repository", onnx_model(bogus, replaced={"KIND_CPU": "KIND_AUTO"}))
    found = check_repository(root, replace(target_of("2.51"), gpu=gpu), RULES)
    assert {it.severity for it in found} == {severity}


def test_a_model_that_mixes_rows_by_a_reshape_is_found_by_running_it(tmp_path):
    """[N, 4] -> [2N, 2]: the config for [2] fits what is declared, and the answers are wrong."""
    split = [constant("s", [-1, 2])]
    data = model_bytes([node("Reshape", "x s")], None, [tensor("y", ("N", 2))], constants=split)
    replaced = {'name: "y" data_type: TYPE_FP32 dims: [4]': 'name: "y" data_type: TYPE_FP32 dims: [2]'}
    found = check_repository(
        write_tree(tmp_path / "repository", onnx_model(replaced=replaced, file=data)), target_of("2.51"), RULES
    )
    assert [(it.code, it.severity) for it in found] == [("RG367", "error")]


def test_a_model_whose_rows_depend_on_each_other_is_found(tmp_path):
    root = write_tree(tmp_path / "repository", onnx_model(file=graphs.centred()))
    [finding] = check_repository(root, target_of("2.51"), RULES)
    assert (finding.code, finding.severity) == ("RG367", "error")


@pytest.mark.parametrize(
    ("nodes", "mixing"),
    [
        ([node("ReduceMean", axes=[0])], ("ReduceMean",)),
        ([node("ReduceMean", axes=[1], keepdims=1)], ()),
        ([node("ReduceSum", "x a")], ("ReduceSum",)),
        ([node("ReduceSum", "x b")], ()),
        ([node("ReduceMax")], ("ReduceMax",)),
        ([node("Softmax", axis=0)], ("Softmax",)),
        ([node("Softmax")], ()),
        ([node("CumSum", "x a")], ("CumSum",)),
    ],
)
def test_operators_along_the_batch_axis(nodes, mixing, tmp_path):
    constants = [constant("a", [0]), constant("b", [1])]
    assert seen(tmp_path, model_bytes(nodes, None, [tensor("y", None)], constants=constants)).mixing == mixing


def computed():
    """Return the processor seconds of this process and the reader: the two take turns, and others may be at work."""
    from repogen.check import onnx_facts

    parts = Path(f"/proc/{onnx_facts._READER._child.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_a_thousand_models_of_their_own_in_ten_seconds(tmp_path):
    root = tmp_path / "repository"
    for index in range(1000):
        name = f"m{index:04}"
        data = model_bytes(
            [node("Add", "x w")],
            [tensor("x", ("N", "S", 4))],
            [tensor("y", ("N", "S", 4))],
            constants=[constant("w", [float(index)] * 4, "FLOAT")],
        )
        config = CONFIG.replace('"m"', f'"{name}"').replace("dims: [4]", "dims: [-1, 4]")
        write_tree(root, {f"{name}/config.pbtxt": config, f"{name}/1/model.onnx": data})
    seen(tmp_path, graphs.unary())  # the reader has started
    begun = computed()
    assert check_repository(root, target_of("2.51"), RULES) == []
    assert computed() - begun < 10
