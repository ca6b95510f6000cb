"""The one seam to a live Triton: gRPC calls with a deadline each, errors in plain words.

Everything heavy is imported where it is used, so that importing this module costs nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repogen.access import SECURE, from_environment
from repogen.dtypes import BY_WIRE
from repogen.errors import RepogenError, ServerError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
DEADLINE = 10.0
"""Seconds that a question to the server may take."""
LOAD_DEADLINE = 600.0
"""Seconds that loading a model may take: large TensorRT plans are slow to read."""

_INT32_MAX = 2**31 - 1
_TRANSPORT = (
    "failed to connect",
    "errors resolving",
    "dns resolution",
    "socket closed",
    "connection reset",
    "recvmsg",
    "goaway",
    "cancelling all calls",
    "broken pipe",
    "keepalive",
    "transport closed",
    "all backends failing",
)


class NoAnswer(ServerError):
    """Nothing answers at the address, or not before the deadline."""


class Rejected(ServerError):
    """Triton answered, and the answer is no. `status` is gRPC's name of the reason."""

    def __init__(self, message: str, *, status: str, where: str = "") -> None:
        super().__init__(message, where=where)
        self.status = status


@dataclass(frozen=True)
class BatchStatistics:
    """The executions that had one batch size: how many, and the nanoseconds they took."""

    size: int
    count: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@dataclass(frozen=True)
class Statistics:
    """Triton's own counters of one model since it was loaded; `later - earlier` is what happened between.

    The `_ns` sums add up every request's share; `batches` counts executions instead. `total_ns` is from a request's
    arrival at the server to its answer.
    """

    model: str
    requests: int
    failures: int
    inferences: int
    executions: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batches: tuple[BatchStatistics, ...] = ()
    total_ns: int = 0

    def __sub__(self, earlier: Statistics) -> Statistics:
        if any(getattr(self, name) < getattr(earlier, name) for name in _COUNTERS):
            raise ServerError(
                f"the statistics of {self.model} started over: it was reloaded, or its server restarted",
                hint="measure again",
            )
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS}
        return Statistics(self.model, **counts, batches=_batches(self.batches, earlier.batches))


_COUNTERS = (
    "requests",
    "failures",
    "inferences",
    "executions",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "total_ns",
)


class Client:
    """One connection to a Triton server; a context manager that closes it."""

    def __init__(self, url: str, *, deadline: float = DEADLINE, name: str = "") -> None:
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self.url = address(url)
        self._deadline = deadline
        self._pb = service_pb2
        self._channel = channel(self.url, name=name)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def server_id(self) -> str:
        """Return the server's `--id`, "triton" where none was given."""
        return str(self._call("ServerMetadata", self._pb.ServerMetadataRequest()).name)

    def server_version(self) -> str:
        return str(self._call("ServerMetadata", self._pb.ServerMetadataRequest()).version)

    def live(self) -> bool:
        try:
            return bool(self._call("ServerLive", self._pb.ServerLiveRequest()).live)
        except ServerError:
            return False

    def ready(self, model: str) -> bool:
        """Return whether `model` answers requests; raise NoAnswer where no server does."""
        try:
            return bool(self._call("ModelReady", self._pb.ModelReadyRequest(name=model)).ready)
        except Rejected:
            return False

    def config(self, model: str) -> Any:
        """Return the `ModelConfig` that the server runs, what it filled in by itself included."""
        return self._call("ModelConfig", self._pb.ModelConfigRequest(name=model)).config

    def models(self) -> tuple[tuple[str, str, str, str], ...]:
        """Return (name, version, state, reason) of every model that the server knows."""
        index = self._call("RepositoryIndex", self._pb.RepositoryIndexRequest())
        return tuple((m.name, m.version, m.state, m.reason) for m in index.models)

    def load(self, name: str, config_json: str | None = None, *, deadline: float = LOAD_DEADLINE) -> None:
        """Load a model, with `config_json` in place of its `config.pbtxt` where given."""
        request = self._pb.RepositoryModelLoadRequest(model_name=name)
        if config_json is not None:
            request.parameters["config"].string_param = config_json
        self._call("RepositoryModelLoad", request, deadline=deadline)

    def unload(self, name: str, *, deadline: float = LOAD_DEADLINE) -> None:
        request = self._pb.RepositoryModelUnloadRequest(model_name=name)
        self._call("RepositoryModelUnload", request, deadline=deadline)

    def infer(
        self, name: str, inputs: Mapping[str, Array], outputs: Sequence[str] = (), *, deadline: float = 60.0
    ) -> dict[str, Array]:
        """Return the outputs asked for, or all of them where none is named."""
        return decode(self._call("ModelInfer", _request(name, inputs, outputs), deadline=deadline))

    def statistics(self, name: str) -> Statistics:
        """Return the model's counters, all its versions together."""
        answer = self._call("ModelStatistics", self._pb.ModelStatisticsRequest(name=name))
        return _statistics(name, answer.model_stats)

    def statistics_of(self, names: Sequence[str]) -> dict[str, Statistics]:
        """Return the counters of several models out of one answer; those that the server does not know are left out."""
        told = self._call("ModelStatistics", self._pb.ModelStatisticsRequest()).model_stats
        known = {name: [version for version in told if version.name == name] for name in names}
        return {name: _statistics(name, versions) for name, versions in known.items() if versions}

    def _call(self, method: str, request: Any, *, deadline: float | None = None) -> Any:
        import grpc

        seconds = self._deadline if deadline is None else deadline
        try:
            return getattr(self._stub, method)(request, timeout=seconds)
        except grpc.RpcError as error:
            raise explain(error, self.url, seconds) from None


def address(url: str) -> str:
    """Return gRPC's own form of `url`: HOST:PORT, its `grpc://` or `http://` taken off; `grpcs://` stays."""
    scheme, found, rest = url.strip().partition("://")
    if not found:
        return scheme.rstrip("/")
    if scheme == "grpcs":
        return f"{SECURE}{rest.rstrip('/')}"
    if scheme not in ("grpc", "http"):
        raise RepogenError(f"{url!r} is no address of a Triton server", hint="give HOST:PORT of its gRPC port")
    return rest.rstrip("/")


def channel(url: str, *, name: str = "") -> Any:
    """Return a gRPC channel to `url` for messages of any size, with TLS where it begins with `grpcs://`.

    `name` is the one that the server's certificate must have, where `url` gives an address instead.
    Certificates and headers come from the environment (`repogen.access`).
    """
    return from_environment().with_headers(bare_channel(url, name=name))


def bare_channel(url: str, *, name: str = "") -> Any:
    """Return the same channel without the headers, for those who send them with each call."""
    import grpc

    access = from_environment()
    place = url.removeprefix(SECURE)
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", _INT32_MAX),
        ("grpc.max_receive_message_length", _INT32_MAX),
        # Channels of one process share their connections, and with them the wait after a failed connect:
        # a server that has just come up would be reported as absent.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if place.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy's loopback is not ours
    if name and place != url:
        options.append(("grpc.ssl_target_name_override", name))
    if place == url:
        return grpc.insecure_channel(place, options)
    return grpc.secure_channel(place, access.tls(), options)


def explain(error: Any, url: str, deadline: float) -> ServerError:
    """Return the plain words for an `RpcError`."""
    status, text = error.code().name, error.details() or "no reason given"
    if status == "DEADLINE_EXCEEDED":
        return NoAnswer(f"no answer from {url} within {deadline:g} s", hint="is the server overloaded, or stopped?")
    if status == "UNAVAILABLE" and any(sign in text.lower() for sign in _TRANSPORT):
        return NoAnswer(f"no Triton answers at {url}", hint=f"is it up, and is this its gRPC port? {text}")
    if status == "UNIMPLEMENTED":
        return Rejected(f"{url} speaks gRPC but is no Triton: {text}", status=status)
    sentence = " ".join(text.split()).rstrip("; ")  # a Python backend's own has lines of its traceback in it
    return Rejected(f"Triton at {url} refused: {sentence}", status=status)


def encode(name: str, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> bytes:
    """Return the serialized ModelInferRequest."""
    return bytes(_request(name, inputs, outputs).SerializeToString())


def decode(response: Any) -> dict[str, Array]:
    """Return the arrays of a ModelInferResponse, or of its serialized bytes."""
    if isinstance(response, bytes):
        from tritonclient.grpc import service_pb2

        response = service_pb2.ModelInferResponse.FromString(response)
    if len(response.outputs) != len(response.raw_output_contents):
        raise ServerError(
            f"{response.model_name} answered {len(response.outputs)} outputs "
            f"with the contents of {len(response.raw_output_contents)}"
        )
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _output(response.model_name, output, raw) for output, raw in pairs}


def to_wire(array: Array) -> tuple[str, bytes]:
    """Return an array's data type in the inference protocol, and its bytes there."""
    if array.dtype.kind in "OSU":
        return "BYTES", b"".join(_string(item) for item in array.ravel(order="C").tolist())
    wire = {row.numpy or "bfloat16": row.wire for row in BY_WIRE.values()}.get(array.dtype.name)
    if wire is None:
        raise RepogenError(f"Triton has no data type for NumPy's {array.dtype.name}")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.byteorder == ">" else array
    return wire, little.tobytes(order="C")


def from_wire(datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    """Return the array that `raw` holds; strings come as bytes objects."""
    import numpy as np

    if datatype == "BYTES":
        items = np.empty(math.prod(shape), dtype=object)
        items[:] = list(_strings(raw, expected=items.size))
        return items.reshape(shape)
    kind = _numpy(datatype)
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(raw)} bytes where {datatype}{list(shape)} has {math.prod(shape) * kind.itemsize}")
    return np.frombuffer(raw, dtype=kind).reshape(shape)


def _request(name: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Any:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=name)
    for key, array in inputs.items():
        datatype, raw = to_wire(array)
        request.inputs.add(name=key, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(raw)
    for key in outputs:
        request.outputs.add(name=key)
    return request


def _output(model: str, output: Any, raw: bytes) -> Array:
    try:
        return from_wire(output.datatype, tuple(output.shape), raw)
    except ValueError as error:
        # Seen for real: a Python backend under NumPy 2 answers empty tensors, and no error.
        raise ServerError(f"the server's answer is broken: {error}", where=f"{model}.{output.name}") from None


def _string(item: bytes | str) -> bytes:
    data = item if isinstance(item, bytes) else str(item).encode()
    return len(data).to_bytes(4, "little") + data


def _strings(raw: bytes, *, expected: int) -> Iterable[bytes]:
    start = 0
    for _ in range(expected):
        size = int.from_bytes(raw[start : start + 4], "little")
        end = start + 4 + size
        if end > len(raw) or start + 4 > len(raw):
            raise ValueError(f"its {len(raw)} bytes end before its {expected} strings do")
        yield raw[start + 4 : end]
        start = end
    if start != len(raw):
        raise ValueError(f"{len(raw) - start} bytes are left after its {expected} strings")


def _numpy(datatype: str) -> np.dtype[Any]:
    import numpy as np

    if datatype not in BY_WIRE:
        raise ValueError(f"its data type {datatype!r} is unknown")
    name = BY_WIRE[datatype].numpy
    if name is None:
        import ml_dtypes  # comes with tritonclient

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _statistics(name: str, versions: Sequence[Any]) -> Statistics:
    sums: Counter[str] = Counter()
    batches: tuple[BatchStatistics, ...] = ()
    for version in versions:
        phases = version.inference_stats
        sums["requests"] += phases.success.count
        sums["failures"] += phases.fail.count
        sums["total_ns"] += phases.success.ns
        sums["inferences"] += version.inference_count
        sums["executions"] += version.execution_count
        for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
            sums[f"{phase}_ns"] += getattr(phases, phase).ns
        batches += tuple(
            BatchStatistics(
                b.batch_size,
                b.compute_infer.count,
                b.compute_input.ns,
                b.compute_infer.ns,
                b.compute_output.ns,
            )
            for b in version.batch_stats
        )
    return Statistics(name, **{key: sums[key] for key in _COUNTERS}, batches=_batches(batches, ()))


def _batches(later: Sequence[BatchStatistics], earlier: Sequence[BatchStatistics]) -> tuple[BatchStatistics, ...]:
    totals: dict[int, Counter[str]] = {}
    for sign, rows in ((1, later), (-1, earlier)):
        for row in rows:
            total = totals.setdefault(row.size, Counter())
            for key in _BATCH_COUNTERS:
                total[key] += sign * getattr(row, key)
    return tuple(
        BatchStatistics(size, **{key: totals[size][key] for key in _BATCH_COUNTERS})
        for size in sorted(totals)
        if totals[size]["count"]
    )


_BATCH_COUNTERS = ("count", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
