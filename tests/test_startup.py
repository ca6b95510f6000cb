import json
import statistics
import subprocess
import sys
import time

HEAVY = ("onnx", "onnxruntime", "locust", "gevent", "grpc", "tensorrt", "numpy", "pydantic", "jinja2", "rich")


def test_the_command_line_imports_nothing_heavy():
    code = "import json, sys, repogen.cli; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_importing_every_command_imports_nothing_heavy():
    code = (
        "import json, sys, importlib, pkgutil, repogen.commands as c\n"
        "[importlib.import_module('repogen.commands.' + m.name) for m in pkgutil.iter_modules(c.__path__)]\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_a_repository_in_a_folder_needs_nothing_of_object_stores(project):
    code = (
        "import sys\nfrom pathlib import Path\nfrom repogen.commands.sync import sync\nfrom repogen.console import Console\n"
        "sync(Path(sys.argv[1]), jobs=1, overwrite=False, console=Console(quiet=True))\n"
        "print('loaded', [m for m in sys.modules if 'fsspec' in m or 's3fs' in m or 'object_' in m and 'repogen' in m])"
    )
    command = [sys.executable, "-c", code, str(project / "repogen.yaml")]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.endswith("loaded []\n")


def test_help_costs_little_beyond_the_interpreter():
    """A ratio, since machines differ: `--help` is a few times a bare interpreter, not tens of times."""

    def seconds(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        return time.perf_counter() - started

    pairs = [(seconds("-m", "repogen", "--help"), seconds("-c", "pass")) for _ in range(7)]
    assert statistics.median(with_help / bare for with_help, bare in pairs) < 15
