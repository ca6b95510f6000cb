"""Raw samples of a load test: the instants and the outcome of every request, one file for each process.

Instants are nanoseconds of the process's own monotonic clock; `Conditions.epoch` plus one of them is Unix time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

COLUMNS = ("intended", "sent", "first", "done", "status", "size", "batch")
WIDTH = 8 * len(COLUMNS)
"""Bytes a request takes in a log."""
KILLED = "killed"


@dataclass(frozen=True)
class Conditions:
    """Under what a process measured. `begin` and `end` bound what counts: the warm-up lies before."""

    model: str = ""
    url: str = ""
    run: str = ""
    host: str = ""
    pid: int = 0
    arrivals: str = "closed"
    rate: float = 0.0  # requests a second that were asked of this process; 0: as many as were answered
    users: int = 0
    workers: int = 1  # processes that shared the load
    batch: str = "1"
    seed: int = 0
    warm_up: float = 0.0
    deadline: float = 0.0
    stream: bool = False
    shapes: int = 1  # how many different shapes the requests had
    epoch: int = 0
    begin: int = 0
    end: int = 0
    ended: str = KILLED  # time | stopped | interrupted | killed | full
    cpu: float = 0.0  # of a core, while it measured, the wait for the next instant left out
    first: bool = False  # the system let it go before other processes
    software: str = ""
    started: str = ""


@dataclass(frozen=True)
class Samples:
    """What one process measured, in the order of sending. `status` is gRPC's code.

    `failures` counts each message that the server or the connection failed with; `server` is what the server
    said of itself (`repogen.load.observe`), as JSON.
    """

    intended: Array
    sent: Array
    first: Array
    done: Array
    status: Array
    size: Array
    batch: Array
    failures: Mapping[str, int] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    server: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> Array:
        """Which requests count: due while it was measured."""
        told = self.conditions
        return (self.intended >= told.begin) & (self.intended < (told.end or 2**62))


def save(path: Path, samples: Samples) -> None:
    """Write the file under its final name only when it is whole."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    told = {"failures": dict(samples.failures), "conditions": asdict(samples.conditions), "server": samples.server}
    with part.open("wb") as file:
        np.savez(
            file,
            **{name: _narrow(name, getattr(samples, name)) for name in COLUMNS},
            told=np.array(json.dumps(told)),
        )
    part.replace(path)


def load(path: Path) -> Samples:
    """Return the samples of a finished file, or those that a killed run had written down."""
    if path.suffix == ".rows":
        return _from_log(path)
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            told = json.loads(str(file["told"]))
            columns = {name: file[name].astype(np.int64) for name in COLUMNS}
            conditions = _conditions(told["conditions"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise RepogenError(f"not a file of samples: {error}", where=str(path)) from None
    return Samples(**columns, failures=told["failures"], conditions=conditions, server=told["server"])


def load_all(folder: Path) -> tuple[Samples, ...]:
    """Return the samples of every process that wrote into `folder`, whether or not it lived to the end."""
    finished = sorted(folder.glob("*.npz"))
    names = {path.stem for path in finished}
    killed = [path for path in sorted(folder.glob("*.rows")) if path.stem not in names]
    return tuple(load(path) for path in (*finished, *killed))


def header(conditions: Conditions) -> bytes:
    """Return the first line of a log; rows of `COLUMNS` as 64-bit numbers follow, in the order of answers."""
    return json.dumps(asdict(conditions)).encode() + b"\n"


def mark(begin: int) -> bytes:
    """Return the row that says when the measurement began: it has no instant of sending."""
    import numpy as np

    return np.array([0, 0, begin, 0, 0, 0, 0], dtype="<i8").tobytes()


def rows(data: bytes) -> tuple[Array, int]:
    """Return the whole rows of a piece of a log as columns, and when the measurement began (0: not yet)."""
    import numpy as np

    whole = len(data) // WIDTH * WIDTH
    columns = np.frombuffer(data[:whole], dtype="<i8").reshape(-1, len(COLUMNS)).T
    marks = columns[:, columns[1] == 0]
    return columns[:, columns[1] != 0], int(marks[2][-1]) if marks.size else 0


def parts_of(samples: Sequence[Samples]) -> dict[str, list[Samples]]:
    """Group samples by the run they belong to, in the order of their start."""
    found: dict[str, list[Samples]] = {}
    for part in sorted(samples, key=lambda part: part.conditions.epoch + part.conditions.begin):
        key = part.conditions.run or f"{part.conditions.host}-{part.conditions.pid}"
        found.setdefault(f"{key}/{part.conditions.model}", []).append(part)
    return found


def _from_log(path: Path) -> Samples:
    import numpy as np

    try:
        first, found, rest = path.read_bytes().partition(b"\n")
        told = _conditions(json.loads(first))
    except (OSError, ValueError, TypeError) as error:
        raise RepogenError(f"not a log of samples: {error}", where=str(path)) from None
    if not found:
        raise RepogenError("not a log of samples: its first line is cut off", where=str(path))
    columns, begin = rows(rest)
    codes = Counter(int(code) for code in columns[4] if code)
    failures = {f"gRPC status {code}": count for code, count in codes.items()}
    ordered = columns[:, np.argsort(columns[1], kind="stable")]
    named = dict(zip(COLUMNS, ordered, strict=True))
    return Samples(**named, failures=failures, conditions=replace(told, begin=begin))


def _conditions(told: Mapping[str, Any]) -> Conditions:
    known = {item.name for item in fields(Conditions)}
    return Conditions(**{key: value for key, value in told.items() if key in known})


def _narrow(name: str, column: Array) -> Array:
    import numpy as np

    return column.astype(np.int16) if name == "status" else column.astype(np.int32) if name == "batch" else column
