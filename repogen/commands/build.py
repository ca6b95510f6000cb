"""`repogen build`: the plans of models into the cache, and nothing else: what a job on a GPU node runs."""

from collections.abc import Sequence
from pathlib import Path

from repogen.commands.building import building
from repogen.console import Console
from repogen.errors import RepogenError


def build(manifest: Path, *, only: Sequence[str], index: int | None, jobs: int, console: Console) -> int:
    """Build what is not built yet of the models that `only` names; with `index`, of that one of them."""
    from repogen.builds import build_pending
    from repogen.desired import chosen

    _, models = chosen(manifest, _indexed(only, index), jobs=jobs)
    pending = [model for model in models if model.pending]
    with building(console) as progress:
        built = build_pending(pending, progress=progress)
    for model in models:
        state = "built" if model in pending else "in the cache" if model.build else "nothing to build"
        console.say(f"{model.name}  {state}")
    console.document({"built": [model.name for model in built], "models": [model.name for model in models]})
    return 0


def _indexed(only: Sequence[str], index: int | None) -> Sequence[str]:
    if index is None:
        return only
    if index >= len(only):
        hint = "name each with --model; the index counts from 0"
        raise RepogenError(f"there are {len(only)} models and no number {index}", where="--index", hint=hint)
    return only[index : index + 1]
