"""Compare the tensors of a built plan with those that a model's config will name. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from repogen.model import ServedModel, ServedTensor


def differences(model: ServedModel, tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each name, type or shape in which a plan is not what `model` says."""
    found = []
    for kind, meant in (("input", model.inputs), ("output", model.outputs)):
        rows = {row["name"]: row for row in tensors if row["kind"] == kind}
        wanted = {tensor.name: tensor for tensor in meant}
        found += [f"{kind} {name!r} is missing" for name in wanted if name not in rows]
        found += [f"it has another {kind} {name!r}" for name in rows if name not in wanted]
        for name in wanted.keys() & rows.keys():
            found += _unlike(f"{kind} {name!r}", wanted[name], rows[name], batched=model.max_batch_size > 0)
    return found


def _unlike(what: str, meant: ServedTensor, row: Mapping[str, Any], *, batched: bool) -> list[str]:
    found = []
    if row["dtype"] != meant.dtype:
        found.append(f"{what} is {row['dtype']}, not {meant.dtype}")
    inner = meant.dims if meant.reshape is None else meant.reshape
    dims = (-1, *inner) if batched else tuple(inner)
    have = tuple(row["dims"])
    if len(have) != len(dims):
        found.append(f"{what} has {len(have)} axes, not {len(dims)}")
    elif any(a != b and -1 not in (a, b) for a, b in zip(have, dims, strict=True)):
        found.append(f"{what} is {list(have)}, not {list(dims)}")
    elif batched and have[0] != -1:
        found.append(f"{what} has the fixed first axis {have[0]}, so the plan takes no batches")
    if row["kind"] == "input" and row["shape_tensor"] != meant.shape_tensor:
        found.append(f"{what} {'is' if row['shape_tensor'] else 'is not'} one whose values are sizes")
    return found
