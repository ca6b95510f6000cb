"""A model of known service times behind the embedded Triton: it sleeps 2 ms, and 0.25 ms for each sample."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repogen import server
from repogen.tune.override import with_setting
from repogen.tune.setting import Setting

NAME = "sleeper"
FIXED, EACH = 0.002, 0.00025
MODEL = f"""\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        time.sleep({FIXED} + {EACH} * sum(len(array) for array in arrays))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array.copy())]) for array in arrays]
"""
CONFIG = """\
name: "sleeper"
backend: "python"
max_batch_size: 16
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ kind: KIND_CPU count: 1 }]
dynamic_batching { max_queue_delay_microseconds: 5000 }
"""


def write(repository: Path) -> Path:
    (folder := repository / NAME / "1").mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    (repository / NAME / "config.pbtxt").write_text(CONFIG)
    return repository


@contextmanager
def serving(folder: Path) -> Iterator[server.Embedded]:
    """Serve the sleeping model while the block runs."""
    with server.start(write(folder / "models"), models=[NAME], log=folder / "triton.log") as triton:
        yield triton


def requests(sizes: Sequence[int] = (1,) * 8) -> list[dict[str, Any]]:
    """Return a pool of requests of these many samples."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [{"x": rng.random((size, 4), dtype=np.float32)} for size in sizes]


def with_policy(config: Any, setting: Setting) -> Any:
    """Return the config with the setting and its queue policy."""
    changed = with_setting(config, setting)
    policy = changed.dynamic_batching.default_queue_policy
    policy.default_timeout_microseconds = setting.policy.timeout
    policy.max_queue_size = setting.policy.max_size
    return changed


def saved(path: Path) -> dict[str, Any]:
    """Return what an interrupted benchmark has measured already."""
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known


def save(path: Path, known: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(known, indent=1))
    path.with_suffix(".part").replace(path)
