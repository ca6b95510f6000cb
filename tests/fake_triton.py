"""A scripted Triton: the few gRPC calls that repogen makes, in this process, on a free port of 127.0.0.1.

A call that is not scripted fails with UNIMPLEMENTED.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2

_SERVICE = "inference.GRPCInferenceService"


class Refusal(Exception):
    """Raised by a script: the gRPC status and text to answer with."""

    def __init__(self, status: str, text: str) -> None:
        self.status = grpc.StatusCode[status]
        super().__init__(text)


Script = Callable[[Any], Any]


def echo(request: Any) -> Any:
    """Answer every input as an output of the same name."""
    response = service_pb2.ModelInferResponse(model_name=request.model_name)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.extend(request.raw_input_contents)
    return response


@dataclass
class FakeModel:
    config: Any
    infer: Script = echo
    stream: Callable[[Any], Iterable[Any]] = lambda request: [echo(request)]
    ready: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)


def identity_config(name: str, *, max_batch_size: int = 8, dims: tuple[int, ...] = (4,)) -> Any:
    config = model_config_pb2.ModelConfig(name=name, backend="python", max_batch_size=max_batch_size)
    config.input.add(name="x", data_type="TYPE_FP32", dims=dims)
    config.output.add(name="x", data_type="TYPE_FP32", dims=dims)
    config.instance_group.add(count=1)
    return config


class FakeTriton:
    """A context manager; `url` is where it answers, `calls` what it was asked."""

    def __init__(self, *models: FakeModel, threads: int = 16, credentials: Any = None) -> None:
        self.models = {model.config.name: model for model in models}
        self.calls: list[tuple[str, Any]] = []
        self.metadata: Callable[[Any], None] = lambda _: None
        self._lock = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(threads),
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        methods = {
            "ServerLive": self._live,
            "ServerMetadata": self._metadata,
            "ModelReady": self._ready,
            "ModelConfig": self._config,
            "ModelInfer": self._infer,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {name: self._handler(name, method) for name, method in methods.items()}
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=service_pb2.ModelInferRequest.FromString,
            response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        place = "127.0.0.1:0"
        add = self._server.add_insecure_port
        port = self._server.add_secure_port(place, credentials) if credentials else add(place)
        self.url = f"{'grpcs://' if credentials else ''}127.0.0.1:{port}"

    def __enter__(self) -> FakeTriton:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop at once: requests under way are cut off, the port is closed."""
        self._server.stop(grace=None).wait(5)

    def _handler(self, name: str, method: Script) -> Any:
        def answer(request: Any, context: Any) -> Any:
            with self._lock:
                self.calls.append((name, request))
            self.metadata(context.invocation_metadata())
            try:
                return method(request)
            except Refusal as refusal:
                context.abort(refusal.status, str(refusal))

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(service_pb2, f"{name}Request").FromString,
            response_serializer=getattr(service_pb2, f"{name}Response").SerializeToString,
        )

    def _model(self, name: str) -> FakeModel:
        if name not in self.models:
            raise Refusal("UNAVAILABLE", f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def _live(self, _: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def _metadata(self, _: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="fake", version="2.51.0")

    def _ready(self, request: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=self._model(request.name).ready)

    def _config(self, request: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=self._model(request.name).config)

    def _index(self, _: Any) -> Any:
        response = service_pb2.RepositoryIndexResponse()
        for name, model in self.models.items():
            state = "READY" if model.ready else "UNAVAILABLE"
            response.models.add(name=name, version="1", state=state, reason="" if model.ready else "unloaded")
        return response

    def _load(self, request: Any) -> Any:
        self._model(request.model_name).ready = True
        return service_pb2.RepositoryModelLoadResponse()

    def _unload(self, request: Any) -> Any:
        self._model(request.model_name).ready = False
        return service_pb2.RepositoryModelUnloadResponse()

    def _infer(self, request: Any) -> Any:
        model = self._model(request.model_name)
        batch = request.inputs[0].shape[0] if model.config.max_batch_size else 1
        try:
            response = model.infer(request)
        except Refusal:
            with self._lock:
                model.counts["failures"] += 1
            raise
        with self._lock:
            model.counts["requests"] += 1
            model.batches[batch] += 1
        return response

    def _stream(self, requests: Iterable[Any], context: Any) -> Iterable[Any]:
        for request in requests:
            with self._lock:
                self.calls.append(("ModelStreamInfer", request))
            self.metadata(context.invocation_metadata())
            try:
                for response in self._model(request.model_name).stream(request):
                    yield service_pb2.ModelStreamInferResponse(infer_response=response)
            except Refusal as refusal:  # a stream goes on: Triton puts the words into an answer
                yield service_pb2.ModelStreamInferResponse(error_message=str(refusal))

    def _statistics(self, request: Any) -> Any:
        """Count each request as one execution of 1 ms: queue 0.1, input 0.2, infer 0.6, output 0.1."""
        model = self._model(request.name)
        response = service_pb2.ModelStatisticsResponse()
        stats = response.model_stats.add(name=request.name, version="1")
        requests = model.counts["requests"]
        stats.execution_count = requests
        stats.inference_count = sum(size * count for size, count in model.batches.items())
        stats.inference_stats.success.count = requests
        stats.inference_stats.fail.count = model.counts["failures"]
        for phase, ns in (
            ("queue", 100_000),
            ("compute_input", 200_000),
            ("compute_infer", 600_000),
            ("compute_output", 100_000),
        ):
            duration = getattr(stats.inference_stats, phase)
            duration.count, duration.ns = requests, ns * requests
        for size, count in sorted(model.batches.items()):
            row = stats.batch_stats.add(batch_size=size)
            row.compute_infer.count, row.compute_infer.ns = count, 600_000 * count
        return response
