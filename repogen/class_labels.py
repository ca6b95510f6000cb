"""The names of an output's classes, in a file beside the model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from repogen.errors import ManifestError
from repogen.manifest import ModelEntry
from repogen.model import ExtraFile, ServedModel


def with_labels(model: ServedModel, entry: ModelEntry, folder: Path, where: Callable[..., str]) -> ServedModel:
    """Return `model` with the label files that `outputs.NAME.labels` name, relative to `folder`.

    Raises ManifestError for a file that is not there, or names more or fewer classes than the output has.
    """
    said = {name: tensor.labels for name, tensor in entry.outputs.items() if tensor.labels}
    outputs, files = [], []
    for index, tensor in enumerate(model.outputs):
        if tensor.name in said:
            content = _read(folder / str(said[tensor.name]), where("outputs", tensor.name, "labels"))
            count, classes = len(content.decode().splitlines()), tensor.dims[-1]
            if classes not in (-1, count):
                message = f"{said[tensor.name]} names {count} classes, the output has {classes}"
                raise ManifestError(message, where=where("outputs", tensor.name, "labels"))
            name = f"labels_{index}.txt"
            files.append(ExtraFile(name, content))
            tensor = replace(tensor, label_filename=name)  # noqa: PLW2901
        outputs.append(tensor)
    return replace(model, outputs=tuple(outputs), extra_files=(*model.extra_files, *files))


def _read(path: Path, where: str) -> bytes:
    try:
        content = path.read_bytes()
        content.decode()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise ManifestError(f"{path} is not UTF-8 text", where=where) from None
    return content
