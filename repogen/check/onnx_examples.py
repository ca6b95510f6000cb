"""Tiny ONNX models and configs, of which the examples of the rules are made."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repogen.check.rule import Tree

Axes = Sequence["int | str | None"] | None
"""Axes of a tensor: literal, symbol, unnamed (None); None in place of them is no shape at all, () a scalar."""
CONFIG = """\
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ kind: KIND_CPU }]
"""


def tensor(name: str, axes: Axes = ("N", 4), dtype: str = "FLOAT") -> Any:
    """Return a graph's input or output."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), axes)


def node(operator: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> Any:
    """Return a node; names are separated by spaces."""
    from onnx import helper

    return helper.make_node(operator, inputs.split(" "), outputs.split(" "), **attributes)


def constant(name: str, values: Sequence[Any], dtype: str = "INT64", dims: Sequence[int] | None = None) -> Any:
    """Return an initializer."""
    from onnx import TensorProto, helper

    shape = [len(values)] if dims is None else dims
    return helper.make_tensor(name, TensorProto.DataType.Value(dtype), shape, values)


def model_bytes(
    nodes: Sequence[Any] | None = None,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    *,
    constants: Sequence[Any] = (),
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
) -> bytes:
    """Return an ONNX file: y = Relu(x) on x FP32 [N, 4], unless said otherwise."""
    from onnx import helper

    graph = helper.make_graph(
        list(nodes if nodes is not None else [node("Relu")]),
        "graph",
        list(inputs if inputs is not None else [tensor("x")]),
        list(outputs if outputs is not None else [tensor("y")]),
        list(constants),
    )
    imports = [helper.make_opsetid(domain, number) for domain, number in {"": opset, **(domains or {})}.items()]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=ir).SerializeToString())


def onnx_model(
    added: str = "",
    *,
    replaced: Mapping[str, str] | None = None,
    file: Callable[[], bytes] | bytes = model_bytes,
    files: Tree | None = None,
) -> Tree:
    """Return a repository of one ONNX model: CONFIG with `replaced` put in place, `added` at its end."""
    config = CONFIG
    for old, new in (replaced or {}).items():
        assert old in config, old
        config = config.replace(old, new)
    body = f"{added}\n" if added else ""
    return {"m/config.pbtxt": config + body, "m/1/model.onnx": file, **(files or {})}
