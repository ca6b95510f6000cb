"""`repogen bench`: one load test at one setting, for one model or for each in turn."""

from collections.abc import Sequence
from pathlib import Path

from repogen.console import Console
from repogen.load.metrics import Result, serve, summarise
from repogen.load.runner import measure
from repogen.model import ServedModel
from repogen.report import as_text
from repogen.triton import Client

_POOL = 32
"""Different requests that are sent in turn, so that no cache answers for the model."""


def bench(
    manifest: Path,
    *,
    only: Sequence[str],
    url: str | None,
    jobs: int,
    users: int,
    duration: float,
    batch: int,
    seed: int,
    console: Console,
) -> int:
    """Load the models that `manifest` names, on a live server, and print what came of it."""
    from repogen.desired import chosen
    from repogen.endpoint import find_url
    from repogen.publish import state_folder

    root, models = chosen(manifest, only, jobs=jobs)
    models = tuple(model for model in models if batch == 1 or model.max_batch_size or model.name in only)
    address = find_url(url, state_folder(root))
    results = bench_models(
        models, url=address, users=users, duration=duration, batch=batch, verbose=console.verbose > 0, seed=seed
    )
    as_text(results, console.stream)
    console.document({"url": address, "results": results})
    return 0


def bench_models(
    models: Sequence[ServedModel],
    *,
    url: str,
    users: int,
    duration: float,
    batch: int,
    seed: int,
    verbose: bool = False,
    deadline: float = 30.0,
) -> tuple[Result, ...]:
    """Load each model in turn and return what its clients saw and what the server did."""
    from repogen.load.payload import pool

    # A batch that one model does not take is found before the first is loaded.
    pools = [pool(model, batch=batch, count=_POOL, seed=seed) for model in models]
    results = []
    with Client(url) as client:
        for model, requests in zip(models, pools, strict=True):
            measured, statistics = measure(
                client,
                model.name,
                requests,
                users=users,
                duration=duration,
                deadline=deadline,
                verbose=verbose,
            )
            served = serve(statistics, model=model, users=users, batch=batch)
            results.append(Result(model.name, users, batch, summarise(measured), served))
    return tuple(results)
