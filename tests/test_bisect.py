"""Where a lowered graph leaves fp32: the node by name, and the precisions side by side."""

import json

import numpy as np
import onnx
import pytest

from repogen.bisect import bisect, culprits
from repogen.files import sha256
from repogen.model import Gate, Tensor
from repogen.precision.lowering import Source, lower
from tests.precision.kit import graph_of

RNG = np.random.default_rng(9)


def line(place, error, into):
    return {"place": place, "node": f"n{place}", "operator": "MatMul", "error": error, "into": into}


def test_culprits_add_more_than_they_inherit():
    rows = [line(0, 0.001, 0.0), line(1, 0.2, 0.001), line(2, 0.22, 0.2), line(3, 0.9, 0.2), line(4, 0.01, 0.9)]
    assert [found.node for found in culprits(rows, 0.05)] == ["n1", "n3"]


def test_an_error_that_crept_in_is_told_where_it_passes_the_limit():
    rows = [line(0, 0.02, 0.0), line(1, 0.03, 0.02), line(2, 0.04, 0.03), line(3, 0.05, 0.04)]
    assert [found.node for found in culprits(rows, 0.025)] == ["n1"]
    assert culprits(rows, 0.1) == ()


@pytest.fixture
def gate(tmp_path):
    """h - s cancels all but the last digits of two large tensors: half has none of them."""
    nodes = [
        ("MatMul", "x w", "h"), ("Add", "h big", "s"), ("Sub", "s big", "lost"), ("MatMul", "lost v", "k"), ("Tanh", "k", "y"),
    ]  # fmt: skip
    constants = {"w": RNG.normal(0, 1, (8, 8)), "v": RNG.normal(0, 1, (8, 8)), "big": np.full(8, 3000.0)}
    constants = {name: array.astype(np.float32) for name, array in constants.items()}
    model = graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], constants)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    np.savez(tmp_path / "val.npz", x=RNG.normal(0, 1, (4, 8)).astype(np.float32))
    inputs = (Tensor("x", "TYPE_FP32", ("N", 8)),)
    made = lower(Source(path, sha256(path), inputs, batched=True, size=path.stat().st_size), "fp16")
    return Gate(path, "d", made.files[0].source, "fp16", inputs, 4, (tmp_path / "val.npz",))


def test_the_node_is_found_by_name(gate):
    found = bisect(gate)
    assert found.compared == 5
    assert found.found[0].node == "n2_Sub"
    assert found.found[0].operator == "Sub"
    assert found.found[0].error > 0.1 > 10 * found.found[0].into
    assert found.worst >= found.found[0].error


def test_keeping_what_was_found_mends_it(gate, tmp_path):
    from dataclasses import replace

    keep = ["n1_Add", bisect(gate).found[0].node]
    source = Source(gate.reference, sha256(gate.reference), gate.inputs, batched=True, size=1)
    made = lower(source, "fp16", keep=keep)
    assert bisect(replace(gate, candidate=made.files[0].source)).found == ()


MANIFEST = """triton: "26.08"
repository: served
models:
  m:
    source: m.onnx
    precision: fp16
    calibration: {data: val.npz}
    accuracy: {data: val.npz}
"""


def test_the_commands(gate, tmp_path, invoke):
    (tmp_path / "repogen.yaml").write_text(MANIFEST)
    done = invoke("verify", "--bisect", "-f", tmp_path / "repogen.yaml", "--json", code=1)
    assert json.loads(done.stdout)["m"]["found"][0]["node"] == "n2_Sub"
    failed = invoke("sync", "-f", tmp_path / "repogen.yaml", code=1)
    assert "--bisect" in failed.stderr
    assert not (tmp_path / "served" / "m").exists()
    done = invoke("verify", "--precisions", "-f", tmp_path / "repogen.yaml", "--json")
    rows = {row["precision"]: row for row in json.loads(done.stdout)["m"]}
    assert list(rows) == ["fp32", "fp16", "bf16", "int8"]
    assert rows["fp16"]["verdict"]["passed"] is False
    assert rows["int8"]["verdict"]["rows"][0]["relative_l2"] < rows["fp16"]["verdict"]["rows"][0]["relative_l2"]
    assert all(len(rows[name]["milliseconds"]) == 15 for name in ("fp32", "fp16", "int8"))
    assert rows["fp32"]["memory"] > 10**7
