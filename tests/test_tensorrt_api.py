"""The table of what we use of TensorRT, against recordings of the real bindings and against our own code."""

import ast
import json
from pathlib import Path

import pytest

from repogen.assets import TEMPLATES
from repogen.tensorrt_api import USES, has

ROOT = Path(__file__).parents[1]
RECORDED = json.loads((ROOT / "tests" / "data" / "tensorrt_api.json").read_text())
CALLERS = (
    ROOT / "repogen" / "builders" / "tensorrt.py",
    ROOT / "repogen" / "builders" / "inspection.py",
    ROOT / "repogen" / "builders" / "parser_errors.py",
    TEMPLATES / "embedded" / "plan_engine.py",
)
CLASS_OF = {  # what our variables hold
    "trt": "module", "builder": "Builder", "network": "INetworkDefinition", "parser": "OnnxParser",
    "probe": "OnnxParser", "config": "IBuilderConfig", "error": "ParserError", "layer": "ILayer", "tensor": "ITensor",
    "engine": "ICudaEngine", "runtime": "Runtime", "context": "IExecutionContext", "contexts": "IExecutionContext",
    "inspector": "EngineInspector", "flags": "NetworkDefinitionCreationFlag",
    "strategy": "ExecutionContextAllocationStrategy",
}  # fmt: skip
OF_PYTHON = {
    ("IExecutionContext", "clear"),
    ("IExecutionContext", "get"),
    ("IExecutionContext", "values"),
}  # methods of the dict of contexts


def name_of(node):
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return getattr(node, "id", getattr(node, "attr", ""))


def class_of(node):
    """Return the class of what an expression gives: `trt.DataType` is DataType itself, `self.engine` an engine."""
    if isinstance(node, ast.Attribute) and name_of(node.value) == "trt" and node.attr[0].isupper():
        return node.attr
    return CLASS_OF.get(name_of(node))


def used(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add((class_of(node.value), node.attr))
        elif isinstance(node, ast.Call) and name_of(node.func) in ("getattr", "hasattr"):
            target, name = node.args[:2]
            if isinstance(name, ast.Constant):
                found.add((class_of(target), name.value))
    return {(kind, name) for kind, name in found if kind and not name.startswith("__")} - OF_PYTHON


@pytest.mark.parametrize("path", CALLERS, ids=lambda path: path.name)
def test_every_attribute_that_is_used_is_in_the_table(path):
    found = used(path)
    assert len(found) > 5
    assert {(kind, name) for kind, name in found if name not in USES.get(kind, {})} == set()


@pytest.mark.parametrize("recorded", ["8.6", "10.0", "10.16", "11.4"])
def test_the_table_says_what_the_bindings_have(recorded):
    version = tuple(int(part) for part in RECORDED[recorded]["version"].split("."))
    classes = RECORDED[recorded]["classes"]
    for kind, names in USES.items():
        for name in names:
            assert has(kind, name, version) == (name in classes.get(kind, [])), (kind, name, version)


def test_tensorrt_rtx_has_what_tensorrt_11_has():
    classes = RECORDED["rtx"]["classes"]
    missing = {
        (kind, name)
        for kind, names in USES.items()
        for name in names
        if has(kind, name, (11, 4)) and name not in classes.get(kind, [])
    }
    assert missing == set()


def test_a_span_ends_before_its_end():
    assert has("BuilderFlag", "FP16", (10, 16, 1))
    assert not has("BuilderFlag", "FP16", (11, 0))
    assert not has("OnnxParser", "supports_model_v2", (10, 0, 1))
    assert has("OnnxParser", "supports_model_v2", (10, 1))
    with pytest.raises(KeyError):
        has("Builder", "build_engine", (8, 6))
