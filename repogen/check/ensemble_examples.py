"""A small ensemble that the examples change: `e` calls `a`, then `b`."""

from collections.abc import Mapping

from repogen.check.examples import python_model
from repogen.check.rule import Tree

ENSEMBLE = """\
name: "e"
platform: "ensemble"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "z" data_type: TYPE_FP32 dims: [4] }]
ensemble_scheduling { step [
  { model_name: "a" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "t" } },
  { model_name: "b" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "z" } }
] }
"""


def ensemble(
    *changes: tuple[str, str],
    added: str = "",
    first: Mapping[str, str] | None = None,
    second: Mapping[str, str] | None = None,
    files: Tree | None = None,
) -> Tree:
    """Return the repository: `changes` of the ensemble's config, `first` and `second` of its models' configs."""
    config = ENSEMBLE
    for old, new in changes:
        assert old in config, old
        config = config.replace(old, new)
    parts = {**python_model(name="a", replaced=first), **python_model(name="b", replaced=second)}
    return {"e/config.pbtxt": config + (f"{added}\n" if added else ""), "e/1/": "", **parts, **(files or {})}
