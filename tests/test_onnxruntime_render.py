"""What is rendered for `backend: onnxruntime` from an ONNX file alone is what the real backend loads and serves right.

The judge is `check`, whose rules are compared with that backend's own answers in tests/check/test_onnxruntime_table.py.
"""

import pytest

from repogen import pbtxt
from repogen.check.engine import check_repository
from repogen.check.target import target_of
from repogen.desired import desired_models
from repogen.dtypes import BY_ONNX
from repogen.errors import RepogenError
from repogen.pbtxt import schema
from repogen.render import render
from tests import onnx_cases as graphs

SERVED = {
    # graph: max_batch_size, then the shape (and the model's own behind a slash) of each input and output
    "batched": (graphs.unary(), 8, "x[4]", "y[4]"),
    "rank-0": (graphs.unary(x=(), y=()), 0, "x[1]", "y[1]"),
    "rank-0-output": (graphs.total(), 0, "x[-1,4]", "y[1]"),
    "vector": (graphs.unary(x=("N",), y=("N",)), 8, "x[1]/[]", "y[1]/[]"),
    "unnamed-batch": (graphs.unary(x=(None, 4), y=(None, 4)), 8, "x[4]", "y[4]"),
    "unnamed-axes": (graphs.unary(x=(None, None), y=(None, None)), 8, "x[-1]", "y[-1]"),
    "other-symbols": (graphs.unary(x=("N", "S"), y=("M", "T")), 8, "x[-1]", "y[-1]"),
    "output-symbol-inferred": (graphs.product(("N", "M")), 8, "x[4]", "y[3]"),
    "output-shapeless-inferred": (graphs.product(None), 8, "x[4]", "y[3]"),
    "output-declared-5-inferred-3": (graphs.contradicted(), 8, "x[4]", "y[3]"),
    "output-declared-5-inferred-none": (graphs.product(("N", 5)), 8, "x[4]", "y[-1]"),
    "fixed": (graphs.unary(x=(1, 4), y=(1, 4)), 0, "x[1,4]", "y[1,4]"),
    "fixed-4": (graphs.unary(x=(4, 4), y=(4, 4)), 0, "x[4,4]", "y[4,4]"),
    "input-fixed": (graphs.unary(x=(1, 4), y=("N", 4)), 0, "x[1,4]", "y[1,4]"),
    "output-fixed": (graphs.fixed_output(), 0, "x[-1,4]", "y[1,3]"),
    "rows-2n": (graphs.doubled(), 0, "x[-1,4]", "y[-1,4]"),
    "transposed": (graphs.unary("Transpose", y=(4, "N")), 0, "x[-1,4]", "y[4,-1]"),
    "reduced-batch": (graphs.reduced_batch(), 0, "x[-1,4]", "y[4]"),
    "nonzero": (graphs.nonzero(), 0, "x[-1,4]", "y[2,-1]"),
    "unused": (graphs.with_unused(), 8, "x[4] u[4]", "y[4]"),
    "default-ir-3": (graphs.with_default(3), 8, "x[4]", "y[4]"),
    "default-ir-8": (graphs.with_default(8), 8, "x[4]", "y[4]"),
    "no-inputs": (graphs.without_inputs(), 0, "", "y[4]"),
    "output-is-input": (graphs.passed_through(), 8, "x[4]", "x[4] y[4]"),
    "two-outputs": (graphs.two_outputs(), 8, "x[4]", "y[4] z[4]"),
    "com.microsoft": (graphs.contributed(), 8, "x[4]", "y[4]"),
    "opset-21": (graphs.unary(opset=21, ir=10), 8, "x[4]", "y[4]"),
    "ir-3": (graphs.unary(ir=3), 8, "x[4]", "y[4]"),
}
REFUSED = {
    "sequence-output": (graphs.sequence_output(), "sequence"),
    "sequence-input": (graphs.sequence_input(), "sequence"),
    "zipmap": (graphs.zipmap(), "sequence"),
    "optional": (graphs.optional_input(), "optional"),
    "fp8": (graphs.unary("Identity", dtype="FLOAT8E4M3FN", opset=19, ir=9), "FLOAT8E4M3FN"),
    "bf16": (graphs.unary("Identity", dtype="BFLOAT16"), "BF16|BFLOAT16"),
    "shapeless": (graphs.unary(x=None, y=None), "rank|shape"),
    "custom": (graphs.custom(), "my.custom"),
    "unknown-operator": (graphs.unary("FooBarBaz"), "FooBarBaz"),
    "opset-22": (graphs.unary(opset=22, ir=10), "opset"),
    "ir-11": (graphs.unary(opset=21, ir=11), "IR"),
    "ai.onnx.ml-6": (graphs.machine_learning(6), "ai.onnx.ml"),
    "opset-6-add": (graphs.old_add(), "opset|implementation"),
    "corrupt": (b"\x08\x08\x12\xff\xff\xff", "not an ONNX"),
    "empty": (b"", "empty"),
    "weights-missing": (graphs.weights_in("w.bin"), "w.bin"),
    "weights-outside": (graphs.weights_in("../w.bin"), "outside"),
}
NAMES = [
    "a/b",
    "a:0",
    "a.b",
    'a"b',
    "a'b",
    "a\\b",
    "a b",
    "a\tb",
    "a<b",
    "a{b",
    "a,b",
    "a%b",
    "é",
    "出力",
    "{{ 1 + 1 }}",
]


def publish(root, data, more=""):
    """Render the config of one ONNX file, and lay it out as a repository."""
    (root / "model.onnx").write_bytes(data)
    manifest = root / "repogen.yaml"
    manifest.write_text(
        'triton: "24.10"\nrepository: repository\n'
        f"models:\n  m:\n    source: model.onnx\n    backend: onnxruntime\n{more}"
    )
    [model] = desired_models(manifest)
    folder = root / "repository" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(render(model))
    for file in model.files:
        target = folder / "1" / file.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(file.source.read_bytes())
    return pbtxt.parse((folder / "config.pbtxt").read_text())


def faults(root):
    return [it for it in check_repository(root / "repository", target_of("2.51")) if it.severity == "error"]


def shapes(tensors):
    return " ".join(f"{it.name}{sizes(it.dims)}{'/' * it.HasField('reshape')}{rest(it)}" for it in tensors)


def rest(tensor):
    return sizes(tensor.reshape.shape) if tensor.HasField("reshape") else ""


def sizes(dims):
    return f"[{','.join(map(str, dims))}]"


@pytest.mark.parametrize("case", SERVED)
def test_the_config_is_what_the_backend_serves(case, tmp_path):
    data, batch, inputs, outputs = SERVED[case]
    config = publish(tmp_path, data)
    assert (config.max_batch_size, shapes(config.input), shapes(config.output)) == (batch, inputs, outputs)
    assert faults(tmp_path) == []


def test_an_axis_of_size_0_is_free_for_other_backends_and_check_says_that_this_one_refuses_it(tmp_path):
    config = publish(tmp_path, graphs.unary(x=("N", 0), y=("N", 0)))
    assert (config.max_batch_size, shapes(config.input), shapes(config.output)) == (8, "x[-1]", "y[-1]")
    assert {(it.code, it.severity) for it in faults(tmp_path)} == {("RG368", "error")}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_backend_refuses_is_refused_by_name(case, tmp_path):
    data, reason = REFUSED[case]
    with pytest.raises(RepogenError, match=reason):
        publish(tmp_path, data)


def test_types(tmp_path):
    kinds = [
        "FLOAT16",
        "DOUBLE",
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "STRING",
    ]
    config = publish(tmp_path, graphs.side_by_side([(kind, f"{kind}_", kind) for kind in kinds]))
    names = [schema().DataType.Name(it.data_type) for it in config.input]
    assert names == [BY_ONNX[kind].triton for kind in kinds]
    assert config.max_batch_size == 8
    assert faults(tmp_path) == []


def test_names_are_kept_byte_for_byte(tmp_path):
    config = publish(tmp_path, graphs.side_by_side([(name, f"{name}_", "FLOAT") for name in NAMES]))
    assert [it.name for it in config.input] == NAMES
    assert [it.name for it in config.output] == [f"{name}_" for name in NAMES]
    assert faults(tmp_path) == []


@pytest.mark.parametrize("location", ["w.bin", "data/w.bin"])
def test_weights_beside_the_model(location, tmp_path):
    weights = tmp_path / location
    weights.parent.mkdir(exist_ok=True)
    weights.write_bytes(graphs.WEIGHTS)
    publish(tmp_path, graphs.weights_in(location))
    assert faults(tmp_path) == []
