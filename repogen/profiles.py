"""Optimisation profiles: the shapes that a plan of a model must take. Pure."""

from collections.abc import Callable, Mapping, Sequence

from repogen.errors import ManifestError
from repogen.model import InputHint, Profile, ServedModel, ServedTensor, ShapeRange, Span
from repogen.settings_schema import ProfileEntry

Where = Callable[..., str]
_HINT = "write `profiles: [{values: {NAME: {min: [...], opt: [...], max: [...]}}}]` or give the input `values: [...]`"


def profiles_of(
    model: ServedModel, said: Sequence[ProfileEntry], shape_inputs: Mapping[str, str], where: Where
) -> tuple[Profile, ...]:
    """Return the profiles of a model's plan: those that the manifest lists, or the one that its shapes say.

    When the model batches, a profile goes from 1 to max_batch_size unless its entry says a narrower range; some
    profile must take the smallest and some the largest. Raises ManifestError.
    """
    entries = said or (ProfileEntry(),)
    profiles = tuple(
        _profile(model, entry, shape_inputs, lambda *key, number=number: where("profiles", number, *key))
        for number, entry in enumerate(entries)
    )
    if model.max_batch_size:
        _check_batches(model, entries, where)
    return profiles if any(profile.shapes or profile.values for profile in profiles) else ()


def _profile(model: ServedModel, entry: ProfileEntry, shape_inputs: Mapping[str, str], where: Where) -> Profile:
    labels = {label for tensor in model.inputs for label in tensor.labels if label}
    for label in entry.shapes:
        if label not in labels:
            hint = f"free axes: {', '.join(sorted(labels)) or 'none'}"
            raise ManifestError(f"the model has no free axis {label!r}", where=where("shapes", label), hint=hint)
    spans = {
        **model.shapes,
        **{label: ShapeRange(span.min, span.opt, span.max) for label, span in entry.shapes.items()},
    }
    for label, span in spans.items():
        known = model.shapes.get(label)
        if label in entry.shapes and known and known.min and not known.min <= span.min <= span.max <= known.max:
            hint = f"shapes.{label} goes from {known.min} to {known.max}: widen it, or narrow this"
            raise ManifestError(f"{span.min} to {span.max} is outside", where=where("shapes", label), hint=hint)
    batch = _batch(model, entry, where)
    shapes = {tensor.name: _span(tensor, spans, batch) for tensor in model.inputs if tensor.name not in shape_inputs}
    values = {
        tensor.name: _values(tensor, entry, model.hints.get(tensor.name), shape_inputs[tensor.name], where)
        for tensor in model.inputs
        if tensor.name in shape_inputs
    }
    return Profile(shapes, values)


def _batch(model: ServedModel, entry: ProfileEntry, where: Where) -> ShapeRange | None:
    largest = model.max_batch_size
    if not largest:
        if entry.batch is not None:
            raise ManifestError("the model is not batched", where=where("batch"), hint="remove it")
        return None
    if entry.batch is None:
        preferred = model.dynamic_batching.preferred_batch_size if model.dynamic_batching else ()
        return ShapeRange(1, max(preferred, default=largest), largest)
    if entry.batch.max > largest:
        raise ManifestError(f"{entry.batch.max} is above max_batch_size {largest}", where=where("batch", "max"))
    return ShapeRange(entry.batch.min, entry.batch.opt, entry.batch.max)


def _check_batches(model: ServedModel, entries: Sequence[ProfileEntry], where: Where) -> None:
    """Refuse profiles that leave out the size that Triton sends first, or the one that it may send at most."""
    lowest = min(entry.batch.min if entry.batch else 1 for entry in entries)
    highest = max(entry.batch.max if entry.batch else model.max_batch_size for entry in entries)
    if lowest != 1:
        message = f"no profile takes batch 1: the smallest is {lowest}"
        raise ManifestError(message, where=where("profiles"), hint="give one of them batch: {min: 1, …}")
    if highest != model.max_batch_size:
        message = f"no profile takes max_batch_size {model.max_batch_size}: the largest is {highest}"
        raise ManifestError(message, where=where("profiles"), hint="let one of them reach it")


def _span(tensor: ServedTensor, spans: Mapping[str, ShapeRange], batch: ShapeRange | None) -> Span:
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    labels = tensor.labels if tensor.reshape is None else ("",) * len(dims)
    inner = [spans[label] if label else ShapeRange(size, size, size) for size, label in zip(dims, labels, strict=True)]
    axes = [*([batch] if batch else []), *inner]
    return tuple(span.min for span in axes), tuple(span.opt for span in axes), tuple(span.max for span in axes)


def _values(tensor: ServedTensor, entry: ProfileEntry, hint: InputHint | None, use: str, where: Where) -> Span:
    """Return the range of values of an input that says how large something is to be."""
    size = 1
    for dim in tensor.dims:
        size *= dim
    said = entry.values.get(tensor.name)
    if said is not None:
        for name, part in (("min", said.min), ("opt", said.opt), ("max", said.max)):
            if len(part) != size and size > 0:
                message = f"{tensor.name!r} has {size} values, not {len(part)}"
                raise ManifestError(message, where=where("values", tensor.name, name))
        return said.min, said.opt, said.max
    known = tuple(int(value) for value in hint.values) if hint else ()
    if len(known) == size:
        return known, known, known
    message = f"the values of {tensor.name!r} are sizes ({use}), and their range is not known"
    raise ManifestError(message, where=where("values"), hint=_HINT)
