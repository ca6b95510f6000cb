"""What one generator process is told to do, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from repogen.errors import RepogenError


@dataclass(frozen=True)
class Spec:
    """One model under one load. `folder` and `name` say where the samples go.

    `payloads` is a file of requests; without one they are made from the server's own config (`shapes`, `batch`).
    A duration of 0 lasts until somebody says stop. `rate` is of all requests a second, where `arrivals` is no
    closed loop; in one, as many requests are under way as there are users.
    """

    url: str
    model: str
    folder: str
    name: str
    run: str = ""
    payloads: str = ""
    shapes: tuple[str, ...] = ()
    batch: str = "1"
    pool: int = 32
    arrivals: str = "closed"
    rate: float = 0.0
    users: int = 1
    warm_up: float = 1.0
    duration: float = 0.0
    deadline: float = 30.0
    seed: int = 0
    workers: int = 1  # generators that share the load
    metrics: str = ""  # host:port of the server's metrics; by default beside its gRPC port

    @property
    def path(self) -> Path:
        """Where the finished samples lie."""
        return Path(self.folder) / f"{self.name}.npz"

    @property
    def log(self) -> Path:
        """Where samples lie while the run lasts, and stay when it is killed."""
        return Path(self.folder) / f"{self.name}.rows"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_spec(argument: str) -> Spec:
    """Read a spec from its JSON, or from the file that has it."""
    plain = argument.lstrip().startswith("{")
    where = "spec" if plain else argument
    try:
        told = json.loads(argument if plain else Path(argument).read_text())
        known = {field.name for field in fields(Spec)}
        if unknown := sorted(set(told) - known):
            raise RepogenError(f"unknown key {unknown[0]!r}", where=where, hint=f"known: {', '.join(sorted(known))}")
        return Spec(**{**told, "shapes": tuple(told.get("shapes", ()))})
    except (OSError, ValueError, TypeError) as error:
        raise RepogenError(f"no spec of a load test: {error}", where=where) from None
