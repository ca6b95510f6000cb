"""`repogen bench`: load tests of one model, or of each in turn, at one rate or at several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from repogen.console import Console
from repogen.errors import RepogenError
from repogen.load.metrics import Result, result
from repogen.load.runner import Load, measure
from repogen.model import ServedModel

if TYPE_CHECKING:
    from repogen.load.samples import Samples

_POOL = 32
"""Different requests that are sent in turn, so that no cache answers for the model."""

Run = tuple[Result, "tuple[Samples, ...]"]


def bench(
    manifest: Path,
    *,
    only: Sequence[str],
    url: str | None,
    jobs: int,
    rates: Sequence[float] = (),
    shapes: Sequence[str] = (),
    samples: Path | None = None,
    report: Path | None = None,
    csv: Path | None = None,
    console: Console,
    **settings: object,
) -> int:
    """Load the models that `manifest` names, on a live server, and say what came of it. Return 1 if a run is void."""
    from repogen.desired import chosen
    from repogen.endpoint import find_url
    from repogen.publish import state_folder

    load = Load(**settings)  # type: ignore[arg-type]  # click has made them so
    loads = [replace(load, rate=rate) for rate in rates] or [load]
    for one in loads:
        one.check()
    root, models = chosen(manifest, only, jobs=jobs)
    models = tuple(model for model in models if load.batch == "1" or model.max_batch_size or model.name in only)
    address = find_url(url, state_folder(root))
    runs = bench_models(
        models,
        loads,
        url=address,
        shapes=shapes,
        folder=samples,
        verbose=console.verbose > 0,
        progress=progress_line(console),
    )
    show(runs, report=report, csv=csv, console=console, url=address)
    return 0 if all(one.verdict.valid for one, _ in runs) else 1


def bench_models(
    models: Sequence[ServedModel],
    loads: Sequence[Load],
    *,
    url: str,
    shapes: Sequence[str] = (),
    folder: Path | None = None,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Run]:
    """Load each model in turn and return what its clients saw and what the server did, with the raw samples."""
    from repogen.load import payload
    from repogen.load.distribution import parse

    # What one model does not take is found before the first is loaded.
    pools = []
    for model in models:
        fixed, sizes = payload.split_sizes(model, shapes)
        shaped = payload.with_shapes(model, fixed)
        batch = parse(loads[0].batch, "--batch")
        pools.append(payload.pool(shaped, batch=batch, count=_POOL, seed=loads[0].seed, sizes=sizes))
    runs: list[Run] = []
    for model, requests in zip(models, pools, strict=True):
        for load in loads:
            name = f"{model.name}  {load.rate:g}/s" if load.rate else f"{model.name}  {load.users} users"
            said = (lambda words, name=name: progress(f"{name}  {words}")) if progress else None
            measured = measure(url, model.name, requests, load, folder=folder, verbose=verbose, progress=said)
            runs.append((result(measured), measured))
    if progress:
        progress("")
    return runs


def show(runs: Sequence[Run], *, report: Path | None, csv: Path | None, console: Console, url: str = "") -> None:
    """Print the figures and write the files that were asked for."""
    from repogen.report import as_csv, as_html, as_text

    results = [one for one, _ in runs]
    as_text(results, console.stream)
    if report:
        _write(report, as_html(runs))
        console.note(f"report: {report}")
    if csv:
        import io

        text = io.StringIO()
        as_csv(results, text)
        _write(csv, text.getvalue())
    told = [{**vars(one), "load": one.load} for one in results]
    console.document({"url": url, "results": told} if url else {"results": told})


def progress_line(console: Console) -> Callable[[str], None] | None:
    """Return what rewrites one line of a terminal; nothing where nobody watches."""
    if console.quiet or console.verbose or not sys.stderr.isatty():
        return None

    def say(words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()

    return say


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RepogenError(f"cannot be written: {error.strerror}", where=str(path)) from None
