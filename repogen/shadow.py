"""A new version beside the old one: loaded under another name, asked, and taken away before the two are exchanged.

The old version serves all the while, and nothing of it is touched where the new one does not hold what it should.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen import pbtxt
from repogen.errors import Refused, RepogenError, ServerError
from repogen.files import remove, sync_folder, text_of
from repogen.first_request import answers_once, await_unloaded, timed
from repogen.generations import state_folder
from repogen.live import Servers
from repogen.model import ServedModel
from repogen.plan import Change, Plan
from repogen.publish import write_model
from repogen.rendered import rendered
from repogen.staging import staging
from repogen.triton import Client

if TYPE_CHECKING:
    import numpy as np

    Answers = Mapping[str, np.ndarray[Any, Any]]

SUFFIX = "-shadow"
_MARK = "repogen_shadow_of"
"""A parameter of its config: by it the next run knows what one that was killed has left."""
_ROUNDS = 16
"""Requests of each size."""
Note = Callable[[str], None]


def refuse_impossible(names: Sequence[str], known: Sequence[str], root: str, live: Servers | None) -> None:
    """Raise, before anything is written, where a shadow cannot be had."""
    if not names:
        return
    if unknown := [name for name in names if name not in known]:
        raise Refused(f"there is no model {unknown[0]!r}", where="--shadow", hint=f"it has {', '.join(known)}")
    if live is None:
        raise Refused("a shadow is loaded and asked", where="--shadow", hint="say on which servers: --url HOST:PORT")
    if "://" in root:
        raise Refused("the repository is no folder", where="--shadow", hint="servers that read a store: leave it out")
    if polling := live.polling():
        hint = "start it with --model-control-mode=explicit"
        raise Refused(f"{polling[0]} looks at the repository by itself", where="--shadow", hint=hint)


def try_out(plan: Plan, names: Sequence[str], live: Servers, note: Note) -> None:
    """Let the new version of each of `names` answer warm traffic on every server, beside the old one.

    Raises ServerError where it does not load, is not what was rendered, or does not answer as it should. The caller
    is the repository's only writer.
    """
    root = plan.repository
    _clear(root, live)
    for change in plan.writes:
        if change.name not in names or change.model is None:
            continue
        if not (root / change.name).exists():
            note(f"{change.name} is new: there is nothing that a shadow would keep serving")
            continue
        try:
            _try(change, change.model, root, live, note)
        except ServerError as error:
            error.message += f"; {change.name} was not touched"
            raise


def shadow_of(model: ServedModel) -> ServedModel:
    return replace(model, name=f"{model.name}{SUFFIX}", parameters={**model.parameters, _MARK: model.name})


def _try(change: Change, model: ServedModel, root: Path, live: Servers, note: Note) -> None:
    shadow = shadow_of(model)
    config = rendered(shadow)
    with _published(shadow, config, root, live):
        live.bring(shadow.name, config, shadow)
        if not answers_once(pbtxt.parse(config)):
            note(f"{shadow.name} is loaded, and not asked: one request by itself means nothing to it")
            return
        for client in live.clients:
            note(f"{shadow.name} on {client.url}: {_ask(client, change.name, shadow)}")


@contextmanager
def _published(shadow: ServedModel, config: str, root: Path, live: Servers) -> Iterator[None]:
    """Put the shadow into the repository while the block runs, and take it out whatever happens."""
    target = root / shadow.name
    if target.exists():
        raise Refused("is a model of its own", where=str(target), hint="a shadow needs that name: rename the model")
    waiting = staging(state_folder(root))
    try:
        _put(shadow, config, waiting, target)
        yield
    finally:
        if target.exists():
            _take_out(target, live)
        remove(waiting)


def _put(shadow: ServedModel, config: str, waiting: Path, target: Path) -> None:
    try:
        waiting.mkdir(parents=True, exist_ok=True)
        write_model(shadow, config, waiting / shadow.name)
        (waiting / shadow.name).rename(target)
        sync_folder(target.parent)
    except OSError as error:
        hint = "it needs as much room as the model itself"
        raise RepogenError(f"the shadow cannot be written: {error.strerror}", where=str(target), hint=hint) from error


def _take_out(target: Path, live: Servers) -> None:
    """Unload the shadow everywhere, and only then take its folder: Triton may read it until it has let go."""
    try:
        live.unload(target.name)
        for client in live.clients:
            await_unloaded(client, target.name)
    finally:
        waiting = staging(state_folder(target.parent))
        waiting.mkdir(parents=True, exist_ok=True)
        aside = waiting / f"{target.name}%out"
        remove(aside)
        target.rename(aside)
        sync_folder(target.parent)
        remove(waiting)


def _clear(root: Path, live: Servers) -> None:
    """Take out what a run that was killed has left."""
    for folder in sorted(root.glob(f"*{SUFFIX}")):
        if f'"{_MARK}"' in text_of(folder / "config.pbtxt"):
            _take_out(folder, live)


def _ask(client: Client, name: str, shadow: ServedModel) -> str:
    """Send requests of every size that is batched to; return what was seen. Raises ServerError."""
    from repogen.load.payload import pool

    told = []
    for size in _sizes(shadow):
        requests = pool(shadow, count=_ROUNDS, batch=size, seed=0)
        first = timed(client, shadow.name, requests[0])
        started = time.perf_counter()
        for request in requests:
            answers = client.infer(shadow.name, request)
            if broken := _not_finite(answers):
                _refuse_new_ones(broken, client, name, request)
        mean = (time.perf_counter() - started) / len(requests)
        told.append(f"batch {size} {1e3 * first:.1f} ms at first, then {1e3 * mean:.1f} ms")
    return "; ".join(told)


def _sizes(model: ServedModel) -> list[int]:
    preferred = model.dynamic_batching.preferred_batch_size if model.dynamic_batching else ()
    return sorted({1, *preferred, max(model.max_batch_size, 1)})


def _not_finite(answers: "Answers") -> set[str]:
    import numpy as np

    return {name for name, array in answers.items() if array.dtype.kind == "f" and not np.isfinite(array).all()}


def _refuse_new_ones(broken: set[str], client: Client, name: str, request: Any) -> None:
    """Raise where the old version has numbers in its answer to the same request."""
    try:
        before = _not_finite(client.infer(name, request))
    except ServerError:  # its inputs are others: nothing to compare with
        return
    if new := sorted(broken - before):
        raise ServerError(
            f"the new version of {name} answers NaN or infinity in {', '.join(new)}, the old one does not"
        )
