"""What Triton's onnxruntime backend would see of the ONNX files beside a config."""

import atexit
import json
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from repogen.cache import cached
from repogen.check.subject import Model, Subject, version_of
from repogen.files import sha256

_RULES = "1"
"""Changes whenever the child reads files in another way: remembered answers are then asked for again."""
_PATIENCE = 120.0


@dataclass(frozen=True)
class Seen:
    """An input or output as the session reports it: -1 is a free axis, () or None a scalar to the backend.

    `kind` is tensor, or what else it is; `dtype` is Triton's name, or ONNX's own where Triton has none.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[int, ...] | None


@dataclass(frozen=True)
class OnnxFacts:
    """One ONNX file. `problem` says why it is none, and all else is then empty.

    `overridable` are inputs with a default value; `defaults` are their names, before IR 4 too, where no request may
    give them. `mixing` are operators that may work along axis 0. `rows_follow`: the graph alone shows that each output
    has as many rows as the batch. `refused` is what ONNX Runtime said to the file.
    """

    path: Path
    problem: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Seen, ...] = ()
    overridable: tuple[Seen, ...] = ()
    defaults: tuple[str, ...] = ()
    outputs: tuple[Seen, ...] = ()
    unused: tuple[str, ...] = ()
    external: tuple[tuple[str, str], ...] = ()
    custom: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    mixing: tuple[str, ...] = ()
    rows_follow: bool = False
    seen_by: str = ""
    refused: str = ""

    @property
    def readable(self) -> bool:
        return not self.problem


def readable_models(subject: Subject) -> Iterator[tuple[str, OnnxFacts]]:
    """Give the ONNX files that the onnxruntime backend would open and could read."""
    if subject.model.backend == "onnxruntime":
        yield from ((name, facts) for name, facts in onnx_files(subject.model) if facts.readable)


def said_and_seen(subject: Subject) -> Iterator[tuple[str, Any, OnnxFacts, Seen]]:
    """Give each tensor of the config that the model has: its field, what it says, and what the model says."""
    for _, facts in readable_models(subject):
        for part, seen in (("input", (*facts.inputs, *facts.overridable)), ("output", facts.outputs)):
            by_name = {row.name: row for row in seen}
            for index, said in enumerate(getattr(subject.config, part)):
                if said.name in by_name and by_name[said.name].kind == "tensor":
                    yield f"{part}[{index}]", said, facts, by_name[said.name]


def onnx_files(model: Model) -> Iterator[tuple[str, OnnxFacts]]:
    """Give each served version's ONNX file that is there: its path relative to the model, and its facts."""
    for name in model_files(model, "model.onnx"):
        path = model.folder / name
        inner = "/model.onnx" if path.is_dir() else ""
        if (model.folder / f"{name}{inner}").is_file():
            yield f"{name}{inner}", read_onnx(model.folder / f"{name}{inner}")


def model_files(model: Model, default: str) -> Iterator[str]:
    """Give the path that the server opens in each version that it serves, relative to the model's folder."""
    file = model.config.default_model_filename if model.config is not None else ""
    for folder in served_folders(model):
        yield f"{folder}/{file or default}"


def served_folders(model: Model) -> list[str]:
    """Return the version folders that the config's version policy serves."""
    return [folder for folder in model.version_folders if version_of(folder) in model.served]


def read_onnx(path: Path) -> OnnxFacts:
    """Return the facts of one file, remembered by its content."""
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _read(path: Path, size: int, _changed: int) -> OnnxFacts:
    if size == 0:
        return OnnxFacts(path, "it is empty (0 bytes)")
    with path.open("rb") as file:
        if file.read(64).startswith(b"version https://git-lfs"):
            return OnnxFacts(path, "it is a Git LFS pointer, not the model itself")
    beside = sorted((str(other), other.stat().st_size) for other in path.parent.rglob("*") if other.is_file())
    key = json.dumps([_RULES, _onnxruntime_version(), sha256(path), [[Path(n).name, size] for n, size in beside]])
    return _facts(path, cached("seen", key, lambda: _READER.ask(path)))


def _onnxruntime_version() -> str:
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""


def _facts(path: Path, answer: Mapping[str, Any]) -> OnnxFacts:
    values: dict[str, Any] = dict(answer)
    for part in ("inputs", "overridable", "outputs"):
        values[part] = tuple(
            Seen(row["name"], row["kind"], row["dtype"], None if row["dims"] is None else tuple(row["dims"]))
            for row in answer.get(part, ())
        )
    for part in ("defaults", "unused", "custom", "unknown", "mixing"):
        values[part] = tuple(answer.get(part, ()))
    values["external"] = tuple((location, tensor) for location, tensor in answer.get("external", ()))
    return OnnxFacts(path, **values)


class _Reader:
    """The child, started when first asked and again when a file took it down."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, path: Path) -> dict[str, Any]:
        with self._lock:
            child = self._child = self._child or _start()
            assert child.stdin is not None
            assert child.stdout is not None
            line = ""
            try:
                child.stdin.write(json.dumps(str(path.absolute())) + "\n")
                child.stdin.flush()
                ready, _, _ = select.select([child.stdout], [], [], _PATIENCE)
                line = child.stdout.readline() if ready else ""
            except BrokenPipeError:
                pass
            if line:
                return dict(json.loads(line))
            child.kill()
            code = child.wait()
            self._forget()
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            return {"problem": f"reading it ended with {how}, or took more than {_PATIENCE:.0f} s"}

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.communicate()  # closes its stdin: it ends by itself


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "repogen.check.onnx_reader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


_READER = _Reader()
atexit.register(_READER.close)
