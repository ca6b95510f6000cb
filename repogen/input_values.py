"""Derive from a graph what values its inputs may have: rows of a table, sizes, divisors, known words."""

from collections.abc import Iterator, Mapping
from typing import Any

from repogen.dataflow import Flow, all_nodes, attribute, label, shape_inputs

Hint = dict[str, Any]
"""`values` or `range`, and `why`."""
Shapes = Mapping[str, tuple[int | None, ...]]

_INTEGERS = {2, 3, 4, 5, 6, 7, 12, 13}  # TensorProto's element types
_UINT8, _STRING = 2, 8
_SMALL = [1, 4]
_TABLES = {"EmbedLayerNormalization": ((0, 2), (1, 3)), "QEmbedLayerNormalization": ((0, 2), (1, 3))}
_SEQUENCE_LENGTHS = {"LSTM": 4, "GRU": 4, "RNN": 4, "ReverseSequence": 1}
_WORDS = {"LabelEncoder": ("keys_strings", "keys_int64s"), "OneHotEncoder": ("cats_strings", "cats_int64s")}
_FEW = 20


def input_hints(graph: Any, flow: Flow, shapes: Shapes, types: Mapping[str, int]) -> dict[str, Hint]:
    """Return what is known of the values of the graph's inputs (`types`: their element types)."""
    found: dict[str, Hint] = {}
    for node in all_nodes(graph.node):
        for tensor, hint in _constraints(node, flow, shapes, types):
            for name in flow.carried.get(tensor, frozenset()) & types.keys():
                found[name] = _both(found.get(name), hint)
    sizes = {name: {"range": _SMALL, "why": f"small sizes, for {by}"} for name, by in shape_inputs(graph, flow).items()}
    compared = {
        name: {"values": values, "why": f"compared by {by}"} for name, (values, by) in _compared(graph, flow).items()
    }
    whole = {name for name, kind in types.items() if kind in _INTEGERS}
    weaker: dict[str, Hint] = {name: hint for name, hint in {**compared, **sizes}.items() if name in whole}
    bytes_: dict[str, Hint] = {name: {"range": [0, 256], "why": "any byte"} for name in whole if types[name] == _UINT8}
    return {**bytes_, **weaker, **found}


def _compared(graph: Any, flow: Flow) -> dict[str, tuple[list[int], str]]:
    """Return the constants that inputs are compared with, as settings are; 0 and 1 say no more than a mask does."""
    import onnx

    found: dict[str, tuple[list[int], str]] = {}
    for node in all_nodes(graph.node):
        if node.op_type != "Equal":
            continue
        for one, other in (node.input, reversed(node.input)):
            tensor = flow.constants.get(other)
            if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type not in _INTEGERS:
                continue
            values = {int(value) for value in onnx.numpy_helper.to_array(tensor).ravel()[:_FEW]}
            for name in flow.carried.get(one, ()) if not values <= {0, 1} else ():
                before, reader = found.get(name, ([], label(node)))
                found[name] = sorted({*before, *values}), reader
    return found


def _constraints(node: Any, flow: Flow, shapes: Shapes, types: Mapping[str, int]) -> Iterator[tuple[str, Hint]]:
    yield from _indices(node, shapes)
    reads = list(node.input)
    if node.op_type in _SEQUENCE_LENGTHS and len(reads) > _SEQUENCE_LENGTHS[node.op_type]:
        yield reads[_SEQUENCE_LENGTHS[node.op_type]], {"range": [1, 2], "why": f"a length, for {label(node)}"}
    if node.op_type in ("Div", "Mod") and _is(reads[1], _INTEGERS, flow, types):
        yield reads[1], {"range": _SMALL, "why": f"never 0, for {label(node)}"}
    if node.op_type == "OneHot":
        yield reads[1], {"values": [4], "why": f"a depth, for {label(node)}"}
    if node.op_type == "Loop" and reads[0]:
        yield reads[0], {"range": _SMALL, "why": f"a few rounds, for {label(node)}"}
    if node.op_type == "Cast" and attribute(node, "to") != _STRING and _is(reads[0], {_STRING}, flow, types):
        yield reads[0], {"values": ["1", "2", "3"], "why": f"numbers as text, for {label(node)}"}
    for key in _WORDS.get(node.op_type, ()):
        known = attribute(node, key)
        if known:
            words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in known[:_FEW]]
            yield reads[0], {"values": words, "why": f"known to {label(node)}"}


def _is(name: str, kinds: set[int], flow: Flow, types: Mapping[str, int]) -> bool:
    """Return whether a tensor has the elements of an input of one of `kinds`."""
    return any(types.get(source) in kinds for source in flow.carried.get(name, ()))


def _indices(node: Any, shapes: Shapes) -> Iterator[tuple[str, Hint]]:
    """Give the tensors that choose rows of another, with the rows that there are."""
    reads = list(node.input)
    if node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter"):
        yield reads[1], _rows(node, reads[0], shapes, [attribute(node, "axis", 0)])
    elif node.op_type in ("GatherND", "ScatterND"):
        skipped = attribute(node, "batch_dims", 0)
        index = shapes.get(reads[1])
        width = index[-1] if index and index[-1] else 1
        yield reads[1], _rows(node, reads[0], shapes, list(range(skipped, skipped + width)))
    elif node.op_type == "ArrayFeatureExtractor":
        yield reads[1], _rows(node, reads[0], shapes, [-1])
    for place, table in _TABLES.get(node.op_type, ()):
        if table < len(reads) and reads[table]:
            yield reads[place], _rows(node, reads[table], shapes, [0])


def _rows(node: Any, table: str, shapes: Shapes, axes: list[int]) -> Hint:
    shape = shapes.get(table)
    sizes = [shape[axis] for axis in axes if shape is not None and -len(shape) <= axis < len(shape)]
    known = [size for size in sizes if size is not None]
    if len(known) < len(axes):
        return {"range": [0, 1], "why": f"the first row of {table!r}, whose size is free, for {label(node)}"}
    return {"range": [0, max(1, min(known))], "why": f"rows of {table!r}, for {label(node)}"}


def _both(one: Hint | None, two: Hint) -> Hint:
    """Return what satisfies both: few values before a range, else the narrower range."""
    if one is None or ("values" in two and "values" not in one):
        return two
    if "values" in one:
        return one
    low, high = max(one["range"][0], two["range"][0]), min(one["range"][1], two["range"][1])
    if low >= high:
        return one
    return {"range": [low, high], "why": one["why"] if high == one["range"][1] else two["why"]}
