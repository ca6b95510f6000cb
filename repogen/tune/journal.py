"""What a tuning run has done, on the disk at once: trials survive a crash, and a borrowed config finds its way back.

One JSON document a line, in the order in which things happened; a line that a crash cut short counts for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repogen.errors import RepogenError
from repogen.tune.service import ClosedRun, Latencies, OpenRun
from repogen.tune.setting import QueuePolicy, Setting
from repogen.tune.trial import Goal, Measured, Trial


@dataclass(frozen=True)
class Evidence:
    """Of what trials are evidence: they say nothing of another backend, device or build."""

    model: str
    backend: str
    device: str
    build: str  # digest of the served files
    server: str = ""

    def differences(self, other: Evidence) -> list[str]:
        """Return in words what is not the same; the server's version may differ."""
        pairs = (("model", self.model, other.model), ("backend", self.backend, other.backend))
        rows = (*pairs, ("device", self.device, other.device), ("build", self.build[:12], other.build[:12]))
        return [f"{name} {mine}, not {theirs}" for name, mine, theirs in rows if mine != theirs]


class Journal:
    """The file of one model's tuning."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **content: Any) -> None:
        """Append and force to the disk."""
        line = json.dumps({"kind": kind, **content}, default=asdict) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                if file.tell() and not self._ends_whole():
                    file.write(b"\n")  # what a crash cut short stays a line of its own
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RepogenError(f"cannot be written: {error.strerror}", where=str(self.path)) from None

    def entries(self) -> Iterator[Mapping[str, Any]]:
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "kind" in entry:
                yield entry

    def borrowed(self) -> Mapping[str, Any] | None:
        """Return the entry of a config that was replaced on a server and not put back."""
        open_entry: Mapping[str, Any] | None = None
        for entry in self.entries():
            if entry["kind"] == "borrowed":
                open_entry = open_entry or entry  # a later one was read from a server that was not put back
            elif entry["kind"] == "returned":
                open_entry = None
        return open_entry

    def runs(self, evidence: Evidence) -> dict[int, list[ClosedRun | OpenRun]]:
        """Return the calibration runs for this evidence by instance count; the latest of each count."""
        found: dict[int, list[ClosedRun | OpenRun]] = {}
        for entry in self._of(evidence, "calibration"):
            found[entry["instances"]] = [run_from(row) for row in entry["runs"]]
        return found

    def trials(self, evidence: Evidence, goal: Goal, arrivals: str) -> list[Trial]:
        """Return the trials for this evidence and question."""
        asked = [asdict(goal), arrivals]
        return [
            _trial(entry["trial"])
            for entry in self._of(evidence, "trial")
            if [entry["goal"], entry["arrivals"]] == asked
        ]

    def _of(self, evidence: Evidence, kind: str) -> Iterator[Mapping[str, Any]]:
        wanted = asdict(evidence)
        return (entry for entry in self.entries() if entry["kind"] == kind and entry["evidence"] == wanted)

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def setting_from(told: Mapping[str, Any]) -> Setting:
    levels = tuple((level, QueuePolicy(**policy)) for level, policy in told["level_policies"])
    plain = {key: value for key, value in told.items() if key not in ("preferred", "policy", "level_policies")}
    policy = QueuePolicy(**told["policy"])
    return Setting(preferred=tuple(told["preferred"]), policy=policy, level_policies=levels, **plain)


def _trial(told: Mapping[str, Any]) -> Trial:
    measured = dict(told["measured"])
    measured["batches"] = _pairs(measured["batches"])
    rest = {key: told[key] for key in ("rate", "role", "predicted")}
    return Trial(setting=setting_from(told["setting"]), measured=Measured(**measured), **rest)


def run_from(told: Mapping[str, Any]) -> ClosedRun | OpenRun:
    batches = tuple((int(size), int(count), float(seconds)) for size, count, seconds in told["batches"])
    setting, latencies = setting_from(told["setting"]), Latencies(**told["latencies"])
    if "due" in told:
        return OpenRun(setting, tuple(told["due"]), batches, latencies)
    return ClosedRun(setting, told["clients"], told["seconds"], batches, latencies)


def _pairs(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(size), int(count)) for size, count in rows)
