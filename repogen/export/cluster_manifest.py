"""The manifest as the cluster gets it: the repository on its volume, local files on a claim. Pure."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import yaml

from repogen.errors import ManifestError
from repogen.export.settings import Settings
from repogen.yaml_source import Key

STORAGE = "/srv/repogen"
REPOSITORY = f"{STORAGE}/models"
_FILES = (("source",), ("samples",), ("calibration", "data"), ("accuracy", "data"))
"""Keys of a model that name files beside the manifest."""


def cluster_manifest(settings: Settings, text: str) -> str:
    """Return the manifest's own text with its repository put where the cluster has it; one on S3 stays.

    Everything else stays as written, comments and references to the environment too.
    """
    manifest = settings.manifest
    if manifest.store:
        return text
    lines = text.splitlines()
    line = f"repository: {REPOSITORY}"
    if ("repository",) in manifest.source.lines:
        number = manifest.source.lines[("repository",)] - 1
        comment = re.search(r"\s+#.*$", lines[number])
        lines[number] = line + (comment[0] if comment else "")
    else:
        lines.insert(manifest.source.lines[("triton",)], line)
    made = "\n".join(lines) + "\n"
    wanted = {**_plain(text), "repository": REPOSITORY}
    return made if _plain(made) == wanted else yaml.safe_dump(wanted, sort_keys=False)


def _plain(text: str) -> dict[str, Any]:
    """Return YAML with every scalar as it is written; {} for what is none."""
    try:
        data = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - the base loader makes nothing but text
    except yaml.YAMLError:
        return {}
    return data if isinstance(data, dict) else {}


def local_folders(settings: Settings) -> tuple[str, ...]:
    """Return the folders beside the manifest that its files lie in. Raises ManifestError where a cluster has none."""
    folders: dict[str, None] = {}
    for key, path in _local_paths(settings):
        where = settings.manifest.where(*key)
        parts = PurePosixPath(f"{path}*" if path.endswith("/") else path).parts
        if path.startswith("/") or ".." in parts or len(parts) < 2:  # noqa: PLR2004 - a folder and a file
            hint = "put it in a folder beside the manifest, or name a URL (s3://…)"
            raise ManifestError(f"no pod can mount {path!r}", where=where, hint=hint)
        if settings.deploy.sources_claim is None:
            hint = "name a URL (s3://…), or the PersistentVolumeClaim with the files in deploy.sources_claim"
            raise ManifestError(f"no pod has the file {path!r}", where=where, hint=hint)
        folders[parts[0]] = None
    return tuple(folders)


def _local_paths(settings: Settings) -> Iterator[tuple[Key, str]]:
    data = settings.manifest.source.data
    places: list[tuple[Key, Any]] = [(("models", name), entry) for name, entry in data["models"].items()]
    for key, entry in [*places, (("defaults",), data.get("defaults") or {})]:
        for names, value in _named_files(entry):
            if isinstance(value, str) and "://" not in value and not value.startswith("${"):
                yield (*key, *names), value
    if isinstance(folder := data.get("templates"), str):
        yield ("templates",), f"{folder}/*.j2"


def _named_files(entry: dict[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Yield what of a model's entry names a file, by its keys."""
    for names in _FILES:
        value: Any = entry
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        yield names, value
    for index, file in enumerate(entry.get("files") or ()):
        yield ("files", index), file.get("source") if isinstance(file, dict) else file
    for name, tensor in (entry.get("outputs") or {}).items():
        yield ("outputs", name, "labels"), tensor.get("labels") if isinstance(tensor, dict) else None
