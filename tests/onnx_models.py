"""Tiny ONNX models for tests, one function each kind of fault, and what it takes to build others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, STRING, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
    TensorProto.UINT8,
)
Dims = Sequence[int | str | None] | None
Spec = tuple[str, int, Dims]
"""A tensor: its name, its element type, its dims (None: no rank)."""


def info(spec: Spec):
    return helper.make_tensor_value_info(*spec)


def graph(nodes, inputs: Sequence[Spec], outputs: Sequence[Spec], constants: Mapping[str, object] | None = None):
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    return helper.make_graph(nodes, "g", [info(spec) for spec in inputs], [info(spec) for spec in outputs], made)


def save(
    path: Path,
    nodes,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    constants: Mapping[str, object] | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
) -> Path:
    """Write a model and return its path."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in (domains or {}).items())]
    model = helper.make_model(graph(nodes, inputs, outputs, constants), opset_imports=opsets, ir_version=ir)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def node(op: str, reads: Sequence[str], makes: Sequence[str] = ("y",), name: str = "", **attributes):
    return helper.make_node(op, list(reads), list(makes), name=name, **attributes)


def linear(path: Path) -> Path:
    """y[N,2] = x[N,8] W: can be batched."""
    weights = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    return save(path, [node("MatMul", ["x", "w"])], [("x", FLOAT, ["N", 8])], [("y", FLOAT, ["N", 2])], {"w": weights})


def elementwise(path: Path, inputs: Dims, outputs: Dims, kind: int = FLOAT) -> Path:
    """y = x, with the shapes as declared."""
    return save(path, [node("Identity", ["x"])], [("x", kind, inputs)], [("y", kind, outputs)])


def external(path: Path, entries: Mapping[str, str], dims: Sequence[int] = (4,)) -> Path:
    """y = x + w, where w lies in a file of its own as `entries` say; the file itself is not written."""
    weights = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weights.external_data.add(key=key, value=value)
    made = graph([node("Add", ["x", "w"])], [("x", FLOAT, ["N", *dims])], [("y", FLOAT, ["N", *dims])])
    made.initializer.append(weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path
