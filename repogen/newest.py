"""Sources that are a pattern or a folder: the newest file that matches, and the version that its name says."""

import glob
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from repogen.errors import ManifestError
from repogen.manifest import Manifest
from repogen.model import Chosen

_EXACT = ("ensemble", "vllm", "tensorrtllm")  # their source, where they have one, is a name of the server's
_LIMIT = 10**18  # Triton ends itself at what is larger than an int64
_YOUNG = 10.0  # seconds after its last write in which a file may still be being written
_BETWEEN_LOOKS = 0.5
_SHOWN = 4

Look = tuple[int, int]
"""A file's size and its time in nanoseconds; an object's time is 0: it appears in one step."""


@dataclass(frozen=True)
class Match:
    """A file that matches: its source as it would be written, where it lies, and what `*` stands for in it."""

    source: str
    place: str
    parts: tuple[str, ...]
    look: Look

    @property
    def order(self) -> tuple[object, ...]:
        """What matches are ordered by: their parts, numbers in them by value."""
        return (*(_natural(part) for part in self.parts), self.parts)

    @property
    def version(self) -> int:
        """The numbers of its parts side by side, each after the first with two digits at least."""
        first, *others = re.findall("[0-9]+", "/".join(self.parts))
        return int(first + "".join(number.zfill(2) for number in others))


def with_newest(manifest: Manifest) -> Manifest:
    """Return the manifest with each pattern replaced by the newest file that matches it, as its version.

    Raises ManifestError where nothing matches, or no version can be told from the name; what the store raises.
    """
    patterns = {name: found for name in manifest.models if (found := pattern_of(manifest, name))}
    if not patterns:
        return manifest
    matches = {name: _matches(manifest, name, pattern) for name, pattern in patterns.items()}
    growing = _growing(match for found in matches.values() for match in found)
    models, chosen = dict(manifest.models), {}
    for name, pattern in patterns.items():
        match, chosen[name] = _newest(manifest, name, pattern, matches[name], growing)
        models[name] = models[name].model_copy(update={"source": match.source, "version": match.version})
    return replace(manifest, models=models, chosen=chosen)


def pattern_of(manifest: Manifest, name: str) -> str:
    """Return the pattern that `models.NAME.source` is, as it is written; "" where it names one file.

    A folder means the ONNX files in it.
    """
    entry = manifest.models[name]
    if not entry.source or entry.backend in _EXACT:
        return ""
    if "*" in entry.source:
        return entry.source
    local = "://" not in entry.source
    if entry.source.endswith("/") or (local and os.path.isdir(manifest.source_of(name))):  # noqa: PTH112 - for each model
        return entry.source.rstrip("/") + "/*.onnx"
    return ""


def folders_of(manifest: Manifest, name: str) -> Sequence[str]:
    """Return the folders, or the prefix of a store, in which something new may concern `models.NAME.source`."""
    pattern = pattern_of(manifest, name)
    if not pattern:
        text = manifest.source_of(name)
        return (text.rpartition("/")[0] if "://" in text else str(Path(text).parent),)
    pieces = _pieces(manifest, name, pattern)
    if "://" in pieces[0]:
        return (pieces[0].rpartition("/")[0],)
    return sorted(glob.glob(os.path.dirname(_globbed(pieces))))  # noqa: PTH120, PTH207 - a pattern is no path


def _pieces(manifest: Manifest, name: str, pattern: str) -> list[str]:
    """Return what stands between the `*`, as paths or URLs are: references to the environment replaced."""
    where = manifest.where("models", name, "source")
    if "**" in pattern:
        raise ManifestError(f"{pattern}: ** is not known", where=where, hint="write one * for each folder")
    first, *others = (manifest.expanded(name, piece) for piece in pattern.split("*"))
    if "://" not in first:
        pieces = [os.path.join(manifest.source.path.parent, first), *others]  # noqa: PTH118 - it may end with a slash
        return [re.sub("/+", "/", piece) for piece in pieces]
    if first.rpartition("/")[0].endswith("/"):
        hint = "name the bucket: s3://bucket/rec/*.onnx"
        raise ManifestError(f"{pattern}: a pattern begins below a bucket", where=where, hint=hint)
    return [first, *others]


def _globbed(pieces: Sequence[str]) -> str:
    return "*".join(glob.escape(piece) for piece in pieces)


def _matches(manifest: Manifest, name: str, pattern: str) -> list[Match]:
    pieces = _pieces(manifest, name, pattern)
    star = r"((?:(?<=[^/])|(?!\.))[^/]*)"  # at the beginning of a name it is for no hidden file, as in a shell
    wanted = re.compile(star.join(re.escape(piece) for piece in pieces))
    listed = _remote(pieces[0].rpartition("/")[0]) if "://" in pieces[0] else _local(_globbed(pieces))
    written = pattern.split("*")
    found = []
    for place, look in listed.items():
        parts = match.groups() if (match := wanted.fullmatch(place)) else ()
        if parts and "${" not in "".join(parts):  # it would be read as a reference to the environment
            source = written[0] + "".join(part + piece for part, piece in zip(parts, written[1:], strict=True))
            found.append(Match(source, place, parts, look))
    return sorted(found, key=lambda match: match.order)


def _local(pattern: str) -> dict[str, Look]:
    return {path: look for path in glob.glob(pattern) if (look := _look(path))}  # noqa: PTH207 - a pattern is no path


def _look(path: str) -> Look | None:
    with suppress(OSError):  # gone meanwhile
        if os.path.isfile(path):  # noqa: PTH113
            status = os.stat(path)  # noqa: PTH116
            return status.st_size, status.st_mtime_ns
    return None


def _remote(prefix: str) -> dict[str, Look]:
    from repogen.remote_sources import seen

    return {f"{prefix}/{name}": (size, 0) for name, size, _ in seen(f"{prefix}/any")}


def _growing(matches: Iterable[Match]) -> frozenset[str]:
    """Return the files that are still being written: empty, or other after a moment."""
    looks = {match.place: match.look for match in matches}
    now = time.time()
    young = {place: look for place, look in looks.items() if look[1] and abs(now - look[1] / 1e9) < _YOUNG}
    if young:
        time.sleep(_BETWEEN_LOOKS)
    changed = {place for place, look in young.items() if _look(place) != look}
    return frozenset(changed | {place for place, look in looks.items() if not look[0]})


def _newest(
    manifest: Manifest, name: str, pattern: str, matches: Sequence[Match], growing: frozenset[str]
) -> tuple[Match, Chosen]:
    where = manifest.where("models", name, "source")
    if "version" in manifest.models[name].model_fields_set:
        hint = f"leave it out, or name one file instead of {pattern}"
        raise ManifestError(
            "the name of the newest file says it", where=manifest.where("models", name, "version"), hint=hint
        )
    numbered = [match for match in matches if re.search("[0-9]", "/".join(match.parts))]
    whole = [match for match in numbered if match.place not in growing]
    if not whole:
        source = manifest.models[name].source
        folder = "" if "*" in source or "://" in source else source
        raise _nothing(pattern, folder, matches, numbered, where, folders_of(manifest, name))
    match = whole[-1]
    if not 0 < match.version < _LIMIT:
        hint = "a version is a number from 1 on, with at most 18 digits: narrow the pattern, or rename the file"
        raise ManifestError(f"{match.source} would be version {match.version}", where=where, hint=hint)
    for other in whole[:-1]:
        if other.version >= match.version:
            message = f"{match.source} is the newest by its name, and would be version {match.version}"
            hint = "rename one, or narrow the pattern: only what * stands for counts"
            raise ManifestError(f"{message}, but {other.source} is {other.version}", where=where, hint=hint)
    awaited = next((late.source for late in numbered[-1:] if late is not match), "")
    return match, Chosen(_why(match, pattern, len(whole), len(matches) - len(numbered), awaited), awaited)


def _why(match: Match, pattern: str, count: int, unnumbered: int, awaited: str) -> str:
    text = f"{match.source} as version {match.version}: the newest of {count} by name in {pattern}"
    if unnumbered:
        text += f", {unnumbered} without a number left out"
    return f"{text}, {awaited} is still being written" if awaited else text


def _nothing(
    pattern: str, folder: str, matches: Sequence[Match], numbered: Sequence[Match], where: str, folders: Sequence[str]
) -> ManifestError:
    if numbered:
        return ManifestError(
            f"{numbered[-1].source} is still being written", where=where, hint="sync again when it is there"
        )
    if matches:
        hint = "what * stands for says it: rec_v2.onnx, exports/2026-12-01/model.onnx"
        return ManifestError(f"{matches[-1].source} has no number to be its version", where=where, hint=hint)
    hint = "" if folder else "* stands for anything but a slash, and for no hidden file"
    if not any(os.path.isdir(place) for place in folders) and "://" not in pattern:  # noqa: PTH112
        folder, hint = "", f"there is no folder {pattern.rpartition('/')[0]}"
    local = [place for place in folders if "://" not in place]
    names = sorted(name for place in local[-1:] if os.path.isdir(place) for name in os.listdir(place))  # noqa: PTH112, PTH208
    if names:
        there = f"there is {', '.join(names[:_SHOWN])}{' and more' if len(names) > _SHOWN else ''}"
        hint = f"{there}; {hint}" if hint else there
    message = f"{folder} is a directory, and no file in it is *.onnx" if folder else f"nothing matches {pattern}"
    return ManifestError(message, where=where, hint=hint)


def _natural(text: str) -> tuple[str | int, ...]:
    """Return what sorts v10 after v9: text and numbers by turns."""
    parts = re.split("([0-9]+)", text)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
