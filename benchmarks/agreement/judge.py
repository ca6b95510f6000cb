"""Ask a real tritonserver whether it takes a repository."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from repogen import server, triton, triton_log
from repogen.check.examples import MODEL_PY, write_tree
from repogen.check.rule import Tree
from repogen.errors import ServerError

LOAD_SECONDS = 12.0
"""A model that is not ready by then never will be: these load in a tenth of a second."""

Ask = Callable[[triton.Client], object]

CRASHED, NEVER_READY = "the server crashed", "it never became ready"

ZEROS = '''\
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers zeros for every output of its config."""

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.decoupled = self.config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        if not self.decoupled:
            return answers
        for request, answer in zip(requests, answers):
            sender = request.get_response_sender()
            sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, request):
        tensors = request.inputs()
        batch = [tensors[0].shape()[0]] if self.config.get("max_batch_size") and tensors else []
        answers = [self.zeros(output, batch) for output in self.config["output"]]
        return pb_utils.InferenceResponse([answer for answer in answers if answer is not None])

    def zeros(self, output, batch):
        dims = output.get("reshape", {}).get("shape", output["dims"])
        shape = batch + [max(int(dim), 1) for dim in dims]
        if output["data_type"] == "TYPE_BF16" or np.prod(shape, dtype=float) > 1e6:
            return None
        kind = pb_utils.triton_string_to_numpy(output["data_type"])
        return pb_utils.Tensor(output["name"], np.zeros(shape, dtype=kind))
'''


@dataclass(frozen=True)
class Verdict:
    """`loaded`, or the server's `reason` why not."""

    loaded: bool
    reason: str = ""


class Judge:
    """One server for many repositories, started again when one of them takes it down; a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._root = Path(tempfile.mkdtemp(prefix="repogen-agreement-"))
        self._server: server.Embedded | None = None
        self._client: triton.Client | None = None
        self.starts = 0

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def loads(self, tree: Tree, *, deadline: float = LOAD_SECONDS, ask: Ask | None = None) -> Verdict:
        """Put the models of `tree` in the root, load each, `ask` where all are ready, and take them away again."""
        client = self._running()
        placed = _place(self._root, tree)
        try:
            verdicts = (self._load(client, name, deadline) for name in placed)
            refused = next((verdict for verdict in verdicts if not verdict.loaded), None)
            return refused or (self._asked(client, ask) if ask else Verdict(True))
        finally:
            self._clear(placed)

    def _asked(self, client: triton.Client, ask: Ask) -> Verdict:
        try:
            ask(client)
        except triton.Rejected as error:
            return Verdict(False, f"it loads, and fails its request: {error.message}")
        return Verdict(True)

    def _load(self, client: triton.Client, name: str, deadline: float) -> Verdict:
        try:
            client.load(name, deadline=deadline)
        except triton.Rejected as error:
            return Verdict(False, self._reason(error))
        except triton.NoAnswer as error:
            died = self._died()
            self._stop()  # what hangs once is not to be trusted again
            return Verdict(False, CRASHED if died else f"{NEVER_READY}: {error.message}")
        return Verdict(True)

    def _died(self) -> bool:
        """Return whether the server is ending, which the guard above it tells a moment late."""
        assert self._server is not None
        for _ in range(10):
            if self._server.poll() is not None:
                return True
            time.sleep(0.1)
        return False

    def _reason(self, error: triton.Rejected) -> str:
        """Return the refusal, with the log's own reason where the answer only says that it could not be read."""
        assert self._server is not None
        lines = self._server.log_lines()[-12:]
        logged = triton_log.reasons("\n".join(lines)) if "failed to poll" in error.message else []
        return " | ".join([error.message, *logged[-1:]])

    def _running(self) -> triton.Client:
        if self._server is None:
            self._server = self._stack.enter_context(server.start(self._root, models=()))
            self._client = self._stack.enter_context(triton.Client(self._server.grpc))
            self.starts += 1
        assert self._client is not None
        return self._client

    def _stop(self) -> None:
        self._server = self._client = None
        self._stack.close()
        self._stack = ExitStack()

    def _clear(self, placed: list[str]) -> None:
        if self._client is not None:
            _unload(self._client, placed)
        for entry in self._root.iterdir():
            _remove(entry)


def starts(tree: Tree) -> Verdict:
    """Start a server of its own with every model of `tree`: for what stands in the root, and for what crashes."""
    with tempfile.TemporaryDirectory(prefix="repogen-agreement-") as folder:
        root = Path(folder)
        _place(root, tree)
        try:
            with server.start(root, timeout=LOAD_SECONDS) as running, triton.Client(running.grpc) as client:
                missing = [name for name in _models(root) if not client.ready(name)]
                return Verdict(not missing, f"not loaded: {', '.join(missing)}" if missing else "")
        except ServerError as error:
            return Verdict(False, error.message)


def _place(root: Path, tree: Tree) -> list[str]:
    """Write the models, each with code that answers; return their names."""
    is_code = {name: name.endswith("/model.py") or content == MODEL_PY for name, content in tree.items()}
    write_tree(root, {name: ZEROS if is_code[name] else content for name, content in tree.items()})
    return list(_models(root))


def _models(root: Path) -> Iterator[str]:
    return (entry.name for entry in sorted(root.iterdir()) if entry.is_dir())


def _unload(client: triton.Client, names: list[str]) -> None:
    """Unload the models and wait until they have gone: their names come again."""
    with contextlib.suppress(ServerError):
        for name in reversed(names):
            client.unload(name, deadline=LOAD_SECONDS)
        gives_up = time.monotonic() + LOAD_SECONDS
        while any(state in ("READY", "UNLOADING", "LOADING") for _, _, state, _ in client.models()):
            if time.monotonic() > gives_up:
                return
            time.sleep(0.01)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
