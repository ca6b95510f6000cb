"""Lower a model to another precision, in a child process, and keep the result by the content that decides it."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repogen.cache import cache_folder, cached
from repogen.child import MEMORY, ChildFailed, ask
from repogen.errors import ConversionError, ManifestError
from repogen.files import model_file, sha256
from repogen.model import InputHint, ModelFile, Tensor

_RULES = "1"
"""Changes whenever the rewrite does: a remembered graph is then made again."""
LOWERED = ("fp16", "bf16", "int8")
METHODS = ("percentile", "entropy", "minmax")
_SECONDS = 1800.0
_TIMES_SOURCE = 12  # bytes that the child may have on top for each of the model's: copies, sessions, activations


@dataclass(frozen=True)
class Calibration:
    """The user's samples, how thresholds come from them, and how many at most are read."""

    files: tuple[Path, ...]
    method: str = "percentile"
    percentile: float | None = None
    samples: int | None = None


@dataclass(frozen=True)
class Source:
    """The model to lower: its file, the sha256 of all its bytes, and what is known of its inputs."""

    path: Path
    digest: str
    inputs: tuple[Tensor, ...]
    batched: bool
    size: int  # bytes, weights files included
    sizes: Mapping[str, int] = field(default_factory=dict)
    hints: Mapping[str, InputHint] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowered:
    """A lowered model: its files as the version folder has them, and what was done to it."""

    files: tuple[ModelFile, ...]
    precision: str
    half: int  # nodes that now compute in fp16 or bf16
    quantised: int  # nodes whose inputs and weights are int8
    casts: int
    kept: Mapping[str, str]  # nodes that stay in fp32, each with the reason
    ratio: float  # bytes, of the source's
    notes: tuple[str, ...]

    def what(self) -> str:
        """Say for people what was done."""
        done = f"{self.quantised} nodes in int8" if self.quantised else f"{self.half} nodes in {self.precision}"
        kept = f", {len(self.kept)} kept in fp32, {self.casts} casts" if self.half else ""
        return f"{self.precision}: {done}{kept}; {self.ratio:.2f} of the fp32 file's size"


def lower(
    source: Source,
    precision: str,
    *,
    calibration: Calibration | None = None,
    keep: Sequence[str] = (),
    io: str = "fp32",
    where: str = "",
    memory: int = MEMORY,
    seconds: float = _SECONDS,
) -> Lowered:
    """Return `source` lowered to fp16, bf16 or int8, out of the cache where it is there.

    `keep` names nodes or operators that stay in fp32; `io` is fp32, or graph where inputs and outputs become half
    too. Without calibration data the ranges for fp16 come from made-up inputs. Raises ManifestError for data that
    are not right and ConversionError for a model that cannot be lowered.
    """
    if precision == "int8" and calibration is None:
        hint = "calibration: {data: calib/*.npz}, real samples of the inputs along axis 0"
        raise ManifestError("int8 needs calibration data", where=where, hint=hint)
    if precision == "int8" and io != "fp32":
        raise ManifestError("int8 keeps inputs and outputs in fp32", where=where, hint="remove io")
    question = {
        "path": str(source.path),
        "precision": precision,
        "keep": sorted(set(keep)),
        "io": io,
        "inputs": [asdict(tensor) for tensor in source.inputs],
        "batched": source.batched,
        "sizes": dict(source.sizes),
        **_data(source, calibration),
        "seconds": seconds * 0.7,
    }
    limit = memory + _TIMES_SOURCE * source.size
    contents = [sha256(Path(file)) for file in question["files"]]
    table = _table(question, [source.digest, contents, _hint_contents(source)], where, limit, seconds)
    key = _key([_RULES, source.digest, precision, question["keep"], io, table, _versions()])
    return _kept(key, source, precision, table) or _made(key, source, question, table, where, limit, seconds)


def _data(source: Source, calibration: Calibration | None) -> dict[str, Any]:
    hints = {
        name: asdict(hint) | {"file": str(hint.file) if hint.file else None}
        for name, hint in sorted(source.hints.items())
    }
    files = [str(file) for file in calibration.files] if calibration else []
    return {
        "files": files,
        "hints": hints,
        "method": calibration.method if calibration else "minmax",
        "percentile": calibration.percentile if calibration else None,
        "samples": calibration.samples if calibration else None,
    }


def _hint_contents(source: Source) -> list[str]:
    return [sha256(hint.file) for _, hint in sorted(source.hints.items()) if hint.file]


def _versions() -> list[str]:
    from importlib.metadata import version

    return [version(name) for name in ("onnx", "onnxruntime", "numpy")]


def _key(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _table(
    question: Mapping[str, Any], contents: Sequence[Any], where: str, memory: int, seconds: float
) -> dict[str, Any]:
    """Return the calibration table, remembered by the content of the model and of the data."""
    if question["precision"] == "bf16":  # it holds whatever fp32 holds
        return {"largest": {}, "thresholds": {}, "notes": [], "samples": 0}
    said = {name: value for name, value in question.items() if name not in ("path", "files", "io", "seconds")}
    said["hints"] = {name: {**row, "file": None} for name, row in question["hints"].items()}
    if question["precision"] != "int8":
        said["keep"] = []
    key = json.dumps([_RULES, said, contents, _versions()], sort_keys=True)
    made: dict[str, Any] = cached(
        "calibration", key, lambda: _asked({**question, "task": "measure"}, where, memory, seconds)
    )
    return made


def _asked(question: Mapping[str, Any], where: str, memory: int, seconds: float) -> dict[str, Any]:
    try:
        answer = ask("precision.rewriting", question, memory=memory, seconds=seconds)
    except ChildFailed as failure:
        hint = "give it more --memory, fewer samples, or keep it in fp32"
        message = f"{question['path']} could not be lowered to {question['precision']}: {failure}"
        raise ConversionError(message, where=where, hint=hint) from None
    if "bad_data" in answer:
        raise ManifestError(answer["bad_data"], where=where, hint="np.savez(file, **inputs) writes one")
    if "error" in answer:
        raise ConversionError(f"{question['path']} {answer['error']}", where=where, hint=answer["hint"])
    answer.pop("peak")
    return answer


def _kept(key: str, source: Source, precision: str, table: Mapping[str, Any]) -> Lowered | None:
    """Return what is remembered under `key`; None where it is not there or was damaged, and then it is removed."""
    folder = _folder() / key
    try:
        done = json.loads((folder / "lowered.json").read_text())
        files = tuple(model_file(name, folder / name) for name in done["files"])
        whole = [file.sha256 for file in files] == done["sha256"]
    except (OSError, ValueError, KeyError):
        whole = False
    if not whole:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return _lowered(done, files, source, precision, table)


def _made(
    key: str,
    source: Source,
    question: Mapping[str, Any],
    table: Mapping[str, Any],
    where: str,
    memory: int,
    seconds: float,
) -> Lowered:
    root = _folder()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".making-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        asked = {**question, "task": "lower", "table": table, "folder": str(made)}
        done = _asked(asked, where, memory, seconds)
        done["sha256"] = [sha256(made / name) for name in done["files"]]
        (made / "lowered.json").write_text(json.dumps(done))
        try:
            made.rename(root / key)
        except OSError:  # another run has made the same
            if not (root / key).is_dir():
                raise
    files = tuple(model_file(name, root / key / name) for name in done["files"])
    return _lowered(done, files, source, question["precision"], table)


def _folder() -> Path:
    return Path(os.path.abspath(cache_folder())) / "lowered"  # noqa: PTH100 - links stay


def _lowered(
    done: Mapping[str, Any], files: tuple[ModelFile, ...], source: Source, precision: str, table: Mapping[str, Any]
) -> Lowered:
    return Lowered(
        files=files,
        precision=precision,
        half=done["half"],
        quantised=done["quantised"],
        casts=done["casts"],
        kept=done["kept"],
        ratio=sum(file.size for file in files) / source.size,
        notes=tuple(table["notes"]),
    )
