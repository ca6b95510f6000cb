"""Imports point one way: a module may import only modules of its own row or of rows above it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "repogen"
LAYERS = (
    "errors assets dtypes units gpu plan_header tensorrt_api model releases backends_data guard labels comparing dataflow",
    "cache fingerprint hash_hints files yaml_source samples object_s3 object_store",
    "settings_schema pipeline_schema precision_schema tune_schema deploy_schema manifest manifest_page remote_sources newest watch settings external input_values child nursery sample_file shaking blame onnx_graph onnx_facts proof proving",
    "precision judging lowered accuracy bisecting bisect precisions",
    "newer_fields pbtxt intent wiring ensembles llm render rendered",
    "build_key profiles tensorrt_intent plan_tensors build_cache builders builder_process builds plan_models preflight lock_file",
    "python_steps repository plan exchange generations staging lock warmup class_labels servable sample_file desired embedded",
    "together check export",
    "publish rolling_back object_layout object_history object_lock object_publish object_repository folder_repository places runtime triton_log server docker_server access triton endpoint",
    "load live first_request shadow verify report",
    "tune",
    "console commands cli __main__ __init__",
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("repogen.")} & RANK.keys()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no place in LAYERS"
    upward = {name for name in imported(path) if RANK[name] > RANK[own]}
    assert not upward


def test_only_the_edge_knows_the_command_line():
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in ("cli", "commands", "console"):
            text = path.read_text()
            assert "import click" not in text, path
            assert "repogen.console" not in text, path
