"""Raw samples of a load test: two instants and a status for each request, one file for each process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Samples:
    """What one process measured: `sent` and `done` in nanoseconds of its own clock, `status` as gRPC's code.

    `failures` counts each message that the server or the connection failed with.
    """

    sent: Array
    done: Array
    status: Array
    failures: Mapping[str, int] = field(default_factory=dict)


def save(path: Path, samples: Samples) -> None:
    """Write the file under its final name only when it is whole."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(
            file,
            sent=samples.sent,
            done=samples.done,
            status=samples.status,
            failures=np.array(json.dumps(dict(samples.failures))),
        )
    part.replace(path)


def load(path: Path) -> Samples:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            failures = json.loads(str(file["failures"]))
            return Samples(file["sent"], file["done"], file["status"], failures)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RepogenError(f"not a file of samples: {error}", where=str(path)) from None


def load_all(folder: Path) -> tuple[Samples, ...]:
    """Return the samples of every process that wrote into `folder`."""
    return tuple(load(path) for path in sorted(folder.glob("*.npz")))
