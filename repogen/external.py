"""Weights that lie in files of their own: what a model says of them, and whether that may be believed.

Nothing of such a file is read before all of this has been found right: a model can name any file of the machine.
"""

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from repogen.errors import ModelError
from repogen.model import ExternalFile

_KNOWN = {"location", "offset", "length", "checksum"}
_MAX_PACKED = 8


def entries_of(tensors: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return each external tensor's name, location, offset and length (None: to the end), or what is wrong with it."""
    import onnx

    found = []
    for name, tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            said = {entry.key: entry.value for entry in tensor.external_data}
            found.append({"tensor": name, **_entry(tensor, said)})
    return found


def _entry(tensor: Any, said: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"location": said.get("location", ""), "offset": 0, "length": None, "wrong": ""}
    if unknown := said.keys() - _KNOWN:
        return entry | {"wrong": f"have an unknown key {min(unknown)!r}"}
    for key in ("offset", "length"):
        if key in said:
            if not said[key].strip().isdecimal():
                return entry | {"wrong": f"have the {key} {said[key]!r}"}
            entry[key] = int(said[key])
    needed = _bytes_of(tensor)
    if entry["length"] is not None and needed is not None and entry["length"] != needed:
        return entry | {"wrong": f"have {entry['length']} bytes where its type and shape need {needed}"}
    return entry | {"length": entry["length"] if needed is None else needed}


def _bytes_of(tensor: Any) -> int | None:
    """Return the bytes that a tensor's type and shape need, None where they cannot be told."""
    import onnx

    try:
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        return None
    count = 1
    for dim in tensor.dims:
        count *= max(dim, 0)
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    bits = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}.get(name, _MAX_PACKED * kind.itemsize)
    return int((count * bits + _MAX_PACKED - 1) // _MAX_PACKED)


def external_files(entries: Sequence[dict[str, Any]], model: Path) -> tuple[ExternalFile, ...]:
    """Return the weights files of the model at `model`, found safe. Raises ModelError naming tensor and path."""
    by_location: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["wrong"]:
            message = f"weights of {entry['tensor']!r} {entry['wrong']}"
            raise ModelError(message, where=str(model), hint="export the model again")
        by_location.setdefault(entry["location"], []).append(entry)
    found = {}
    for location, members in sorted(by_location.items()):
        size = _safe_size(location, members[0]["tensor"], model)
        _check_spans(members, size, model)
        found[Path(location).as_posix()] = size
    return tuple(ExternalFile(name, size) for name, size in sorted(found.items()))


def _safe_size(location: str, tensor: str, model: Path) -> int:
    """Return the size of a weights file, once it is known to be a plain file in the model's own folder."""
    where = str(model)
    what = f"weights of {tensor!r} lie in {location!r}"
    folder = model.parent.resolve()
    outside = f"{what}, which is outside the model's folder or a link"
    relative = Path(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelError(outside, where=where, hint="put the file beside the model, without links")
    file = folder / relative
    try:
        status = file.lstat()
        real = file.resolve()
    except OSError:
        raise ModelError(f"{what}, which is not there", where=where, hint="copy it beside the model") from None
    if real != file or stat.S_ISLNK(status.st_mode):
        raise ModelError(outside, where=where, hint="put the file beside the model, without links")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{what}, which is not a regular file", where=where, hint="put the weights themselves there")
    if status.st_nlink > 1:
        raise ModelError(f"{what}, which is a hard link", where=where, hint="copy the file")
    if file.samefile(model):
        raise ModelError(f"{what}, which is the model itself", where=where, hint="export the model again")
    return status.st_size


def _check_spans(members: Iterable[dict[str, Any]], size: int, model: Path) -> None:
    """Refuse what lies beyond the file's end or half over another; tensors that share one span whole may."""
    where = str(model)
    end, last = 0, ""
    spans: dict[tuple[int, int], str] = {}
    for entry in members:
        length = size - entry["offset"] if entry["length"] is None else entry["length"]
        if entry["offset"] > size or length < 0 or entry["offset"] + length > size:
            message = f"weights of {entry['tensor']!r} end at byte {entry['offset'] + length} of {entry['location']!r}"
            hint = "the file was cut short: copy it again"
            raise ModelError(f"{message}, which has {size}", where=where, hint=hint)
        spans.setdefault((entry["offset"], length), entry["tensor"])
    for (offset, length), tensor in sorted(spans.items()):
        if length and offset < end:
            raise ModelError(f"weights of {tensor!r} lie over those of {last!r}", where=where, hint="export it again")
        if length:
            end, last = offset + length, tensor
