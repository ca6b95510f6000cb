"""Small graphs to lower, and what every lowered graph must be: whole, strongly typed, and right."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from repogen.model import Tensor


def graph_of(nodes, inputs, outputs, constants=None, opset=17, ir=8, functions=(), domains=()):
    """Return a model; `nodes` are (operator, inputs, outputs, attributes), tensors (name, type, dims)."""

    def info(spec):
        return helper.make_tensor_value_info(spec[0], getattr(TensorProto, spec[1]), spec[2])

    made = [
        node if isinstance(node, onnx.NodeProto) else helper.make_node(node[0], node[1].split(), node[2].split(), f"n{i}_{node[0]}", **(node[3] if len(node) > 3 else {}))
        for i, node in enumerate(nodes)
    ]  # fmt: skip
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(made, "g", [info(s) for s in inputs], [info(s) for s in outputs], weights)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=list(functions))


def lowered(model, precision, tmp_path: Path, **options):
    """Return the model rewritten, checked and read again from its file, with what was done."""
    from repogen.precision.graphs import prepared, save
    from repogen.precision.mixed import OPSETS, rewrite

    source = tmp_path / "source.onnx"
    onnx.save(model, source)
    read = prepared(source, OPSETS[precision])
    done = rewrite(read, precision, **options)
    save(read, tmp_path)
    return onnx.load(tmp_path / "model.onnx"), done


def run(model, feed, *, optimised=True):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def types_of(model) -> dict[str, int]:
    """Return every tensor's element type, inferred strictly: an operator whose types disagree raises here."""
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    found = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        found[value.name] = value.type.tensor_type.elem_type
    return found


def assert_strongly_typed(model) -> None:
    """Each operator reads one type wherever ONNX's schema has one type variable; no cast follows a cast."""
    onnx.checker.check_model(model, full_check=True)
    types = types_of(model)
    opset = model.opset_import[0].version
    makers = {name: node for node in model.graph.node for name in node.output}
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))
    seen = set()
    for node in model.graph.node:
        if node.domain:
            continue
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        bound: dict[str, int] = {}
        for formals, actual in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for place, name in enumerate(actual):
                formal = formals[min(place, len(formals) - 1)]
                if name and not (
                    formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
                ):
                    assert bound.setdefault(formal.type_str, types[name]) == types[name], (node.name, name)
        if node.op_type == "Cast" and node.name.endswith("/border"):
            maker = makers.get(node.input[0])
            assert maker is None or not maker.name.endswith("/border"), node.name
            key = (node.input[0], node.attribute[0].i)
            assert key not in seen, f"{node.input[0]} is cast twice"
            seen.add(key)


def operators(model, kind: int) -> set[str]:
    """Return the operators that read or give a tensor of type `kind`, casts aside."""
    types = types_of(model)
    return {
        node.op_type
        for node in model.graph.node
        if node.op_type != "Cast" and any(types.get(name) == kind for name in (*node.input, *node.output))
    }


X = Tensor("x", "TYPE_FP32", ("N", 8))
