"""Models that lie elsewhere: fetched once for each content, and found again by what a listing says of them.

`sources/URL/CONTENT` of the cache holds a model under its own name, its weights files beside it, and `source.json`.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from repogen.cache import cache_folder
from repogen.errors import ManifestError, ModelError, RepogenError
from repogen.files import folder_size, sha256
from repogen.object_store import Entry, Store, connected, entry_of, shown, told

_FACTS = "source.json"
_BLOCK = 8 * 2**20
_STALE = 24 * 3600
"""Seconds after which a fetch that was cut short belongs to nobody."""


@dataclass(frozen=True)
class Seen:
    """A file as the store had it when it was fetched: another size or token means another content."""

    size: int
    token: str


def fetched(url: str, digest: str | None = None, where: str = "") -> Path:
    """Return the local copy of the model at `url`, fetched anew where the store has another one.

    `digest` is the sha256 that it must have. Raises ManifestError, ModelError, ServerError.
    """
    store, name = _located(url)
    entry = _entry(store, name, where)
    place = sources_folder() / hashlib.sha256(url.encode()).hexdigest()[:32]
    copy = _known(store, name, entry, place)
    if copy is None:
        copy = _fetch(store, name, entry, place, where)
    if digest is not None and (found := sha256(copy)) != digest:
        hint = "it was replaced, or the manifest is out of date"
        raise ManifestError(f"{store.url}/{name} has sha256 {found}", where=where, hint=hint)
    return copy


def sources_folder() -> Path:
    return cache_folder() / "sources"


def seen(url: str) -> list[tuple[str, int, str]]:
    """Return what lies beside a model: its names, sizes and tokens tell whether it is worth a look."""
    store, _ = _located(url)
    return [(name, entry.size, entry.token) for name, entry in store.entries().items()]


def collect(limit: int, *, dry: bool = False) -> list[tuple[str, int]]:
    """Remove the copies that were longest of no use until the rest has at most `limit` bytes, and cut-short fetches."""
    copies = [folder for place in _folders(sources_folder()) for folder in _folders(place)]
    partial = [folder for folder in copies if not (folder / _FACTS).exists()]
    old = [folder for folder in partial if time.time() - folder.stat().st_mtime > _STALE]
    whole = sorted((folder.stat().st_mtime, folder_size(folder), folder) for folder in copies if folder not in partial)
    gone = [(folder, folder_size(folder)) for folder in old]
    total = sum(size for _, size, _ in whole)
    for _, size, folder in whole:
        if total > limit:
            gone.append((folder, size))
            total -= size
    for folder, _ in gone if not dry else ():
        shutil.rmtree(folder, ignore_errors=True)
    return [(str(folder), size) for folder, size in gone]


def _located(url: str) -> tuple[Store, str]:
    """Return the folder that a model lies in, and its name there."""
    parent, _, name = url.rpartition("/")
    if not name or parent.endswith("/"):
        raise ModelError("names no object", where=shown(url), hint="name the model's file: s3://bucket/models/rec.onnx")
    return connected(parent), name


def _entry(store: Store, name: str, where: str) -> Entry:
    with told(store.url):
        try:
            info = store.system.info(store.path(name))
        except FileNotFoundError:
            message = f"there is no {store.url}/{name}"
            raise ModelError(message, where=where, hint="check models.*.source") from None
    return entry_of(info)


def _known(store: Store, name: str, entry: Entry, place: Path) -> Path | None:
    """Return the copy whose every file is the one that the store has now."""
    for folder in _folders(place):
        facts = _facts(folder)
        if name not in facts or facts[name] != _as_seen(entry) or not entry.token:
            continue
        with suppress(RepogenError):
            others = {other: _as_seen(_entry(store, other, "")) for other in facts if other != name}
            if facts == {name: facts[name], **others} and _complete(folder, facts):
                os.utime(folder)  # when it was last of use
                return folder / name
    return None


def _fetch(store: Store, name: str, entry: Entry, place: Path, where: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    with _scratch(place) as scratch:
        facts = {name: _streamed(store, name, entry, scratch / name)}
        for other in _weights(scratch / name):
            target = scratch / other
            target.parent.mkdir(parents=True, exist_ok=True)
            facts[other] = _streamed(store, other, _entry(store, other, where), target)
        content = json.dumps({other: asdict(row) for other, row in sorted(facts.items())})
        (scratch / _FACTS).write_text(content)
        final = place / hashlib.sha256(content.encode()).hexdigest()[:32]
        shutil.rmtree(final, ignore_errors=True)  # of the same content, and no longer complete
        scratch.rename(final)
    return final / name


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=place, prefix="part-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _weights(model: Path) -> Iterable[str]:
    """Return the weights files to fetch beside a model; what points elsewhere is refused when the model is read."""
    if model.suffix == ".py":
        return ()
    from repogen.onnx_graph import refuse_what_is_not_onnx, weights_of

    refuse_what_is_not_onnx(model)
    names = weights_of(model, sha256(model))
    return [name for name in names if name and not PurePosixPath(name).is_absolute() and ".." not in Path(name).parts]


def _streamed(store: Store, name: str, entry: Entry, target: Path) -> Seen:
    """Write an object to a file; it must be there in full, and be what its sha256 in the store says."""
    digest = hashlib.sha256()
    opened = {"block_size": _BLOCK, "cache_type": "readahead"}
    with told(store.url), store.system.open(store.path(name), "rb", **opened) as read, target.open("xb") as write:
        while block := read.read(_BLOCK):
            digest.update(block)
            write.write(block)
    said = store.said_digest(name)
    if target.stat().st_size != entry.size or (said and said != digest.hexdigest()):
        message = "came incomplete, or changed while it was fetched"
        raise ModelError(message, where=f"{store.url}/{name}", hint="try again")
    return _as_seen(entry)


def _as_seen(entry: Entry) -> Seen:
    return Seen(entry.size, entry.token)


def _facts(folder: Path) -> dict[str, Seen]:
    with suppress(OSError, ValueError, TypeError):
        return {name: Seen(**row) for name, row in json.loads((folder / _FACTS).read_text()).items()}
    return {}


def _complete(folder: Path, facts: dict[str, Seen]) -> bool:
    return all((folder / name).is_file() and (folder / name).stat().st_size == row.size for name, row in facts.items())


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
