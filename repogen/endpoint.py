"""Which live server a command means: the one named, or the one that `repogen serve` runs for this repository."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repogen.errors import ServerError

VARIABLE = "REPOGEN_URL"
_FILE = "serving.json"


def find_url(url: str | None, state: Path) -> str:
    """Return a gRPC address: `url`, else $REPOGEN_URL, else that of the running `repogen serve`.

    `state` is the repository's state folder. Raises ServerError where none of them is there.
    """
    if url or (url := os.environ.get(VARIABLE)):
        return url
    try:
        noted = json.loads((state / _FILE).read_text())
        os.kill(int(noted["pid"]), 0)
    except (OSError, ValueError, KeyError):
        hint = "start one with `repogen serve`, or name one with --url HOST:PORT"
        raise ServerError("no server is known", hint=hint) from None
    _refuse_another(noted["grpc"], noted["server_id"])
    return str(noted["grpc"])


@contextmanager
def noted(state: Path, server_id: str, grpc: str) -> Iterator[None]:
    """Let other commands find a server while the block runs."""
    state.mkdir(parents=True, exist_ok=True)
    path = state / _FILE
    content = json.dumps({"pid": os.getpid(), "server_id": server_id, "grpc": grpc})
    temporary = state / f"{_FILE}.{os.getpid()}"
    temporary.write_text(content)
    temporary.replace(path)
    try:
        yield
    finally:
        if path.exists() and path.read_text() == content:  # another serve may have noted itself since
            path.unlink()


def _refuse_another(grpc: str, server_id: str) -> None:
    from repogen.triton import Client

    with Client(grpc) as client:
        found = client.server_id()
    if found != server_id:
        raise ServerError(f"{grpc} is answered by another server, {found!r}", hint="name yours with --url HOST:PORT")
