"""Serve an ONNX model with ONNX Runtime inside Triton's Python backend.

The same file serves every model; the config's parameters tell it what to do:
  onnx_file         the model's file in the version folder (model.onnx)
  scalars           a JSON list of the inputs that have rank 0 in the graph; requests carry [1] or [N,1]
  narrowed          a JSON list of tensors that are INT64 in the graph and INT32 for clients, as in a plan
  intra_op_threads  how many threads one run may use (0: ONNX Runtime decides)
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class Member(NamedTuple):
    """One request of an execution: its place there, its arrays, and the outputs that it asks for."""

    index: int
    feeds: dict[str, Any]
    wanted: list[str]


class TritonPythonModel:
    """What Triton makes once for each instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        told = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.name = config["name"]
        self.batching = int(config.get("max_batch_size", 0)) > 0
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = {tensor["name"]: tensor["data_type"] for tensor in config["output"]}
        self.scalars = set(json.loads(told.get("scalars", "[]")))
        self.narrowed = set(json.loads(told.get("narrowed", "[]")))
        for tensor in config["input"] + config["output"]:
            if tensor["data_type"] == "TYPE_BF16":  # as_numpy() refuses it: NumPy has no such type
                refuse(f"{tensor['name']} is BF16, which the embedded server cannot serve: use FP16 or FP32")
        folder = Path(args["model_repository"]) / args["model_version"]
        threads = int(told.get("intra_op_threads", "0"))
        self.session = open_session(folder / told.get("onnx_file", "model.onnx"), threads)
        check_names(self.session, self.inputs, list(self.outputs))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests in their order; those that fit together share one run."""
        responses: list[Any] = [None] * len(requests)
        groups: dict[Any, list[Member]] = {}
        for index, request in enumerate(requests):
            try:
                asked = set(request.requested_output_names())
                member = Member(index, self.read(request), [name for name in self.outputs if name in asked])
            except Exception as error:
                responses[index] = self.failure(error)
                continue
            key = fit(member.feeds) if self.batching else index
            groups.setdefault(key, []).append(member)
        for members in groups.values():
            for member, response in zip(members, self.answer(members)):  # noqa: B905 - not in Python 3.9
                responses[member.index] = response
        return responses

    def read(self, request: Any) -> dict[str, Any]:
        """Return the arrays of a request as ONNX Runtime wants them."""
        feeds = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError(f"input {name} is missing")
            value = tensor.as_numpy()
            if value.dtype == np.object_:
                value = decoded(name, value)
            if name in self.narrowed:
                value = value.astype(np.int64)
            feeds[name] = scalar(name, value) if name in self.scalars else value
        return feeds

    def answer(self, members: list[Member]) -> list[Any]:
        """Return the responses of requests that fit together."""
        try:
            return self.run(members)
        except Exception as error:
            if len(members) == 1:
                return [self.failure(error)]
        # Each by itself, so that only the guilty one gets the error.
        return [self.answer([member])[0] for member in members]

    def run(self, members: list[Member]) -> list[Any]:
        rows = [batch_of(member.feeds) for member in members]
        asked = [name for name in self.outputs if any(name in member.wanted for member in members)]
        values = self.session.run(asked, merged([member.feeds for member in members])) if asked else []
        parts = {name: self.parts(name, value, rows) for name, value in zip(asked, values)}  # noqa: B905
        return [
            pb_utils.InferenceResponse([to_tensor(name, parts[name][place]) for name in member.wanted])
            for place, member in enumerate(members)
        ]

    def parts(self, name: str, value: Any, rows: list[int]) -> list[Any]:
        """Return each request's part of one output."""
        if not isinstance(value, np.ndarray):
            raise TypeError(f"output {name} is not a tensor but a {type(value).__name__}")
        if name in self.narrowed:
            value = value.astype(np.int32)
        if value.dtype != np.dtype(pb_utils.triton_string_to_numpy(self.outputs[name])):
            raise TypeError(f"output {name} is {value.dtype}, its config says {self.outputs[name]}")
        if not self.batching:
            return [value.reshape(1) if value.ndim == 0 else value]
        if value.ndim == 0 or value.shape[0] != sum(rows):
            has = f"{value.shape[0]} rows" if value.ndim else "no batch axis"
            raise ValueError(f"output {name} has {has} for a batch of {sum(rows)}")
        return np.split(value, np.cumsum(rows)[:-1])

    def failure(self, error: Exception) -> Any:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{self.name}: {error}"))


def open_session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin while they wait would take the cores from the other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors: the run's exception tells the rest
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_names(session: Any, inputs: list[str], outputs: list[str]) -> None:
    needed = [node.name for node in session.get_inputs()]
    optional = [node.name for node in session.get_overridable_initializers()]
    produced = [node.name for node in session.get_outputs()]
    for name in needed:
        if name not in inputs:
            refuse(f"the graph's input {name} is not in the config")
    for name in inputs:
        if name not in needed + optional:
            refuse(f"the config's input {name} is not in the graph")
    for name in outputs:
        if name not in produced:
            refuse(f"the config's output {name} is not in the graph")


def refuse(sentence: str) -> None:
    raise pb_utils.TritonModelException(sentence)


def decoded(name: str, value: Any) -> Any:
    try:
        texts = [item.decode() if isinstance(item, bytes) else item for item in value.reshape(-1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"input {name} is not UTF-8: {error}") from None
    return np.array(texts, dtype=np.object_).reshape(value.shape)


def scalar(name: str, value: Any) -> Any:
    """Return the one value of an input that has rank 0 in the graph."""
    items = value.reshape(-1)
    if items.size == 0 or any(item != items[0] for item in items[1:]):
        raise ValueError(f"input {name} is a scalar: it takes one value for the whole request")
    return np.array(items[0], dtype=value.dtype)


def fit(feeds: dict[str, Any]) -> tuple[Any, ...]:
    """Return what requests must share to be merged: every size but the batch's, every scalar's value."""
    return tuple(value.shape[1:] if value.ndim else repr(value.item()) for value in feeds.values())


def batch_of(feeds: dict[str, Any]) -> int:
    return next((value.shape[0] for value in feeds.values() if value.ndim), 1)


def merged(feeds: list[dict[str, Any]]) -> dict[str, Any]:
    first = feeds[0]
    if len(feeds) == 1:
        return first
    return {
        name: np.concatenate([feed[name] for feed in feeds]) if value.ndim else value for name, value in first.items()
    }


def to_tensor(name: str, value: Any) -> Any:
    if value.dtype == np.object_:
        texts = [item.encode() if isinstance(item, str) else item for item in value.reshape(-1)]
        value = np.array(texts, dtype=np.object_).reshape(value.shape)
    return pb_utils.Tensor(name, value)
