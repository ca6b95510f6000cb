"""`repogen verify --bisect` and `--precisions`: where a lowered graph leaves fp32, and what each precision costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.console import Console
from repogen.units import size_text

if TYPE_CHECKING:
    from repogen.manifest import Manifest
    from repogen.precisions import Compared


def find_divergence(manifest: Path, *, only: Sequence[str], jobs: int, console: Console) -> int:
    """Print for each lowered model the first nodes that lose more than its gate allows."""
    from repogen.bisect import bisect
    from repogen.desired import chosen

    _, models = chosen(manifest, only, jobs=jobs)
    document = {}
    for model in models:
        if model.gate is None or model.gate.precision == "fp32":
            console.say(f"{model.name}: is served in fp32, so there is nothing to compare")
            continue
        found = bisect(model.gate)
        document[model.name] = found
        where = f"{found.compared} nodes compared on {found.file}"
        if not found.found:
            console.say(f"{model.name}: none is off by more than {found.limit:g} (worst {found.worst:.3g}; {where})")
            continue
        console.say(f"{model.name}: off by more than {found.limit:g} first at ({where}):")
        console.table(
            ("place", "node", "operator", "relative L2", "of its inputs"),
            [(row.place, row.node, row.operator, f"{row.error:.3g}", f"{row.into:.3g}") for row in found.found],
        )
    console.document(document)
    return 1 if any(found.found for found in document.values()) else 0


def compare_precisions(manifest: Path, *, only: Sequence[str], jobs: int, console: Console) -> int:
    """Print each model in each precision, side by side."""
    from repogen.desired import refuse_unknown
    from repogen.manifest import load_manifest
    from repogen.newest import with_newest

    del jobs  # latencies beside each other would mismeasure
    read = load_manifest(manifest)
    refuse_unknown(read, only)
    names = [name for name in read.models if name in only or not only]
    read = with_newest(replace(read, models={name: read.models[name] for name in names}))
    document: dict[str, Any] = {}
    for name in names:
        if read.models[name].backend not in (None, "onnxruntime", "tensorrt") or read.model_path(name).suffix == ".py":
            console.say(f"{name}: it has no graph to lower")
            continue
        console.note(f"comparing the precisions of {name}")
        rows = _compared(read, name)
        document[name] = [_row(row) for row in rows]
        _show(name, rows, console)
    console.document(document)
    return 0


def _compared(read: "Manifest", name: str) -> "tuple[Compared, ...]":
    from repogen.desired import read_and_prove
    from repogen.lowered import calibration_of, gate_of, source_of
    from repogen.precisions import side_by_side

    entry, folder = read.models[name], read.source.path.parent

    def where(*key: str | int) -> str:
        return read.where("models", name, *key)

    samples = None if entry.samples is None else folder / entry.samples
    graph, proof, files = read_and_prove(read.model_path(name), entry, samples=samples, where=where)
    gate = gate_of(entry, graph, proof, files, folder, where)
    return side_by_side(
        source_of(graph, proof, files),
        # Two limits for four precisions would say little: each is measured by its own defaults.
        replace(gate, limits={}, floor=None, drop=None),
        calibration=calibration_of(entry, folder, where),
        keep=entry.precision_options.keep_fp32 if entry.precision_options else (),
    )


def _show(name: str, rows: "Sequence[Compared]", console: Console) -> None:
    header = ("precision", "size", "of fp32", "ms (batch 1, CPU)", "memory", "cosine", "relative L2", "top-1", "")
    whole = rows[0].size
    table = []
    for row in rows:
        judged = row.verdict.rows if row.verdict else ()
        worst = max(judged, key=lambda one: one.relative_l2, default=None)
        agreeing = [one.top1 for one in judged if one.top1 is not None]
        table.append(
            (
                row.precision,
                size_text(row.size) if row.size else "-",
                f"{row.size / whole:.2f}" if row.size else "-",
                f"{row.latency:.2f}" if row.milliseconds else "-",
                size_text(row.memory) if row.memory else "-",
                f"{worst.cosine:.5f}" if worst else "-",
                f"{worst.relative_l2:.3g}" if worst else "-",
                f"{min(agreeing):.4f}" if agreeing else "-",
                row.missing or ("" if row.verdict is None or row.verdict.passed else "would not pass its gate"),
            )
        )
    console.say(name)
    console.table(header, table)


def _row(row: "Compared") -> dict[str, Any]:
    verdict = None if row.verdict is None else {"passed": row.verdict.passed, "rows": row.verdict.rows}
    return {
        "precision": row.precision,
        "size": row.size,
        "milliseconds": row.milliseconds,
        "memory": row.memory,
        "verdict": verdict,
        "note": row.note,
        "missing": row.missing,
    }
