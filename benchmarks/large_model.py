"""Read the facts of a model whose weights take 2 GiB in a file of their own, without running it.

    python benchmarks/large_model.py [--gib 2] [--json]

The file is sparse: it takes no disk, and reading it costs what a file of that size in memory does. Prints seconds and
the most memory that this process and its children had.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from repogen.child import ask, peak_memory
from repogen.files import model_file
from repogen.model import Graph
from repogen.onnx_graph import read_graph, refuse_what_is_not_onnx, with_weights

_ROWS = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the weights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repogen-large-") as folder:
        os.environ["REPOGEN_CACHE"] = str(Path(folder) / "cache")  # nothing may be remembered
        path = large_model(Path(folder) / "model.onnx", int(options.gib * 2**30))
        begun = time.perf_counter()
        graph = facts(path)
        seconds = time.perf_counter() - begun
        # The children that read it told their parent alone: the one with more to do is asked again.
        child = ask("onnx_facts", {"path": str(path), "constants": True})["peak"]
    found: dict[str, Any] = {
        "bytes": graph.external[0].size,
        "seconds": round(seconds, 2),
        "peak_memory": max(peak_memory(), child),
    }
    for name, value in found.items():
        print(f"{name:<12} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def large_model(path: Path, size: int) -> Path:
    """Write y = Gather(table, ids) with a sparse table of `size` bytes beside it."""
    columns = size // 4 // _ROWS
    table = TensorProto(
        name="table", data_type=TensorProto.FLOAT, dims=[_ROWS, columns], data_location=TensorProto.EXTERNAL
    )
    length = _ROWS * columns * 4
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(length))):
        table.external_data.add(key=key, value=value)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "S"])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", "S", columns])
    graph = helper.make_graph([helper.make_node("Gather", ["table", "ids"], ["rows"])], "g", [ids], [rows], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    with (path.parent / "table.bin").open("wb") as file:
        file.truncate(length)
    return path


def facts(path: Path) -> Graph:
    """Read what `repogen inspect` reads before it runs the model: every byte is hashed, and scanned for FP16."""
    refuse_what_is_not_onnx(path)
    model = model_file("model.onnx", path)
    graph = read_graph(path, model.sha256)
    files = [model, *(model_file(external.name, path.parent / external.name) for external in graph.external)]
    return with_weights(graph, hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
