"""Find the tritonserver inside the `nvidia-pytriton` wheel, and check the Python that it will use."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repogen.errors import ServerError

_OLDEST, _NEWEST = (3, 9), (3, 12)
# Nothing is imported but the standard library: finding pytriton is enough, and importing it is slow.
_PROBE = """
import ctypes, importlib.metadata, importlib.util, json, os, sys, sysconfig
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return None
def loads(name):
    try: ctypes.CDLL(name)
    except OSError: return False
    return True
spec = importlib.util.find_spec("pytriton")
library = "libpython%d.%d.so.1.0" % sys.version_info[:2]
folders = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
paths = [path for path in (os.path.join(folder, library) for folder in folders) if os.path.isfile(path)]
print(json.dumps({
    "version": sys.version_info[:2],
    "numpy": version("numpy"),
    "onnxruntime": importlib.util.find_spec("onnxruntime") is not None,
    "pytriton": os.path.dirname(spec.origin) if spec and spec.origin else None,
    "venv": sys.prefix != sys.base_prefix,
    "libpython": paths[0] if paths else "" if loads(library) else None,
}))
"""


@dataclass(frozen=True)
class Runtime:
    """A tritonserver and the Python interpreter that runs its Python backend.

    `libpython` is a shared library to put on the loader's path, None where the loader finds it by itself.
    """

    python: Path
    version: tuple[int, int]
    pytriton: Path
    venv: bool
    libpython: Path | None

    @property
    def tritonserver(self) -> Path:
        return self.pytriton / "tritonserver" / "bin" / "tritonserver"

    @property
    def backend(self) -> Path:
        return self.pytriton / "tritonserver" / "backends" / "python"

    @property
    def stub(self) -> Path:
        stubs = self.pytriton / "tritonserver" / "python_backend_stubs"
        return stubs / "{}.{}".format(*self.version) / "triton_python_backend_stub"

    @property
    def libraries(self) -> Path:
        return self.pytriton.parent / "nvidia_pytriton.libs"


def find_runtime(python: Path | None = None) -> Runtime:
    """Return what serves with `python`, else with $REPOGEN_SERVER_PYTHON, else with this interpreter."""
    chosen = Path(python or os.environ.get("REPOGEN_SERVER_PYTHON") or sys.executable).absolute()
    facts = _probe(chosen)
    _check(chosen, facts)
    return Runtime(
        python=chosen,
        version=(facts["version"][0], facts["version"][1]),
        pytriton=Path(facts["pytriton"]),
        venv=facts["venv"],
        libpython=Path(facts["libpython"]) if facts["libpython"] else None,
    )


def _probe(python: Path) -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _PROBE],  # isolated, as the stub is: no PYTHONPATH, no user site
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        facts: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise ServerError(
            f"the server's Python {python} cannot be run: {_last_line(error)}",
            hint="point REPOGEN_SERVER_PYTHON at the python of an environment with repogen[local]",
        ) from error
    return facts


def _check(python: Path, facts: Mapping[str, Any]) -> None:
    version = "{}.{}".format(*facts["version"])
    install = f"{python} -m pip install 'repogen[local]'"
    if not _OLDEST <= tuple(facts["version"]) <= _NEWEST:
        raise ServerError(
            f"the embedded server does not run on Python {version} ({python}): 3.9 to 3.12 do",
            hint="pip install 'repogen[local]' into a Python 3.10 to 3.12 and set REPOGEN_SERVER_PYTHON to it",
        )
    if facts["pytriton"] is None:
        raise ServerError(f"nvidia-pytriton (with tritonserver) is not installed in {python}", hint=install)
    if not facts["onnxruntime"]:
        raise ServerError(f"onnxruntime is not installed in {python}", hint=install)
    if facts["numpy"] is None or int(facts["numpy"].partition(".")[0]) > 1:
        have = f"numpy {facts['numpy']}" if facts["numpy"] else "no numpy"
        raise ServerError(
            f"{python} has {have}: with numpy 2 or later the server's answers are empty",
            hint=f"{python} -m pip install 'numpy<2'",
        )
    if facts["libpython"] is None:
        raise ServerError(
            f"the server needs libpython{version}.so.1.0, which {python} does not bring",
            hint=f"apt-get install libpython{version}, or a Python built with --enable-shared",
        )


def _last_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str((error.stderr.strip().splitlines() or [f"exit {error.returncode}"])[-1])
    return str(error)
