"""Let live servers take what was published, and prove that they serve it."""

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from repogen import pbtxt
from repogen.access import SECURE
from repogen.errors import ServerError
from repogen.model import ServedModel
from repogen.repository import FINGERPRINT
from repogen.triton import LOAD_DEADLINE, Client, Rejected, address

_PAUSE = 0.1
_POLLS = "polling is enabled"  # Triton's words when a load is asked of a server that polls
_FIXED = "model load / unload is not allowed"  # and of one with --model-control-mode=none
_SETTINGS = (  # what Triton never fills in by itself: when it is live and not published, somebody overrode it
    *("dynamic_batching", "sequence_batching", "ensemble_scheduling", "model_warmup", "parameters", "response_cache"),
    *("model_operations", "batch_input", "batch_output", "model_metrics", "metric_tags"),
)


class Servers:
    """Every server that reads one repository; they take a model one after the other.

    A context manager that closes the connections. `touch` makes a model's config look changed; `deadline` is in
    seconds, for one load.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        touch: Callable[[str], None],
        deadline: float = LOAD_DEADLINE,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stack = ExitStack()
        self._touch = touch
        self._deadline = deadline
        self._note = note
        places = [place for url in urls for place in addresses(url)]
        self.clients = [self._stack.enter_context(Client(place, name=name)) for place, name in places]

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def greet(self) -> None:
        """Ask each server for its name: whoever does not answer is told before anything is written."""
        for client in self.clients:
            client.server_id()

    def polling(self) -> list[str]:
        """Return the servers that look at the repository by themselves."""
        return [client.url for client in self.clients if _polls(client)]

    def bring(self, name: str, config: str, model: ServedModel | None) -> None:
        """Let each server load `name` and prove that it serves `config`. Raises ServerError at the first that fails."""
        meant = pbtxt.parse(config)
        for client in self.clients:
            self._load(client, name, meant)
            self._smoke(client, name, meant, model)
            self._note(f"{name} serves on {client.url}")

    def unload(self, name: str) -> None:
        """Let no server serve `name` any more; one that polls finds out by itself."""
        for client in self.clients:
            self._unload(client, name)

    def serve_again(self, name: str, config: str, model: ServedModel | None) -> bool:
        """Bring a model that did not change where a server runs it otherwise; return whether one did."""
        meant = pbtxt.parse(config)
        if all(not _unlike(client, name, meant) for client in self.clients):
            return False
        self.bring(name, config, model)
        return True

    def _unload(self, client: Client, name: str) -> None:
        try:
            client.unload(name, deadline=self._deadline)
        except Rejected as error:
            if _POLLS not in error.message and "not found" not in error.message:
                raise ServerError(f"{name} is not unloaded: {error.message}") from None

    def _load(self, client: Client, name: str, meant: Any) -> None:
        try:
            client.load(name, deadline=self._deadline)
        except Rejected as error:
            if _POLLS in error.message:
                self._await(client, name, meant)
                return
            hint = "start it with --model-control-mode=explicit" if _FIXED in error.message else ""
            raise ServerError(f"{name} does not load: {error.message}", hint=hint) from None
        if not (fields := _unlike(client, name, meant)):
            return
        # Somebody loaded it with a config of their own: a plain load is a no-op while the files stay as they are.
        self._note(f"{client.url} ran {name} with another {', '.join(fields)}")
        self._touch(name)
        try:
            client.load(name, deadline=self._deadline)
        except Rejected as error:
            raise ServerError(f"{name} does not load: {error.message}") from None
        if fields := _unlike(client, name, meant):
            hint = "does that server read this repository?"
            message = f"{client.url} loaded {name}, but what it runs differs in {', '.join(fields)}"
            raise ServerError(message, hint=hint)

    def _await(self, client: Client, name: str, meant: Any) -> None:
        """Wait until a server that polls serves what is meant; it tells nobody when it cannot."""
        deadline = time.monotonic() + self._deadline
        while fields := _unlike(client, name, meant):
            if time.monotonic() > deadline:
                what = f"{client.url} polls, and does not serve {name} after {self._deadline:g} s"
                hint = "its log says why; --load-timeout gives it longer"
                raise ServerError(f"{what} ({', '.join(fields)} differs)", hint=hint)
            time.sleep(_PAUSE)

    def _smoke(self, client: Client, name: str, meant: Any, model: ServedModel | None) -> None:
        """Ask for one inference: a model may load, and fail at its first request."""
        if meant.HasField("sequence_batching") or meant.model_transaction_policy.decoupled:
            return  # one request by itself means nothing to it
        from repogen.load.payload import from_config, pool

        request = pool(model or from_config(meant, {}), batch=1, count=1, seed=0)[0]
        guessed = model is None and any(dim < 0 for tensor in meant.input for dim in tensor.dims)
        try:
            client.infer(name, request)
        except Rejected as error:
            if not guessed:  # the sizes of an old generation's free axes are not known
                raise ServerError(f"{name} loads, but fails its first request: {error.message}") from None


def addresses(url: str) -> list[tuple[str, str]]:
    """Return every server that `url` means: its address, and the name that its certificate must have.

    A name with several addresses (a headless Service) means all of them.
    """
    whole = address(url)
    scheme = SECURE if whole.startswith(SECURE) else ""
    host, colon, port = whole.removeprefix(SECURE).rpartition(":")
    if not colon or not port.isdigit():
        raise ServerError(f"{url!r} has no port", hint="give HOST:PORT of Triton's gRPC port")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ServerError(f"{host} has no address: {error.strerror or error}", hint="check --url") from None
    ips = list(dict.fromkeys(str(row[4][0]) for row in found))
    if len(ips) == 1 or all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in ips):
        return [(whole, "")]
    return [(f"{scheme}[{ip}]:{port}" if ":" in ip else f"{scheme}{ip}:{port}", host) for ip in ips]


def _polls(client: Client) -> bool:
    try:
        client.unload("repogen.no.such.model")  # does nothing: what it answers tells the mode
    except Rejected as error:
        return _POLLS in error.message
    return False


def _unlike(client: Client, name: str, meant: Any) -> list[str]:
    """Return the fields in which the server runs another config than is meant; ["it is not ready"] where it is not."""
    try:
        live = client.config(name)
    except Rejected:
        return ["it is not loaded"]
    return unlike(meant, live) or ([] if client.ready(name) else ["it is not ready"])


def unlike(meant: Any, live: Any) -> list[str]:
    """Return the fields in which a live ModelConfig is another one than the published, Triton's defaults apart."""
    if meant.parameters[FINGERPRINT].string_value != live.parameters[FINGERPRINT].string_value:
        return ["fingerprint"]
    filled = _filled(meant, live)
    fields = {field.name for field, _ in filled.ListFields()} | {
        field.name for field, _ in live.ListFields() if field.name in _SETTINGS
    }
    return sorted(name for name in fields if getattr(filled, name) != getattr(live, name))


def _filled(meant: Any, live: Any) -> Any:
    """Return the published config with what Triton fills in where a config is silent (as live, where it chooses)."""
    config = type(meant)()
    config.CopyFrom(meant)
    for number, group in enumerate(config.instance_group):
        runs = live.instance_group[number] if number < len(live.instance_group) else None
        group.name = group.name or f"{config.name}_{number}"
        group.count = group.count or 1
        if runs is not None and group.kind == group.KIND_AUTO:
            group.kind = runs.kind
        if runs is not None and not group.gpus:
            group.gpus.extend(runs.gpus)
    batcher = config.dynamic_batching
    if not config.HasField("dynamic_batching") and live.HasField("dynamic_batching"):
        _fill_batcher(batcher, config)  # auto-complete adds one with nothing said
    elif config.HasField("dynamic_batching"):
        _fill_batcher(batcher, config)
    if config.HasField("sequence_batching") and not config.sequence_batching.max_sequence_idle_microseconds:
        config.sequence_batching.max_sequence_idle_microseconds = live.sequence_batching.max_sequence_idle_microseconds
    if config.HasField("optimization"):
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(pinned):
                getattr(config.optimization, pinned).CopyFrom(getattr(live.optimization, pinned))
    return config


def _fill_batcher(batcher: Any, config: Any) -> None:
    batcher.SetInParent()
    if not batcher.preferred_batch_size and config.max_batch_size:
        batcher.preferred_batch_size.append(config.max_batch_size)
