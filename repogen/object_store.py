"""Objects below one URL: S3 in full, any other fsspec store with what it can do.

Credentials and endpoints come from the environment (AWS_*) and fsspec's own configuration, and appear in no message.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from repogen import object_s3
from repogen.cache import cached
from repogen.errors import MissingExtra, RepogenError, ServerError

_BLOCK = 2**20
_S3 = ("s3", "s3a")
_EXTRAS = {"s3fs": "s3"}
_PATIENCE = {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 3, "mode": "standard"}}
_WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "InvalidClientTokenId")


@dataclass(frozen=True)
class Entry:
    """One object as a listing has it; `token` is another one whenever the content is, "" where none is known."""

    size: int
    token: str
    when: str = ""


@dataclass(frozen=True)
class Store:
    """A place in a store: `root` is its path there, without the protocol; `s3` whether it has all of S3."""

    url: str
    root: str
    system: Any
    s3: bool

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def entries(self, below: str = "") -> dict[str, Entry]:
        """Return every object below a folder, by its name from the root on: one listing."""
        top = self.path(below)
        with told(self.url):
            try:
                found = self.system.find(top, detail=True)
            except FileNotFoundError:
                found = {}
        cut = len(self.root) + 1
        rows = {path[cut:]: entry_of(info) for path, info in sorted(found.items())}
        return {name: entry for name, entry in rows.items() if name and not name.endswith("/")}

    def read(self, name: str) -> bytes | None:
        """Return an object's content, None where there is none."""
        with told(self.url):
            try:
                return bytes(self.system.cat_file(self.path(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with told(self.url):
            if self.s3:
                object_s3.put(self.system, self.path(name), content, hashlib.sha256(content).hexdigest())
            else:
                self._make_parent(self.path(name))
                self.system.pipe_file(self.path(name), content)

    def upload(self, name: str, source: Path, digest: str, *, resume: bool) -> None:
        """Write a file, and make sure that it was `digest`."""
        size = source.stat().st_size
        with told(self.url):
            try:
                if self.s3 and size > object_s3.PART:
                    object_s3.upload(self.system, self.path(name), source, digest, resume=resume)
                elif self.s3:
                    content = source.read_bytes()
                    _compare(hashlib.sha256(content).hexdigest(), digest)
                    object_s3.put(self.system, self.path(name), content, digest)
                else:
                    self._put_hashed(name, source, digest)
            except object_s3.Changed:
                hint = "sync again"
                raise RepogenError("changed while it was being published", where=str(source), hint=hint) from None

    def copy(self, source: str, target: str, size: int, digest: str) -> None:
        """Copy an object within the store; both are whole paths, as `path` gives them."""
        with told(self.url):
            if self.s3:
                object_s3.copy(self.system, source, target, size, digest)
            else:
                self._make_parent(target)
                self.system.cp_file(source, target)

    def delete(self, names: Sequence[str]) -> None:
        with told(self.url):
            if self.s3:
                object_s3.delete(self.system, [self.path(name) for name in names])
                return
            for name in names:
                with suppress(FileNotFoundError):
                    self.system.rm_file(self.path(name))

    def digest(self, name: str, entry: Entry) -> str:
        """Return an object's sha256: remembered, or as its metadata has it, or by reading all of it."""
        if not entry.token:
            return self._found_digest(name)
        key = f"{self.path(name)} {entry.token} {entry.size} {entry.when}"
        return str(cached("objects", key, lambda: self._found_digest(name)))

    def abort_uploads(self) -> int:
        """End the unfinished uploads of earlier runs; return how many there were."""
        if not self.s3:
            return 0
        with told(self.url):
            return object_s3.abort_uploads(self.system, self.root)

    def said_digest(self, name: str) -> str | None:
        """Return the sha256 that repogen wrote with an object, None where there is none."""
        with told(self.url):
            return object_s3.digest_of(self.system, self.path(name)) if self.s3 else None

    def _found_digest(self, name: str) -> str:
        if said := self.said_digest(name):
            return said
        with told(self.url):
            digest = hashlib.sha256()
            with self.system.open(self.path(name), "rb", block_size=8 * _BLOCK, cache_type="readahead") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
            return digest.hexdigest()

    def _put_hashed(self, name: str, source: Path, digest: str) -> None:
        found = hashlib.sha256()
        with source.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
        _compare(found.hexdigest(), digest)
        self._make_parent(self.path(name))
        self.system.put_file(str(source), self.path(name))

    def _make_parent(self, path: str) -> None:
        with suppress(FileExistsError, NotImplementedError):
            self.system.makedirs(path.rpartition("/")[0], exist_ok=True)


@lru_cache
def connected(url: str) -> Store:
    """Return the store at `url`, found to be there. Raises MissingExtra, RepogenError, ServerError."""
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0]
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in _S3:
        from fsspec.config import conf

        asked = conf.get("s3", {}).get("config_kwargs", {})
        options |= {"config_kwargs": {**_PATIENCE, **asked}, "skip_instance_cache": True}
    with told(url):
        system, root = url_to_fs(url, **options)
        store = Store(shown(url), root.rstrip("/"), system, protocol in _S3)
        if store.s3:
            system.call_s3("head_bucket", Bucket=store.root.partition("/")[0])
    return store


def shown(url: str) -> str:
    """Return a URL as it may be printed: without user, password, or query."""
    return re.sub(r"://[^/@]*@", "://", url).partition("?")[0]


@contextmanager
def told(url: str) -> Iterator[None]:
    """Turn what a store raises into one sentence; what a block itself expects must be caught inside."""
    try:
        yield
    except (RepogenError, FileExistsError, NotImplementedError):
        raise
    except ImportError as error:
        package = _needed(str(error))
        if package in _EXTRAS:
            raise MissingExtra(package, _EXTRAS[package]) from None
        raise RepogenError(f"cannot be used: {error}", where=shown(url), hint=f"pip install {package}") from None
    except Exception as error:  # every store has exceptions of its own
        raise _translated(error, shown(url)) from error


def _translated(error: Exception, where: str) -> RepogenError:
    kind = f"{type(error).__name__} {type(error.__cause__).__name__}"
    code = object_s3.code(error)
    if "NoCredentials" in kind or "PartialCredentials" in kind or "ProfileNotFound" in kind:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role"
        return RepogenError("there are no credentials for this store", where=where, hint=hint)
    if code in _WRONG_KEYS or isinstance(error, PermissionError):
        what = f" ({code})" if code else ""
        hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what the key may do there"
        return RepogenError(f"the store refuses access{what}", where=where, hint=hint)
    if isinstance(error, FileNotFoundError):
        hint = "check the bucket's name; repogen does not create one"
        return RepogenError("there is no such bucket, or no such object", where=where, hint=hint)
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return RepogenError(str(error).lower(), where=where, hint="s3:// needs repogen[s3]; others are fsspec's")
    if any(word in kind for word in ("Connect", "Timeout", "HTTPClient", "EndpointConnection", "ResponseParser")):
        hint = "check AWS_ENDPOINT_URL, AWS_REGION and the network; whatever was uploaded is used by the next run"
        return ServerError("the store cannot be reached", where=where, hint=hint)
    text = f"{code or type(error).__name__}: {_plain(error)}"
    return ServerError(f"the store answers {text}", where=where, hint="the next run goes on from here")


def _plain(error: Exception) -> str:
    return re.sub(r"https?://\S+", "its address", str(error)).splitlines()[0][:200] if str(error) else "nothing more"


def _needed(message: str) -> str:
    for package in ("s3fs", "gcsfs", "adlfs", "aiohttp", "paramiko"):
        if package in message:
            return package
    match = re.search(r"[Nn]o module named '(\w+)", message) or re.search(r"[Ii]nstall (\w+)", message)
    return match[1] if match else "the package that it names"


def _compare(found: str, meant: str) -> None:
    if found != meant:
        raise object_s3.Changed


def entry_of(info: dict[str, Any]) -> Entry:
    """Return what a listing says of one object, whatever the store calls it."""
    when = info.get("LastModified") or info.get("mtime") or info.get("updated") or info.get("created") or ""
    token = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("content_md5") or when
    return Entry(int(info.get("size") or info.get("Size") or 0), str(token).strip('"'), str(when))
