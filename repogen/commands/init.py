"""`repogen init`: a commented manifest for ONNX files."""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from repogen.console import Console
from repogen.errors import ModelError, RepogenError

_HEADER = """\
# Written by repogen init. Every value says why it was chosen; `repogen schema` lists what else there is.
triton: "{release}"                     # the NGC release that serves: the newest that repogen knows well
repository: model_repository

defaults:
  instances: [{{kind: {kind}}}]            # {why}
  dynamic_batching: {{max_queue_delay: 0ms}}  # requests merge while an instance is busy, and none waits for others

models:
"""
_RELEASE = "26.08"


def init(paths: Sequence[Path], *, output: Path, kind: str, force: bool, jobs: int, console: Console) -> int:
    files = found(paths or [Path()])
    if not files:
        where = ", ".join(map(str, paths)) or "this folder"
        raise RepogenError(f"no ONNX file in {where}", hint="name a file, or a folder that holds some")
    if output.exists() and not force:
        raise RepogenError("exists already", where=str(output), hint="--force overwrites it, -o names another")
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        written = list(pool.map(partial(_entry, base=output.parent), _named(files)))
    why = {"gpu": "one execution a GPU; cpu for a server without one", "cpu": "for a server without GPUs"}[kind]
    text = _HEADER.format(release=_RELEASE, kind=kind, why=why) + "\n".join(entry for entry, _ in written)
    output.write_text(text)
    refused = {str(path): reason for path, (_, reason) in zip(files, written, strict=True) if reason}
    for path, reason in refused.items():
        console.say(f"{console.paint('left out', 'yellow')}: {path}: {reason}")
    console.say(f"wrote {output} with {len(files) - len(refused)} models; next: repogen plan -f {output}")
    console.document({"manifest": str(output), "models": len(files) - len(refused), "left_out": refused})
    return 1 if refused else 0


def found(paths: Sequence[Path]) -> list[Path]:
    """Return the ONNX files that `paths` are or hold, at any depth, sorted."""
    files: set[Path] = set()
    for path in paths:
        if path.is_dir():
            files |= {file for file in path.rglob("*.onnx") if not any(part.startswith(".") for part in file.parts[1:])}
        else:
            files.add(path)
    return sorted(files)


def _named(files: Sequence[Path]) -> list[tuple[str, Path]]:
    """Give each file a model name of its own: its stem, with a number where two are alike."""
    taken: dict[str, int] = {}
    named = []
    for file in files:
        stem = next((name for name in (file.stem, *_folders(file)) if name != "model"), "model")
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-")[:100] or "model"
        taken[name.casefold()] = taken.get(name.casefold(), 0) + 1
        count = taken[name.casefold()]
        named.append((name if count == 1 else f"{name}_{count}", file))
    return named


def _folders(file: Path) -> list[str]:
    """Return the folders of `model.onnx`, nearest first, less the version folders of a repository."""
    return [part for part in reversed(file.parent.parts) if not part.isdigit()]


def _entry(named: tuple[str, Path], *, base: Path) -> tuple[str, str]:
    """Return the manifest text of one model, and why it had to be left out ("" where it is in)."""
    from repogen.desired import read_and_prove, served_by_default

    name, path = named
    try:
        graph, proof, files = read_and_prove(path)
    except ModelError as error:
        return f"  # {name}: {path} was left out: {error.message}\n", error.message
    model = served_by_default(path, graph, proof, files)
    batching = proof.reason if proof.batchable is not None else f"not proved: {proof.reason}"
    lines = [
        f"  {name}:",
        f"    source: {_quoted(os.path.relpath(path, base or '.'))}",
        f"    max_batch_size: {model.max_batch_size:<14}# {_one_line(batching)}",
    ]
    free = dict.fromkeys(label for tensor in model.inputs for label in tensor.labels if label)
    spans = [(label, model.shapes[label]) for label in free if label in model.shapes]
    if spans:
        lines.append(
            "    shapes:                           # sizes at which it ran: put your own smallest, usual, largest"
        )
        lines += [
            f"      {_quoted(label)}: {{min: {span.min}, opt: {span.opt}, max: {span.max}}}" for label, span in spans
        ]
    return "\n".join(lines) + "\n", ""


def _quoted(text: str) -> str:
    """Return `text` as a YAML scalar: plain where nothing in it could be taken for something else."""
    import json

    return text if re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./-]*", text) else json.dumps(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
