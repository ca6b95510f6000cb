"""One writer per repository on an object store: an object that only one run can create, and that goes stale.

Nothing frees such an object when its owner dies. So its owner writes it anew every few seconds; one that is older
than the lease belongs to nobody, and neither does one whose process is gone from this very machine.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repogen import object_s3
from repogen.errors import Locked, RepogenError
from repogen.lock import signature
from repogen.object_store import Store, told

LEASE = 60.0
"""Seconds without a sign of life after which a lock belongs to nobody."""
_BEAT = 15.0
_PAUSE = 0.5
NAME = "lock"
_UNGUARDED = "this store cannot create an object on condition: see to it yourself that no second run writes there"


@contextmanager
def writer(state: Store, *, wait: float = 0.0, note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock of the repository while the block runs. Raises Locked, naming the owner."""
    if not state.s3:
        note(f"warning: {_UNGUARDED}")
        yield
        return
    path = state.path(NAME)
    try:
        etag = _acquired(state, path, wait, note)
    except NotImplementedError:
        note(f"warning: {_UNGUARDED}")
        yield
        return
    held = _Held(state, path, etag)
    beating = threading.Thread(target=held.beat, daemon=True)
    beating.start()
    try:
        yield
        held.refuse_lost()
    finally:
        held.over.set()
        beating.join()
        held.release()


class _Held:
    """The lock while it is ours: `beat` writes it anew until `over` is set."""

    def __init__(self, state: Store, path: str, etag: str) -> None:
        self.over = threading.Event()
        self._state, self._path, self._etag = state, path, etag
        self._lost = False

    def beat(self) -> None:
        while not self.over.wait(_BEAT):
            with suppress(Exception):  # the next beat tries again; the lease is four of them
                etag = object_s3.put_if(self._state.system, self._path, _signed(), IfMatch=self._etag)
                if etag is None:
                    self._lost = True
                    return
                self._etag = etag

    def refuse_lost(self) -> None:
        if self._lost:
            raise Locked("another run took the lock over meanwhile", where=self._state.url, hint="sync again")

    def release(self) -> None:
        with suppress(Exception):  # it goes stale by itself
            object_s3.delete_if(self._state.system, self._path, self._etag)


def _acquired(state: Store, path: str, wait: float, note: Callable[[str], None]) -> str:
    """Return the ETag of our lock."""
    deadline = time.monotonic() + wait
    waiting = False
    while True:
        with told(state.url):
            etag = object_s3.put_if(state.system, path, _signed(), IfNoneMatch="*") or _taken_over(state, path)
        if etag:
            return etag
        owner = _owner(state)
        if time.monotonic() >= deadline:
            hint = f"wait for it, or give --wait SECONDS; {LEASE:g} s after its owner died it is free"
            raise Locked(f"another run writes this repository: {_named(owner)}", where=state.url, hint=hint)
        if not waiting:
            note(f"waiting for {_named(owner)}")
            waiting = True
        time.sleep(_PAUSE)


def _taken_over(state: Store, path: str) -> str | None:
    """Return the ETag of our lock in place of a dead owner's; None where the owner lives."""
    try:
        answer = object_s3.head(state.system, path)
    except FileNotFoundError:
        return None  # it was just given back: the next turn creates it
    if object_s3.age(answer) < LEASE and not _dead_here(_owner(state)):
        return None
    return object_s3.put_if(state.system, path, _signed(), IfMatch=answer["ETag"])


def _dead_here(owner: dict[str, Any]) -> bool:
    """Return whether the owner ran on this machine, in this container, and is gone."""
    if owner.get("machine") != _machine():
        return False
    return not Path("/proc", str(owner.get("pid"))).exists()


def _machine() -> str:
    """Return what tells this machine, this boot of it, and this container from all others."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    return ""


def _signed() -> bytes:
    return json.dumps({**signature(), "machine": _machine()}).encode()


def _owner(state: Store) -> dict[str, Any]:
    with suppress(RepogenError, ValueError):
        return dict(json.loads(state.read(NAME) or b"{}"))
    return {}


def _named(owner: dict[str, Any]) -> str:
    try:
        return f"{owner['user']}, process {owner['pid']} on {owner['host']}, since {owner['started']}"
    except KeyError:
        return "a run that has just begun or ended"
