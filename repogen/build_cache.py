"""Built plans, kept by their key: whole, checked when read, safe with several writers, shared where asked.

An entry is a folder `plans/KEY` of the cache: `model.plan`, `build.json` (what is in it and how it came to be), and
what the builder wrote beside. It appears by one rename, and is never changed afterwards.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repogen.cache import cache_folder
from repogen.files import sha256, sync_folder
from repogen.model import ModelFile
from repogen.plan_header import read_header

PLAN = "model.plan"
_FACTS = "build.json"
_STALE = 24 * 3600
"""Seconds after which a half-written entry, or one set aside, belongs to nobody."""


@dataclass(frozen=True)
class Entry:
    """One plan of the cache, found whole: its file, and the facts written when it was built."""

    plan: ModelFile
    facts: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class Removed:
    """An entry that `collect` took away."""

    key: str
    size: int


def plans_folder() -> Path:
    return cache_folder() / "plans"


def find(key: str, *, shared: str = "") -> tuple[Entry | None, str]:
    """Return the entry of `key` and "", or None and why it is not there; `shared` is asked where ours has none.

    An entry that is not what was written is set aside, so that it is built anew.
    """
    entry, reason = _local(key)
    if entry is None and shared and _download(key, shared):
        entry, reason = _local(key)
    if entry is not None:
        with contextlib.suppress(OSError):
            os.utime(entry.folder)  # when it was last of use
    return entry, reason


def add(key: str, folder: Path, facts: Mapping[str, Any], *, shared: str = "") -> Entry:
    """Take the files of `folder`, `model.plan` among them, as the entry of `key`; the first writer wins."""
    files = {path.name: {"sha256": sha256(path), "size": path.stat().st_size} for path in sorted(folder.iterdir())}
    (folder / _FACTS).write_text(json.dumps({**facts, "key": key, "files": files}, indent=2, sort_keys=True))
    _publish(folder, plans_folder() / key)
    entry, reason = _local(key)
    if entry is None:
        raise OSError(f"the entry {key} was written, and then {reason}")
    if shared:
        _upload(entry.folder, key, shared)
    return entry


@contextmanager
def staging() -> Iterator[Path]:
    """Give an empty folder on the cache's own filesystem, gone afterwards unless it became an entry."""
    parent = plans_folder() / ".staging"
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def building(key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the right to build `key`: of several processes one builds, the others wait and find its plan.

    The lock ends with the process that holds it, however that ends.
    """
    folder = plans_folder() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def collect(limit: int, *, keep: Collection[str] = (), dry: bool = False) -> tuple[Removed, ...]:
    """Remove the entries that were longest of no use until the rest has at most `limit` bytes; never those of `keep`.

    What was set aside as damaged, and what writers left half done, goes too once it is a day old.
    """
    root = plans_folder()
    for name in () if dry else (".staging", ".corrupt"):
        _sweep(root / name)
    entries = [(folder.stat().st_mtime, folder.name, _size(folder)) for folder in _entries(root)]
    total = sum(size for _, _, size in entries)
    removed = []
    for _, key, size in sorted(entries):
        if total <= limit:
            break
        if key not in keep:
            if not dry:
                _discard(root / key)
            total -= size
            removed.append(Removed(key, size))
    return tuple(removed)


def size_of_cache() -> int:
    """Return the bytes that all entries have together."""
    return sum(_size(folder) for folder in _entries(plans_folder()))


def _entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."] if root.is_dir() else []


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _local(key: str) -> tuple[Entry | None, str]:
    folder = plans_folder() / key
    if not folder.is_dir():
        return None, "never built"
    problem, facts = _examined(folder, key)
    if problem:
        _set_aside(folder)
        return None, f"the cached one is damaged: {problem}"
    said = facts["files"][PLAN]
    return Entry(ModelFile(PLAN, folder / PLAN, said["sha256"], said["size"]), facts, folder), ""


def _examined(folder: Path, key: str) -> tuple[str, dict[str, Any]]:
    """Return what is wrong with an entry, "" when nothing, and its facts."""
    try:
        facts: dict[str, Any] = json.loads((folder / _FACTS).read_text())
        if facts["key"] != key:
            return "it is of another key", {}
        for name, said in facts["files"].items():
            if sha256(folder / name) != said["sha256"]:
                return f"{name} changed", {}
        header = read_header(folder / PLAN)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}", {}
    if header.problem:
        return header.problem, {}
    return "", facts


def _set_aside(folder: Path) -> None:
    """Move a damaged entry to where nobody looks for one, for people to look at."""
    aside = folder.parent / ".corrupt"
    aside.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # another process was first
        folder.rename(aside / f"{folder.name}-{time.time_ns()}")


def _discard(folder: Path) -> None:
    """Remove an entry at once for everybody: readers that have it open keep their files."""
    doomed = folder.parent / ".staging"
    doomed.mkdir(exist_ok=True)
    target = doomed / f"gc-{os.getpid()}-{folder.name}"
    folder.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    """Make `folder` the entry `target` by one rename; where one is already, that one stays."""
    for path in folder.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    folder.chmod(0o755)
    sync_folder(folder)
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    sync_folder(target.parent)


def _sweep(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)


def _download(key: str, shared: str) -> bool:
    """Fetch the entry of `key` from a shared cache; False when it has none or cannot be reached."""
    import fsspec

    try:
        with staging() as scratch:
            folder = scratch / key
            with fsspec.open(f"{shared.rstrip('/')}/{key}.tar", "rb") as file, tarfile.open(fileobj=file) as archive:
                _extract(archive, folder)
            _publish(folder, plans_folder() / key)
    except Exception:  # stores raise what they like; a cache that does not answer costs a build, nothing else
        return False
    return True


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the plain files of an archive, by their names alone: it came from elsewhere."""
    folder.mkdir()
    for member in archive:
        source = archive.extractfile(member) if member.isfile() else None
        if source is not None:
            with (folder / Path(member.name).name).open("xb") as target:
                shutil.copyfileobj(source, target, 2**20)


def _upload(folder: Path, key: str, shared: str) -> None:
    """Put an entry into a shared cache as one object; where that fails the plan is only here."""
    import fsspec

    url = f"{shared.rstrip('/')}/{key}.tar"
    with contextlib.suppress(Exception), staging() as scratch:
        packed = scratch / "entry.tar"
        with tarfile.open(packed, "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
        system, target = fsspec.core.url_to_fs(url)
        system.makedirs(system._parent(target), exist_ok=True)  # noqa: SLF001 - fsspec has no public name for it
        part = f"{target}.{os.getpid()}.part"
        system.put_file(str(packed), part)
        system.mv(part, target)
