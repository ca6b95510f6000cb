"""The GPUs of this machine, asked for in a process of their own: a driver that is ill must not take ours along.

Run as `python -m repogen.gpu`, it prints a JSON list; only the standard library is needed.
"""

import contextlib
import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_TIMEOUT = 30
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    """One GPU: `capability` as Triton writes it ("9.0"), `driver` and `memory` (bytes) where they could be read."""

    name: str
    capability: str
    driver: str = ""
    memory: int = 0


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, () where there is none or no driver."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "repogen.gpu"], capture_output=True, timeout=_TIMEOUT, check=False
        )
        return tuple(Gpu(**row) for row in json.loads(child.stdout))
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        return ()


def read_gpus() -> list[dict[str, Any]]:
    """Return what libcuda says of this machine's GPUs. Only for a process that may die of it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    driver = _driver()
    return [asdict(_device(cuda, index, driver)) for index in range(count.value)]


def _device(cuda: Any, index: int, driver: str) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    parts = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        parts.append(str(value.value))
    return Gpu(name.value.decode(errors="replace"), ".".join(parts), driver, memory.value)


def _driver() -> str:
    """Return the driver's version: of the kernel module, or as nvidia-smi has it."""
    with contextlib.suppress(OSError):
        for word in _DRIVER_FILE.read_text().split():
            if word[0].isdigit() and word.count(".") >= 1:
                return word
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False).stdout
        return said.split("\n", maxsplit=1)[0].strip()
    return ""


if __name__ == "__main__":
    json.dump(read_gpus(), sys.stdout)
