"""Rewrite a graph so that it computes in fp16 or bf16 where that is safe, with casts at the borders only.

Each tensor has one native type, that of the node that gives it; a cast is made once for each other type in which
somebody reads it, right from the native one. `t` is always the fp32 tensor and `t_fp16` the half one, so that
subgraphs and graph outputs find what they read under the name that they know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repogen.precision.graphs import Unfit, all_names, bodies, captured, constants_of, element_types, opset_of, unused
from repogen.precision.sensitive import BF16, FP16, Kept, kept_nodes

OPSETS = {"fp16": 7, "bf16": 22}
"""The least opset: bfloat16 convolutions and poolings came with 22."""
BORDER = "/border"
"""Ends the names of the casts that are put in."""
_FOLLOWERS = {
    *("Reshape", "Transpose", "Slice", "Concat", "Gather", "GatherElements", "GatherND", "Identity", "Squeeze"),
    *("Unsqueeze", "Split", "Expand", "Flatten", "Pad", "Tile", "DepthToSpace", "SpaceToDepth", "Relu", "LeakyRelu"),
    *("Clip", "Neg", "Abs", "Where", "Add", "Sub", "Mul", "Div", "Max", "Min", "Sigmoid", "Tanh", "Cast", "Dropout"),
}
"""Cheap wherever they run: between nodes that stay in fp32 they stay there too."""
_ANY_TYPE = {"Shape", "Size"}
"""They read whatever type comes: nothing is cast for them."""


@dataclass(frozen=True)
class Rewritten:
    """What the rewrite did: nodes now in half, nodes kept by reason, casts put in."""

    half: int
    kept: Mapping[str, str]
    casts: int


def rewrite(
    model: Any, precision: str, *, keep: Sequence[str] = (), ranges: Mapping[str, float] | None = None, io: str = "fp32"
) -> Rewritten:
    """Rewrite `model` in place to `precision` (fp16 or bf16) with graph I/O in `io`: fp32, or graph for half."""
    from onnx import TensorProto

    half = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    types = element_types(model)
    constants = constants_of(model.graph)
    limits = FP16 if precision == "fp16" else BF16
    kept = kept_nodes(model.graph, constants, keep, ranges or {}, limits)
    plans = {
        node.name: plan
        for node in model.graph.node
        if node.name not in kept.reasons
        and (plan := _types_of(node, types, half, opset_of(model), kept)) is not None
    }  # fmt: skip
    _follow(model.graph, plans, kept, constants, half_inputs=io == "graph")
    if not plans:
        why = sorted(set(kept.reasons.values()))[:3]
        raise Unfit(f"nothing of it can run in {precision}: {'; '.join(why)}", "write precision: fp32")
    writer = _Writer(model.graph, types, constants, half, precision, plans, half_io=io == "graph")
    writer.write()
    return Rewritten(len(plans), dict(kept.reasons), writer.casts)


@dataclass(frozen=True)
class _NodePlan:
    """The places of a half node's inputs and outputs that are half."""

    inputs: frozenset[int]
    outputs: frozenset[int]


def _types_of(node: Any, types: Mapping[str, int], half: int, opset: int, kept: Kept) -> _NodePlan | None:
    """Return which tensors of a node become half, by ONNX's own schema; None where it must stay as it is."""
    import onnx

    floats = onnx.TensorProto.FLOAT
    if foreign := _foreign(node, types):
        kept.add(node, foreign)
        return None
    to = _attribute_type(node)
    if floats not in {types[name] for name in (*node.input, *node.output) if name} or to not in (None, floats):
        return None  # whole numbers, texts, casts to them: nothing to decide
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    allowed = {row.type_param_str: set(row.allowed_type_strs) for row in schema.type_constraints}
    text = "tensor(float16)" if half == onnx.TensorProto.FLOAT16 else "tensor(bfloat16)"
    inputs = [_formal(schema.inputs, place) for place in range(len(node.input))]
    outputs = [_formal(schema.outputs, place) for place in range(len(node.output))]
    read = {kind for kind, name in zip(inputs, node.input, strict=True) if name and types[name] == floats}
    halved = {kind for kind in read if text in allowed.get(kind, ())}
    if to is not None:
        halved |= {outputs[0]}
    given = {kind for kind, name in zip(outputs, node.output, strict=True) if name and types[name] == floats}
    if left := [kind for kind in given if kind in allowed and kind not in halved]:
        takes = all(text in allowed[kind] for kind in left)
        reason = "gives fp32 whatever it reads" if takes else f"of opset {opset} does not take {text}"
        kept.add(node, f"{node.op_type} {reason}")
        return None
    plan = _NodePlan(
        frozenset(p for p, kind in enumerate(inputs) if kind in halved and types.get(node.input[p]) == floats),
        frozenset(p for p, kind in enumerate(outputs) if kind in halved and types.get(node.output[p]) == floats),
    )
    return plan if plan.inputs or plan.outputs else None


def _foreign(node: Any, types: Mapping[str, int]) -> str:
    """Say why nothing can be known of what a node does with its tensors, "" where it can."""
    import onnx

    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain}:{node.op_type} is not ONNX's own"
    if not onnx.defs.has(node.op_type, ""):
        return f"{node.op_type} is unknown to ONNX {onnx.__version__}"
    if any(bodies(node)):
        return "its subgraphs stay whole"
    if any(name and name not in types for name in (*node.input, *node.output)):
        return "the types of its tensors are unknown"
    return ""


def _formal(formals: Any, place: int) -> str:
    return str(formals[min(place, len(formals) - 1)].type_str)


def _attribute_type(node: Any) -> int | None:
    """Return the element type that an attribute of the node decides for its output, None where none does."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            return int(attribute.i)
        if node.op_type == "ConstantOfShape" and attribute.name == "value":
            return int(attribute.t.data_type)
    return 1 if node.op_type == "ConstantOfShape" else None


def _follow(
    graph: Any, plans: dict[str, _NodePlan], kept: Kept, constants: Mapping[str, Any], *, half_inputs: bool
) -> None:
    """Keep cheap nodes in fp32 where all that they read comes from there and all who read them are there."""
    producers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in {*node.input, *captured(node)}:
            readers.setdefault(name, []).append(node)
    ends = {value.name for value in graph.output} if half_inputs else set()

    def in_half(name: str) -> bool:
        if name in producers:
            return producers[name].name in plans
        return half_inputs or name in constants

    changed = True
    while changed:
        changed = False
        for node in graph.node:
            if node.name not in plans or node.op_type not in _FOLLOWERS:
                continue
            plan = plans[node.name]
            read = [node.input[place] for place in plan.inputs if node.input[place] not in constants]
            made = [node.output[place] for place in plan.outputs]
            if not read and node.op_type != "Cast":
                continue  # a look-up in a table of weights: half of it is what was asked for
            from_half = any(in_half(name) for name in read)
            to_half = any(_reads_half(reader, name, plans) for name in made for reader in readers.get(name, ()))
            if not from_half and not to_half and not ends & {*made}:
                del plans[node.name]
                kept.add(node, "stands between nodes in fp32")
                changed = True


def _reads_half(reader: Any, name: str, plans: Mapping[str, _NodePlan]) -> bool:
    plan = plans.get(reader.name)
    return plan is not None and any(reader.input[place] == name for place in plan.inputs)


@dataclass
class _Writer:
    """Writes the nodes again, each reading its tensors in the types that it was planned to read."""

    graph: Any
    types: Mapping[str, int]
    constants: Mapping[str, Any]
    half: int
    suffix: str
    plans: Mapping[str, _NodePlan]
    half_io: bool
    casts: int = 0
    native: dict[str, bool] = field(default_factory=dict)  # is the tensor half where it is made?
    names: dict[tuple[str, bool], str] = field(default_factory=dict)
    made: set[tuple[str, bool]] = field(default_factory=set)
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        self.taken = all_names(self.graph)
        self._begin_io()
        for node in self.graph.node:
            self._node(node)
        for value in self.graph.output:
            if self.types.get(value.name) == 1:
                self._read(value.name, half=self.half_io)
        self._finish()

    def _begin_io(self) -> None:
        from onnx import TensorProto

        inputs = {value.name for value in self.graph.input}
        for value in (*self.graph.input, *self.graph.output) if self.half_io else ():
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = self.half
                self.names[value.name, True] = value.name  # the name stays, the type changes
                self.names[value.name, False] = self._fresh(f"{value.name}_fp32")
        for name in sorted(inputs):
            if self.types.get(name) == TensorProto.FLOAT:
                self.native[name] = self.half_io
                self.made.add((name, self.half_io))
                if self.half_io:
                    self._halve_default(name)

    def _halve_default(self, name: str) -> None:
        for tensor in self.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(self._in_half(tensor, name))

    def _fresh(self, name: str) -> str:
        found = unused(name, self.taken)
        self.taken.add(found)
        return found

    def _name(self, name: str, *, half: bool) -> str:
        if (name, half) not in self.names:
            self.names[name, half] = self._fresh(f"{name}_{self.suffix}") if half else name
        return self.names[name, half]

    def _read(self, name: str, *, half: bool) -> str:
        """Return the tensor's name in the type asked for, made right here where nobody has read it so yet."""
        from onnx import TensorProto, helper

        wanted = self._name(name, half=half)
        if (name, half) in self.made:
            return wanted
        if name in self.constants:
            if half:
                self.weights[wanted] = self._in_half(self.constants[name], wanted)
        else:
            to = self.half if half else TensorProto.FLOAT
            self.nodes.append(
                helper.make_node("Cast", [self._name(name, half=not half)], [wanted], f"{wanted}{BORDER}", to=to)
            )
            self.casts += 1
        self.made.add((name, half))
        return wanted

    def _in_half(self, tensor: Any, name: str) -> Any:
        import ml_dtypes
        from onnx import TensorProto, helper, numpy_helper

        kind = np.float16 if self.half == TensorProto.FLOAT16 else ml_dtypes.bfloat16
        array = np.ascontiguousarray(numpy_helper.to_array(tensor).astype(kind))
        return helper.make_tensor(name, self.half, tensor.dims, array.tobytes(), raw=True)

    def _node(self, node: Any) -> None:
        plan = self.plans.get(node.name)
        for place, name in enumerate(node.input):
            if self.types.get(name) == 1:
                agnostic = plan is None and self._reads_anything(node) and name not in self.constants
                half = self.native[name] if agnostic else plan is not None and place in plan.inputs
                node.input[place] = self._read(name, half=half)
        for name in sorted(captured(node)):
            if self.types.get(name) == 1 and self._read(name, half=False) != name:
                _rename(node, name, self._name(name, half=False))
        if plan is not None:
            self._set_attribute_type(node)
        for place, name in enumerate(node.output):
            if self.types.get(name) == 1:
                half = plan is not None and place in plan.outputs
                self.native[name] = half
                self.made.add((name, half))
                node.output[place] = self._name(name, half=half)
        self.nodes.append(node)

    def _reads_anything(self, node: Any) -> bool:
        return node.op_type in _ANY_TYPE or (node.op_type == "Cast" and _attribute_type(node) not in (1, self.half))

    def _set_attribute_type(self, node: Any) -> None:
        from onnx import helper

        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = self.half
            if node.op_type == "ConstantOfShape" and attribute.name == "value":
                attribute.t.CopyFrom(self._in_half(attribute.t, ""))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = helper.make_tensor("", self.half, [1], b"\0\0", raw=True)
            node.attribute.append(helper.make_attribute("value", zero))

    def _finish(self) -> None:
        """Put the nodes back, and those weights that somebody reads, in the order in which they stood."""
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in (*node.input, *captured(node))}
        read |= {value.name for value in (*self.graph.output, *self.graph.input)}
        tensors = [tensor for tensor in self.graph.initializer if tensor.name in read]
        tensors += [self.weights[name] for name in self.weights if name in read]
        fresh = [type(tensor).FromString(tensor.SerializeToString()) for tensor in tensors]
        del self.graph.initializer[:]
        self.graph.initializer.extend(fresh)


def _rename(node: Any, name: str, new: str) -> None:
    """Let the bodies of a node read `new` where they read the outer `name`."""
    for body in bodies(node):
        if name in {value.name for value in (*body.input, *body.initializer)}:
            continue
        for inner in body.node:
            for place, read in enumerate(inner.input):
                if read == name:
                    inner.input[place] = new
            _rename(inner, name, new)
        for value in body.output:
            if value.name == name:
                value.name = new
