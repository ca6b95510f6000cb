"""The mistakes that people who write model repositories by hand make most, each found before the server sees it.

Left out: what no file of a repository says (a profile's bounds and the GPU are inside the plan, how a load test was
run is nowhere).
"""

from dataclasses import dataclass

import pytest

from repogen.check.engine import check_repository
from repogen.check.examples import python_model, write_tree
from repogen.check.onnx_examples import onnx_model
from repogen.check.rule import Tree
from repogen.check.target import target_of
from repogen.check.tensorrt_rules import plan_model
from repogen.plan_header import header_bytes
from tests import onnx_cases as graphs


@dataclass(frozen=True)
class Mistake:
    """A repository, and words that one finding of at least `severity` says; `where` is its file and line."""

    id: str
    tree: Tree
    says: str
    where: str = "m/config.pbtxt"
    severity: str = "error"
    server: str = "2.51"


X = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]'
Y = 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'
ENSEMBLE = """\
name: "e"
platform: "ensemble"
max_batch_size: 8
input [{ name: "in" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "out" data_type: TYPE_FP32 dims: [4] }]
"""
STEP = 'ensemble_scheduling {{ step [{{ model_name: "m" model_version: -1 {} {} }}] }}\n'
IN, OUT = 'input_map { key: "x" value: "in" }', 'output_map { key: "y" value: "out" }'


def ensemble(more="", given=IN, taken=OUT, version="-1"):
    text = ENSEMBLE + STEP.format(given, taken).replace("model_version: -1", f"model_version: {version}") + more
    return {**python_model(), "e/config.pbtxt": text, "e/1/": ""}


def loose(tree, *left_out, **added):
    """Return `tree` without some of its files."""
    return {name: content for name, content in tree.items() if name not in left_out} | added


MISTAKES = [
    Mistake("01-dims-hold-the-batch", onnx_model(replaced={X: X.replace("[4]", "[-1, 4]")}), "batch axis", ":4"),
    Mistake("03-batch-fixed-at-1", onnx_model(file=graphs.unary(x=(1, 4), y=(1, 4))), "first axis of 'x' is fixed at 1"),
    Mistake("04-only-inputs-free", onnx_model(replaced={Y: Y.replace("[4]", "[3]")}, file=graphs.fixed_output()),
            "first axis of 'y' is fixed at 1", ":5"),
    Mistake("04-wrong-axis-free", onnx_model(replaced={Y: Y.replace("[4]", "[-1]")}, file=graphs.nonzero()),
            "first axis of 'y' is fixed at 2"),
    Mistake("06-plan-of-another-tensorrt", plan_model(plan=header_bytes((10, 8, 0, 43))), "10.8.0.43",
            "m/1/model.plan", server="25.03"),
    Mistake("06-plan-of-tensorrt-8-in-10", plan_model(plan=header_bytes((8, 6, 1, 6))), "8.6.1.6", "m/1/model.plan",
            server="24.05"),
    Mistake("08-int64-in-a-plan-of-tensorrt-8",
            plan_model("", X, X.replace("FP32", "INT64"), plan=header_bytes((8, 6, 1, 6))), "INT32", ":4", server="24.01"),
    Mistake("08-int32-for-an-int64-model", onnx_model(replaced={"TYPE_FP32": "TYPE_INT32"},
            file=graphs.unary("Identity", dtype="INT64")), "'x' is TYPE_INT64 in model.onnx, TYPE_INT32 in the config"),
    Mistake("09-assumed-fp32", onnx_model(file=graphs.unary("Identity", dtype="FLOAT16")),
            "'x' is TYPE_FP16 in model.onnx, TYPE_FP32 in the config"),
    Mistake("10-input-renamed", onnx_model(replaced={'name: "x"': 'name: "images"'}), "no input 'images'"),
    Mistake("10-output-renamed", onnx_model(replaced={'name: "y"': 'name: "output0"'}), "no output 'output0'"),
    Mistake("11-left-to-auto-complete", {"m/config.pbtxt": 'name: "m"\nbackend: "onnxruntime"\n',
            "m/1/model.onnx": graphs.unary()}, "'x' of 1/model.onnx is not in the config"),
    Mistake("11-no-config", {"m/1/model.py": "# the model's code\n"}, "config.pbtxt", "m"),
    Mistake("12-preferred-above-maximum", onnx_model("dynamic_batching { preferred_batch_size: [4, 16] }"),
            "16 is more than max_batch_size 8", ":7"),
    Mistake("13-delay-in-another-unit", onnx_model("dynamic_batching { max_queue_delay_microseconds: 10000000 }"),
            "10 s", ":7", "warning"),
    Mistake("15-very-many-instances", onnx_model(replaced={"KIND_CPU": "KIND_CPU count: 500"}), "500", ":6", "warning"),
    Mistake("17-batching-of-an-ensemble", ensemble("dynamic_batching { }"), "", "e/config.pbtxt"),
    Mistake("17-instances-of-an-ensemble", ensemble("instance_group [{ count: 2 }]"), "instance", "e/config.pbtxt"),
    Mistake("18-output-not-written", ensemble(taken='output_map { key: "y" value: "other" }'), "out", "e/config.pbtxt"),
    Mistake("18-input-missing", ensemble(given='input_map { key: "x2" value: "in" }'), "x", "e/config.pbtxt"),
    Mistake("18-unknown-output", ensemble(taken='output_map { key: "z" value: "out" }'), "z", "e/config.pbtxt"),
    Mistake("19-no-version-folder", loose(onnx_model(), "m/1/model.onnx"), "version", "m"),
    Mistake("19-stray-folder", {**onnx_model(), "notes/": ""}, "", "notes"),
    Mistake("19-name-with-a-space", python_model(name="my model"), "my model", "my model", "warning", "embedded"),
    Mistake("19-text-proto", onnx_model("max_batch: 4"), "max_batch", "m/config.pbtxt:7"),
    Mistake("19-unfilled-template", onnx_model(replaced={"max_batch_size: 8": "max_batch_size: ${max_batch_size}"}),
            "", "m/config.pbtxt:3"),
    Mistake("19-json-for-text-proto", loose(onnx_model(), "m/config.pbtxt", **{"m/config.pbtxt": '{"name": "m"}'}),
            "", "m/config.pbtxt"),
    Mistake("20-accelerator-on-a-plan", plan_model('optimization { execution_accelerators { gpu_execution_accelerator'
            ' [{ name: "tensorrt" }] } }'), "execution_accelerators", ":7", "warning", "25.03"),
    Mistake("20-warm-up-of-another-shape", onnx_model('model_warmup [{ name: "w" batch_size: 1 inputs { key: "x" value '
            "{ data_type: TYPE_FP32 dims: [5] zero_data: true } } }]"), "5", ":7"),
    Mistake("20-cuda-graphs-unbatched", plan_model("optimization { cuda { graphs: true } }", "max_batch_size: 8",
            "max_batch_size: 0"), "CUDA graphs", ":7", "warning", "25.03"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda it: it.id)
def test_a_frequent_mistake_is_found(mistake, tmp_path):
    found = check_repository(write_tree(tmp_path / "repository", mistake.tree), target_of(mistake.server))
    grave = [it for it in found if it.severity in ("error", mistake.severity)]
    named = [it for it in grave if mistake.says in it.message and mistake.where in it.where]
    assert named, [(it.code, it.severity, it.where, it.message) for it in found]


def test_the_repositories_without_their_mistakes_have_no_finding(tmp_path):
    for index, (tree, server) in enumerate([(onnx_model(), "2.51"), (ensemble(), "2.51"), (plan_model(), "25.03")]):
        found = check_repository(write_tree(tmp_path / str(index), tree), target_of(server))
        assert [it for it in found if it.severity != "note"] == []
