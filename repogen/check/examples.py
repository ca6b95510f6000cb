"""Build the small repositories that document the rules and test them."""

import os
from collections.abc import Mapping
from pathlib import Path

from repogen.check.rule import File, Link, Tree

MODEL_PY = "# the model's code\n"
CONFIG = """\
name: "m"
backend: "python"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ kind: KIND_CPU }]
"""
"""What most examples are a change of: it loads on every server."""


def python_model(
    added: str = "", *, name: str = "m", replaced: Mapping[str, str] | None = None, files: Tree | None = None
) -> Tree:
    """Return a repository of one Python model: CONFIG with `replaced` put in place, `added` at its end."""
    config = CONFIG.replace('"m"', f'"{name}"')
    for old, new in (replaced or {}).items():
        assert old in config, old
        config = config.replace(old, new)
    body = f"{added}\n" if added else ""
    return {f"{name}/config.pbtxt": config + body, f"{name}/1/model.py": MODEL_PY, **(files or {})}


def write_tree(root: Path, tree: Tree) -> Path:
    """Write `tree` below `root`, which is made."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in tree.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            if isinstance(content, File):
                path.chmod(content.mode)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.to)
        elif isinstance(content, File):
            path.write_text(content.content, encoding="utf-8")
            path.chmod(content.mode)
        elif isinstance(content, str):
            with path.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:
                file.write(content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content())
    return root


def world_writable(path: Path) -> bool:
    """Return whether anyone may write `path`, which is no link."""
    return not path.is_symlink() and bool(os.lstat(path).st_mode & 0o002)
