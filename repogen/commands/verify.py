"""`repogen verify`: is what a server answers what ONNX Runtime answers."""

from collections.abc import Sequence
from pathlib import Path

from repogen.console import Console


def verify(
    manifest: Path,
    *,
    only: Sequence[str],
    url: str | None,
    jobs: int,
    seed: int,
    console: Console,
    bisect: bool = False,
    precisions: bool = False,
) -> int:
    if bisect or precisions:  # of the graphs themselves: no server is asked
        from repogen.commands.precisions import compare_precisions, find_divergence

        report = find_divergence if bisect else compare_precisions
        return report(manifest, only=only, jobs=jobs, console=console)
    from repogen.desired import chosen
    from repogen.endpoint import find_url
    from repogen.publish import state_folder
    from repogen.triton import Client
    from repogen.verify import verify_model

    root, models = chosen(manifest, only, jobs=jobs)
    compared = [model for model in models if model.backend in ("onnxruntime", "tensorrt")]
    skipped = [model.name for model in models if model not in compared]
    with Client(find_url(url, state_folder(root))) as client:
        found = [row for model in compared for row in verify_model(model, client, seed=seed)]
        address = client.url
    console.table(
        ("model", "batch", "output", "max abs", "relative L2", ""),
        [
            (
                row.model,
                row.batch or "-",
                row.output,
                f"{row.max_abs:.2g}",
                f"{row.relative_l2:.2g}",
                row.problem or "ok",
            )
            for row in found
        ],
    )
    for name in skipped:
        console.say(f"{name}: a model without a graph has nothing to be compared with")
    wrong = sum(bool(row.problem) for row in found)
    verdict = f"{wrong} of {len(found)} answers are wrong" if wrong else f"all {len(found)} answers are right"
    console.say(f"{address}: {verdict}")
    console.document({"url": address, "compared": found, "wrong": wrong, "skipped": skipped})
    return 1 if wrong else 0
