"""Follow the inputs of an ONNX graph through its nodes: where their elements and their values arrive."""

from collections.abc import Iterator
from typing import Any

Names = frozenset[str]
_NONE: Names = frozenset()

_CARRIERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Cast", "CastLike", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Flatten", "Slice", "Expand"),
        (0,),
    ),
    **dict.fromkeys(("Tile", "Gather", "Split", "Dropout", "Clip", "Compress", "TopK", "Abs"), (0,)),
    "Where": (1, 2),
}
"""Operators that pass elements on, with the places of the inputs that they take them from."""
_ALL_CARRIERS = {"Concat", "Max", "Min"}
_MEASURES = {"Shape", "Size"}
"""What these say depends on an input's shape alone."""

SHAPE_PLACES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Pad", "TopK", "Split", "Upsample", "CenterCropPad"), (1,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "OneHot", "SplitToSequence", "DFT", "AffineGrid"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    **dict.fromkeys(("Range", "MelWeightMatrix"), (0, 1, 2)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"), (1,)),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Loop": (0,),
    "MaxUnpool": (2,),
}
"""Inputs whose values decide the shape of what the operator gives."""


def subgraphs(node: Any) -> Iterator[Any]:
    """Give the bodies of If, Loop and Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Any) -> Iterator[Any]:
    """Give the nodes, those of subgraphs included, each before those inside it."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner.node)


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """Return an attribute's value, `default` where the node has none of that name."""
    for found in node.attribute:
        if found.name == name:
            import onnx

            return onnx.helper.get_attribute_value(found)
    return default


def label(node: Any) -> str:
    """Return how people find a node: by its name, else by what it gives."""
    if node.name:
        return f"{node.op_type} {node.name!r}"
    made = next((name for name in node.output if name), "")
    return f"{node.op_type} that gives {made!r}"


class Flow:
    """For each tensor of a graph: the inputs whose elements it holds, and those on whose values it depends."""

    def __init__(self, graph: Any, inputs: Names) -> None:
        self.carried: dict[str, Names] = {name: frozenset([name]) for name in inputs}
        self.valued: dict[str, Names] = dict(self.carried)
        self.constants: dict[str, Any] = {}
        self.read: set[str] = {value.name for value in graph.output}
        self._walk(graph)

    def _walk(self, graph: Any) -> None:
        self.constants |= {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            self.read.update(node.input)
            if node.op_type == "Constant":
                self._constant(node)
                continue
            inside = self._enter(node)
            valued = _NONE if node.op_type in _MEASURES else self._union(self.valued, node.input)
            carried = self._union(self.carried, self._carrying(node))
            for name in node.output:
                self.valued[name] = valued | inside
                self.carried[name] = carried

    def _constant(self, node: Any) -> None:
        for found in node.attribute:
            if found.HasField("t"):
                self.constants[node.output[0]] = found.t

    def _enter(self, node: Any) -> Names:
        """Walk the bodies of a node; return the inputs on whose values anything inside depends."""
        inside: Names = _NONE
        for body in subgraphs(node):
            # Loop gives its body a counter first; both give the rest in their own order.
            given = ["", *node.input[1:]] if node.op_type == "Loop" else list(node.input)
            for value, source in zip(body.input, given, strict=False):
                self.carried[value.name] = self.carried.get(source, _NONE)
                self.valued[value.name] = self.valued.get(source, _NONE)
            self._walk(body)
            self.read.update(value.name for value in body.output)
            inside |= self._union(self.valued, [value.name for value in body.output])
        return inside

    @staticmethod
    def _carrying(node: Any) -> list[str]:
        if node.op_type in _ALL_CARRIERS:
            return list(node.input)
        return [node.input[place] for place in _CARRIERS.get(node.op_type, ()) if place < len(node.input)]

    @staticmethod
    def _union(known: dict[str, Names], names: Any) -> Names:
        return frozenset().union(*(known.get(name, _NONE) for name in names))


def shape_inputs(graph: Any, flow: Flow) -> dict[str, str]:
    """Return the graph's inputs whose values become shapes, each with the node that uses them so."""
    found: dict[str, str] = {}
    for node in all_nodes(graph.node):
        for place in SHAPE_PLACES.get(node.op_type, ()):
            if place < len(node.input):
                for name in sorted(flow.valued.get(node.input[place], _NONE)):
                    found.setdefault(name, label(node))
    return found
