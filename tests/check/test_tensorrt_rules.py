"""The rules of the tensorrt backend against the tables of its source: each row loads there or is refused."""

import pytest

from repogen.check.engine import check_repository
from repogen.check.examples import write_tree
from repogen.check.target import target_of
from repogen.check.tensorrt_rules import PLAN, plan_model
from repogen.plan_header import header_bytes
from repogen.releases import RELEASES

SERVER = "25.03"  # TensorRT 10.9.0.34, sourced
X = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]'
GPU = "kind: KIND_GPU"


def findings(root, tree, server=SERVER):
    found = check_repository(write_tree(root / "repository", tree), target_of(server))
    return {(it.code, it.severity) for it in found if it.severity != "note"}


def codes(root, tree, server=SERVER):
    return {code for code, _ in findings(root, tree, server)}


@pytest.mark.parametrize("dtype", ["FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"])
def test_types_that_plans_have(dtype, tmp_path):
    assert codes(tmp_path, plan_model("", X, X.replace("FP32", dtype))) == set()


@pytest.mark.parametrize("dtype", ["FP64", "STRING", "INT16", "UINT16", "UINT32", "UINT64"])
def test_types_that_no_plan_has(dtype, tmp_path):
    assert codes(tmp_path, plan_model("", X, X.replace("FP32", dtype))) == {"RG370"}


@pytest.mark.parametrize(("server", "found"), [("24.05", {"RG370"}), ("24.06", set())])
def test_bf16_came_with_24_06(server, found, tmp_path):
    version = tuple(map(int, RELEASES[server].tensorrt.split(".")))
    tree = plan_model("", X, X.replace("FP32", "BF16"), plan=header_bytes(version))
    assert codes(tmp_path, tree, server) == found


VERSIONS = [
    # plan, server, finding: `sourced` versions of a release are believed, `inferred` ones warn
    ((10, 9, 0, 34), "25.03", None),
    ((10, 9, 0, 33), "25.03", "error"),
    ((10, 9, 1, 34), "25.03", "error"),
    ((10, 8, 0, 43), "25.03", "error"),
    ((8, 6, 1, 6), "25.03", "error"),
    ((10, 9, 0, 34), "25.04", None),
    ((10, 8, 0, 43), "25.04", "warning"),
    ((10, 16, 0, 72), "26.03", None),  # only major and minor of 26.03 are known
    ((10, 15, 1, 29), "26.03", "error"),
    ((11, 2, 1, 2), "26.08", None),
    ((11, 2, 1, 7), "26.08", None),
    ((11, 1, 0, 106), "26.08", "error"),
    ((8, 6, 3, 1), "24.03", None),
]


@pytest.mark.parametrize(("version", "server", "severity"), VERSIONS)
def test_the_version_that_built_the_plan(version, server, severity, tmp_path):
    found = findings(tmp_path, plan_model(plan=header_bytes(version)), server)
    assert found == ({("RG875", severity)} if severity else set())


@pytest.mark.parametrize(
    ("plan", "server", "compatible"),
    [
        ((10, 8, 0, 43), "25.03", True),
        ((8, 6, 1, 6), "25.03", True),
        ((10, 9, 0, 34), "26.08", True),
        ((8, 6, 1, 6), "26.08", False),
        ((11, 1, 0, 106), "25.03", False),
        ((10, 13, 3, 9), "25.03", False),
    ],
)
def test_version_compatible_plans_are_named_where_they_can_help(plan, server, compatible, tmp_path):
    tree = plan_model(plan=header_bytes(plan))
    found = check_repository(write_tree(tmp_path / "repository", tree), target_of(server))
    [finding] = [it for it in found if it.code == "RG875"]
    assert ("VERSION_COMPATIBLE" in finding.hint) is compatible
    assert finding.where == "m/1/model.plan"


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ("kind: KIND_GPU", set()),
        ("kind: KIND_AUTO", set()),
        ("kind: KIND_CPU", {"RG560"}),
        ("kind: KIND_MODEL", {"RG560"}),
        ('kind: KIND_GPU profile: ["0", "3"]', set()),
        ('kind: KIND_GPU profile: ["abc"]', {"RG561"}),
        ('kind: KIND_GPU profile: ["-1"]', {"RG561"}),
        ('kind: KIND_GPU profile: [""]', {"RG561"}),
        ('kind: KIND_GPU profile: ["1x"]', {"RG562"}),
        ('kind: KIND_GPU profile: ["1", "1"]', {"RG562"}),
    ],
)
def test_instance_groups(group, found, tmp_path):
    mine = {"RG560", "RG561", "RG562"}  # the server has checks of its own for profiles
    assert codes(tmp_path, plan_model("", GPU, group)) & mine == found


@pytest.mark.parametrize(("server", "found"), [("26.06", {"RG560"}), ("26.07", set())])
def test_several_gpus_for_one_model_came_with_26_07(server, found, tmp_path):
    several = 'parameters { key: "enable_multi_device" value { string_value: "true" } }'
    version = tuple(map(int, RELEASES[server].tensorrt.split(".")))
    assert codes(tmp_path, plan_model(several, GPU, "kind: KIND_MODEL", plan=header_bytes(version)), server) == found


def shape_tensor(part, dtype, dims="[2]"):
    return f'{part} [{{ name: "s" data_type: TYPE_{dtype} dims: {dims} is_shape_tensor: true }}]'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (shape_tensor("input", "INT32"), set()),
        (shape_tensor("input", "INT64"), set()),
        (shape_tensor("input", "FP32"), {"RG372"}),
        (shape_tensor("output", "INT64"), set()),
        (shape_tensor("output", "INT32"), {"RG372"}),
        (shape_tensor("input", "INT32", "[2, 2]"), {"RG372"}),
    ],
)
def test_shape_tensors(text, found, tmp_path):
    assert codes(tmp_path, plan_model(text)) == found


def graphs(spec):
    return f"optimization {{ cuda {{ graphs: true graph_spec [{{ {spec} }}] }} }}"


def shape(*dims):
    return f'input {{ key: "x" value {{ dim: {list(dims)} }} }}'


GRAPHS = [
    (f"batch_size: 8 {shape(4)}", set()),
    (f"batch_size: 1 {shape(0)}", set()),
    (f"batch_size: 9 {shape(4)}", {"RG570"}),
    (f"batch_size: 0 {shape(4)}", {"RG570"}),
    (f"batch_size: 8 {shape(-1)}", {"RG572"}),
    (f"batch_size: 8 {shape(4)} graph_lower_bound {{ batch_size: 1 {shape(4)} }}", set()),
    (f"batch_size: 8 {shape(4)} graph_lower_bound {{ batch_size: 0 {shape(4)} }}", {"RG570"}),
    (f"batch_size: 4 {shape(4)} graph_lower_bound {{ batch_size: 5 {shape(4)} }}", {"RG571"}),
    (f"batch_size: 4 {shape(4)} graph_lower_bound {{ batch_size: 1 }}", {"RG571"}),
    (f"batch_size: 4 {shape(4)} graph_lower_bound {{ batch_size: 1 {shape(4, 4)} }}", {"RG571"}),
    (f"batch_size: 4 {shape(4)} graph_lower_bound {{ batch_size: 1 {shape(5)} }}", {"RG571"}),
]


@pytest.mark.parametrize(("spec", "found"), GRAPHS)
def test_cuda_graphs(spec, found, tmp_path):
    assert codes(tmp_path, plan_model(graphs(spec))) == found


@pytest.mark.parametrize(("server", "found"), [("26.07", {"RG573"}), ("26.08", set())])
def test_cuda_graphs_of_models_that_do_not_batch(server, found, tmp_path):
    version = tuple(map(int, RELEASES[server].tensorrt.split(".")))
    version = header_bytes((*version, 0)[:4])
    tree = plan_model(graphs(f"batch_size: 0 {shape(4)}"), "max_batch_size: 8", "max_batch_size: 0", plan=version)
    assert codes(tmp_path, tree, server) == found


def device(capability, name="sm90.plan"):
    return f'cc_model_filenames {{ key: "{capability}" value: "{name}" }}'


def test_a_plan_a_compute_capability(tmp_path):
    whole = {"m/1/sm90.plan": PLAN}
    assert findings(tmp_path / "a", plan_model(device("9.0"), files=whole)) == set()
    assert findings(tmp_path / "b", plan_model(device("9.0"))) == {("RG871", "error")}
    assert findings(tmp_path / "c", plan_model(device("90"), files=whole)) == {("RG871", "error")}
    without_default = {k: v for k, v in plan_model(device("9.0"), files=whole).items() if k != "m/1/model.plan"}
    assert findings(tmp_path / "d", without_default) == {("RG870", "warning")}


def test_the_plan_of_each_served_version_is_read(tmp_path):
    old = header_bytes((10, 8, 0, 43))
    newest = plan_model(plan=old, files={"m/2/model.plan": PLAN})
    assert findings(tmp_path / "a", newest) == set()
    both = plan_model("version_policy { all { } }", plan=old, files={"m/2/model.plan": PLAN})
    assert findings(tmp_path / "b", both) == {("RG875", "error")}


def test_ragged_plans(tmp_path):
    flat = X.replace("[4]", "[-1] allow_ragged_batch: true")
    assert codes(tmp_path / "a", plan_model("", X, flat)) == set()
    assert codes(tmp_path / "b", plan_model("", X, flat.replace("[-1]", "[-1, 4]"))) == {"RG374"}
