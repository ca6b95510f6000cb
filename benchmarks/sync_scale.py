"""How long planning and syncing take with many models, and how fast a large file is hashed and copied.

    python benchmarks/sync_scale.py [--sizes 100,500,1000,2000] [--copy 4GiB] [--json]

Every model is an ONNX file of its own (they differ in a constant), so each is read, proved and published. Each
figure is of a process of its own: the command line, Python's start included, its own modules compiled before as those
of an installed package are. Prints {sizes: [{models, plan_s, plan_rss_mb, first_sync_s, one_changed_s, ...}],
copy_ratio, ...}; copy_ratio is cp's time by the time that hashing and copying take, both forced to the disk, both of a
source in memory, in turns, the best of each.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import repogen
from repogen.files import copy_synced
from repogen.units import size_bytes

_RACY = 2.5  # seconds; what changed later than that is not taken for unchanged
_ROUNDS = 3


def write_model(path: Path, value: float) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def tensor(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "W"])

    node = helper.make_node("Mul", ["x", "c"], ["y"])
    graph = helper.make_graph(
        [node], "g", [tensor("x")], [tensor("y")], [numpy_helper.from_array(np.float32(value), "c")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_project(folder: Path, models: int) -> None:
    (folder / "models").mkdir()
    text = 'triton: "26.08"\nrepository: served/models\ndefaults:\n  instances: [{kind: cpu}]\nmodels:\n'
    for number in range(models):
        write_model(folder / "models" / f"{number}.onnx", number)
        text += f"  model_{number}:\n    source: models/{number}.onnx\n    max_batch_size: 4\n"
    (folder / "repogen.yaml").write_text(text)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "REPOGEN_CACHE": str(folder / "cache")}


def compile_modules() -> None:
    """Do what an installer does: otherwise every run would compile what it imports, where bytecode is not written."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", Path(repogen.__file__).parent], check=True)


def timed(folder: Path, *arguments: str) -> tuple[float, float, float, str]:
    """Run the command line; return its seconds, its CPU seconds, its peak memory in MB, and its last line."""
    command = [sys.executable, "-m", "repogen", *arguments, "-f", str(folder / "repogen.yaml")]
    begun = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(folder)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begun
    assert process.returncode == 0, err
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.splitlines()[-1]


def measured(models: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="repogen-scale-") as scratch:
        folder = Path(scratch)
        write_project(folder, models)
        first, first_cpu, _, said = timed(folder, "sync", "-q")
        assert f"published {models} of {models}" in said, said
        time.sleep(_RACY)
        timed(folder, "plan")  # the first after a sync reads the files again, and remembers them
        plans = [timed(folder, "plan") for _ in range(_ROUNDS)]
        assert all("nothing to do" in said for _, _, _, said in plans), plans
        changed = []
        for number in range(_ROUNDS):
            write_model(folder / "models" / f"{number}.onnx", -1.0 - number)
            changed.append(timed(folder, "sync", "-q"))
            assert "published 1 of" in changed[-1][3], changed[-1][3]
        plan, one = min(plans), min(changed)
        return {
            "models": models,
            "plan_s": round(plan[0], 2), "plan_cpu_s": round(plan[1], 2), "plan_rss_mb": round(plan[2]),
            "first_sync_s": round(first, 1), "first_sync_cpu_s": round(first_cpu, 1),
            "one_changed_s": round(one[0], 2), "one_changed_cpu_s": round(one[1], 2),
        }  # fmt: skip


def copied(size: int) -> dict[str, Any]:
    """Return the rates of cp and of hashing and copying, in turns on the same file, the best of each."""
    with tempfile.TemporaryDirectory(prefix="repogen-copy-", dir=Path.cwd()) as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        block = os.urandom(2**24)
        with source.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
        os.sync()
        taken: dict[str, list[float]] = {"cp": [], "us": []}
        for number in range(2 * _ROUNDS):
            who = ("cp", "us", "us", "cp")[number % 4]  # nobody always comes second
            begun = time.monotonic()
            if who == "cp":
                subprocess.run(["cp", "--reflink=never", source, target], check=True)
                subprocess.run(["sync", target], check=True)
            else:
                copy_synced(source, target)
            taken[who].append(time.monotonic() - begun)
            target.unlink()
    by_cp, by_us = min(taken["cp"]), min(taken["us"])
    return {
        "copy_ratio": round(by_cp / by_us, 2),
        "cp_gb_s": round(size / by_cp / 1e9, 2),
        "copy_gb_s": round(size / by_us / 1e9, 2),
        "sha256_gb_s": round(hash_rate(), 2),
        "cp_seconds": [round(seconds, 2) for seconds in taken["cp"]],
        "copy_seconds": [round(seconds, 2) for seconds in taken["us"]],
    }


def hash_rate() -> float:
    """Return the GB/s of sha256 alone, on what is in memory: nothing that hashes is faster."""
    block = bytes(2**19)
    begun = time.monotonic()
    digest = hashlib.sha256()
    for _ in range(2**12):
        digest.update(block)
    return 2**31 / (time.monotonic() - begun) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,500,1000,2000")
    parser.add_argument("--copy", default="4GiB", help="0B leaves it out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compile_modules()
    rows = []
    for models in map(int, filter(None, options.sizes.split(","))):
        rows.append(measured(models))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    found = {"sizes": rows} | (copied(size) if (size := size_bytes(options.copy)) else {})
    for key, value in found.items():
        if key != "sizes":
            print(f"{key} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
