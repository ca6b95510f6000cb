"""`repogen.lock`, beside the manifest: what each published plan was built of, with what, on what, and when."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repogen import build_cache
from repogen.build_key import build_key
from repogen.errors import RepogenError
from repogen.model import ServedModel

_FORMAT = 1


def lock_path(manifest: Path) -> Path:
    return manifest.with_suffix(".lock")


def write_lock(manifest: Path, models: Sequence[ServedModel]) -> None:
    """Record the plans of `models`; entries of models that are no longer there go. No plan, no file."""
    path = lock_path(manifest)
    entries = {model.name: entry for model in models if (entry := _entry(model)) is not None}
    if not entries and not path.exists():
        return
    text = json.dumps({"format": _FORMAT, "models": entries}, indent=2, sort_keys=True) + "\n"
    if path.exists() and path.read_text() == text:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def read_lock(manifest: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded entries by model, {} without a file. Raises RepogenError for a file that is none."""
    path = lock_path(manifest)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RepogenError(f"cannot be read: {error}", where=str(path), hint="remove it: sync writes it anew") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        hint = "remove it: sync writes it anew"
        raise RepogenError("is not a lock file of this repogen", where=str(path), hint=hint)
    entries: dict[str, dict[str, Any]] = document["models"]
    return entries


def _entry(model: ServedModel) -> dict[str, Any] | None:
    """Return what is recorded of a model, None where it has no plan."""
    if model.build is None or model.pending:
        return None
    key = build_key(model.build)
    entry, _ = build_cache.find(key)
    if entry is None:
        return None
    facts = entry.facts
    gpu = facts["gpu"]
    return {
        "source": model.source,
        "source_sha256": model.build.onnx[0].sha256,
        "external_sha256": {file.name: file.sha256 for file in model.build.onnx[1:]},
        "key": key,
        "plan_sha256": entry.plan.sha256,
        "precision": model.build.precision,
        "kind": facts["kind"],
        "tensorrt": facts["version"],
        "gpu": gpu.get("name", ""),
        "compute_capability": gpu.get("capability", ""),
        "driver": gpu.get("driver", ""),
        "built": facts["built"],
        "seconds": round(facts["seconds"], 2),
    }
