"""Name the node, and the constant, that keeps a model from being batched, where that can be told."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repogen.comparing import OTHER_ORDER, difference
from repogen.dataflow import label

_RUNNING = re.compile(r"while running (\S+) node\. Name:'([^']*)'\s*(?:Status Message:)?\s*(.*)", re.DOTALL)
_SOURCE = re.compile(r"^\S+\.(?:cc|h|hpp):\d+ .*?\)\s*(?:\[[^\]]*\])?\s*")
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed:\s*)?")
_LARGEST = 512 * 2**20  # bytes of a model that is searched
_NODES = 3000
_LAYOUT = {"Shape", "Size", "Transpose", "ConstantOfShape"}
"""What these give need not follow the batch: blamed only where nothing else is."""
_SHOWN = 8


def first_line(error: Exception) -> str:
    """Return what ONNX Runtime has to say, without its decoration."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _SOURCE.sub("", _PREFIX.sub("", line))[:300]


def run_error(path: str, error: Exception) -> str:
    """Say which node failed, with its constants, and why."""
    text = str(error).strip()
    match = _RUNNING.search(text)
    if match is None:
        line = first_line(error)
        return "NumPy has no BF16 to make inputs of" if "Numpy_type 256" in line else line
    op, name, message = match[1], match[2], _SOURCE.sub("", match[3].strip())
    said = " ".join(message.split())[:200]
    try:
        graph = _load(path).graph
    except Exception:
        return f"{op} {name!r}: {said}"
    nodes = [node for node in graph.node if node.op_type == op and (node.name == name or not node.name)]
    node = next((node for node in nodes if node.name and node.name == name), nodes[0] if nodes else None)
    return f"{op} {name!r}: {said}" if node is None else f"{label(node)}{constants_of(node, graph)}: {said}"


def constants_of(node: Any, graph: Any) -> str:
    """Say which constants a node reads, with the values of small ones."""
    import onnx

    known = {tensor.name: tensor for tensor in graph.initializer}
    for other in graph.node:
        if other.op_type == "Constant":
            known.update((other.output[0], found.t) for found in other.attribute if found.HasField("t"))
    shown = []
    for name in node.input:
        tensor = known.get(name)
        if tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
            array = onnx.numpy_helper.to_array(tensor)
            shown.append(f"{name!r} {array.tolist()}" if array.size <= _SHOWN else f"{name!r} {list(array.shape)}")
    return f" with the constant {', '.join(shown)}" if shown else ""


def blame(
    path: str,
    output: str,
    open_session: Callable[..., Any],
    sample: Callable[[int, int], Mapping[str, Any]],
) -> str:
    """Find the first node on the way to `output` whose inputs follow the batch and whose output does not."""
    model = _load(path)
    graph = model.graph
    if len(graph.node) > _NODES or Path(path).stat().st_size > _LARGEST:
        return ""
    good = _following(model, open_session, sample)
    producers = {name: node for node in graph.node for name in node.output if name}
    suspects = [node for node in _ancestors(output, producers, graph) if _breaks(node, good, producers)]
    named = [node for node in suspects if node.op_type not in _LAYOUT] or suspects
    if not named:
        return ""
    node = named[0]
    if node.op_type in ("Shape", "Size"):
        return f"the batch size itself enters through {label(node)}"
    return f"it begins at {label(node)}{constants_of(node, graph)}"


def _load(path: str) -> Any:
    import onnx

    return onnx.load(path, load_external_data=False)


def _following(model: Any, open_session: Callable[..., Any], sample: Callable[[int, int], Any]) -> dict[str, bool]:
    """Return for each tensor that could be seen whether its merged value is its single ones joined."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        for name in node.output:
            if name and name not in known:
                copy.graph.output.append(onnx.ValueInfoProto(name=name))
                known.add(name)
    session = open_session(optimized=False, model=copy.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    first, second = dict(sample(1, 0)), dict(sample(1, 1))
    merged = {name: np.concatenate([first[name], second[name]]) for name in first}
    runs = [session.run(names, feed) for feed in (first, second, merged)]
    good = dict.fromkeys(first, True)
    for name, one, two, both in zip(names, *runs, strict=True):
        if isinstance(one, np.ndarray):
            joined = one.ndim > 0 and one.shape[:1] == two.shape[:1] == (1,) and one.shape == two.shape
            good[name] = joined and not difference(np.concatenate([one, two]), both, OTHER_ORDER)
    return good


def _ancestors(output: str, producers: Mapping[str, Any], graph: Any) -> list[Any]:
    """Return the nodes that lead to `output`, in the graph's order."""
    seen: set[str] = set()
    todo = [output]
    while todo:
        name = todo.pop()
        if name in producers and name not in seen:
            seen.add(name)
            todo += producers[name].input
    return [node for node in graph.node if any(name in seen for name in node.output)]


def _breaks(node: Any, good: Mapping[str, bool], producers: Mapping[str, Any]) -> bool:
    """Return whether a node reads something that follows the batch, nothing that does not, and gives what does not."""
    reads = [good[name] for name in node.input if name in good and not _is_constant(name, producers)]
    gives = [good[name] for name in node.output if name in good]
    return bool(reads) and all(reads) and not all(gives)


def _is_constant(name: str, producers: Mapping[str, Any]) -> bool:
    return name in producers and producers[name].op_type == "Constant"
