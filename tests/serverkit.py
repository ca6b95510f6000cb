"""Tiny models in a repository, and a look at what a server leaves behind."""

import contextlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from repogen.assets import TEMPLATES

RUNNER = TEMPLATES / "embedded" / "model.py"

needs_server = [
    pytest.mark.server,
    pytest.mark.skipif(
        importlib.util.find_spec("pytriton") is None or sys.version_info >= (3, 13),
        reason="nvidia-pytriton is not installed (pip install 'repogen[local]' into Python 3.10 to 3.12)",
    ),
]

Spec = tuple[str, str, Sequence[int | str | None]]
"""A tensor: its name, its ONNX element type, its dims in the graph."""


def onnx_file(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, object]]],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    constants: Mapping[str, object] | None = None,
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def info(spec: Spec):
        return helper.make_tensor_value_info(spec[0], getattr(TensorProto, spec[1]), spec[2])

    graph = helper.make_graph(
        [helper.make_node(op, list(read), list(made), **attributes) for op, read, made, attributes in nodes],
        "g",
        [info(spec) for spec in inputs],
        [info(spec) for spec in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def add_model(repository: Path, name: str, config: str, make: Callable[[Path], None] | None = None) -> Path:
    """Write a model's folder; `make` writes its ONNX file, and no `make` means no version folder."""
    folder = repository / name
    folder.mkdir(parents=True)
    head = f'name: "{name}"\nbackend: "python"\n' if "backend:" not in config else f'name: "{name}"\n'
    instances = "" if "instance_group" in config else "\ninstance_group [{ kind: KIND_CPU count: 1 }]\n"
    (folder / "config.pbtxt").write_text(head + config + instances)
    if make:
        (version := folder / "1").mkdir()
        make(version / "model.onnx")
        shutil.copy(RUNNER, version / "model.py")
    return folder


def add_double(repository: Path, name: str = "double", *, delay: int = 0) -> Path:
    """y = x + x, batched up to 8."""
    return add_model(
        repository,
        name,
        "max_batch_size: 8\n"
        'input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]\n'
        'output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]\n'
        f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n",
        lambda path: onnx_file(
            path,
            [("Add", ["x", "x"], ["y"], {})],
            [("x", "FLOAT", ["n", "w"])],
            [("y", "FLOAT", ["n", "w"])],
        ),
    )


def processes(text: str) -> dict[int, str]:
    """Return the command line of each process whose command line or name holds `text`, zombies included."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text in line:
                    found[int(entry.name)] = line
    return found


def left_over(server_id: str) -> list[str]:
    """Return what still stands of a server: processes that know its id, shared memory, scratch folders."""
    import tempfile

    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return [
        *processes(server_id).values(),
        *(str(entry) for folder in folders for entry in folder.glob(f"{server_id}*")),
    ]


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait until `condition` holds; return how long it took, and fail when it took longer than `seconds`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            pytest.fail(f"it did not hold within {seconds} s")
        time.sleep(0.02)
    return time.monotonic() - begun
