"""Serve a TensorRT plan inside Triton's Python backend, on a machine with an NVIDIA GPU and that TensorRT.

The same file serves every plan, with `plan_engine.py` beside it; the config's parameters tell it what to do:
  plan_file           the plan's file in the version folder (model.plan)
  cuda_graphs         "true": record each shape's run once, then replay it
  version_compatible  "true": the plan brings a runtime of its own
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from plan_engine import Engine


class Member(NamedTuple):
    """One request of an execution: its place there, its arrays in the plan's order, the outputs that it asks for."""

    index: int
    feeds: list[Any]
    wanted: list[str]


class TritonPythonModel:
    """What Triton makes once for each instance of a model: a plan, a stream and pinned buffers of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        told = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.name = config["name"]
        self.max_batch = int(config.get("max_batch_size", 0))
        self.squeezed = {
            tensor["name"] for tensor in config["input"] if "reshape" in tensor and not tensor["reshape"].get("shape")
        }
        path = Path(args["model_repository"]) / args["model_version"] / told.get("plan_file", "model.plan")
        try:
            self.engine = Engine(
                str(path),
                device=int(args["model_instance_device_id"]),
                cuda_graphs=told.get("cuda_graphs") == "true",
                version_compatible=told.get("version_compatible") == "true",
            )
        except Exception as error:
            raise pb_utils.TritonModelException(f"{self.name}: {error}") from None
        check_tensors(self.engine, config)
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.stretched = {
            tensor["name"] for tensor in config["output"] if "reshape" in tensor and not tensor["reshape"].get("shape")
        }
        self.types = {name: np.dtype(self.engine.dtype(name)) for name in self.engine.inputs}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests in their order; those that fit together share one run."""
        responses: list[Any] = [None] * len(requests)
        groups: dict[Any, list[Member]] = {}
        for index, request in enumerate(requests):
            try:
                member = self.read(index, request)
            except Exception as error:
                responses[index] = self.failure(error)
                continue
            key = tuple(array.shape[1:] for array in member.feeds) if self.max_batch else index
            groups.setdefault(key, []).append(member)
        for members in groups.values():
            for member, response in zip(members, self.answer(members, keep=len(groups) > 1)):
                responses[member.index] = response
        return responses

    def finalize(self) -> None:
        self.engine.close()

    def read(self, index: int, request: Any) -> Member:
        """Return the arrays of a request, as they lie in shared memory."""
        feeds = []
        for name in self.engine.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError(f"input {name} is missing")
            array = tensor.as_numpy()
            if array.dtype != self.types[name]:
                raise TypeError(f"input {name} is {array.dtype}, the plan takes {self.types[name]}")
            feeds.append(array.reshape(array.shape[:1]) if name in self.squeezed else array)
        asked = request.requested_output_names()
        return Member(index, feeds, [name for name in self.outputs if name in asked])

    def answer(self, members: list[Member], *, keep: bool) -> list[Any]:
        """Return the responses of requests that fit together; `keep` copies them out of the pinned buffers."""
        try:
            return self.run(members, keep=keep)
        except Exception as error:
            if len(members) == 1:
                return [self.failure(error)]
        # Each by itself, so that only the guilty one gets the error.
        return [self.answer([member], keep=True)[0] for member in members]

    def run(self, members: list[Member], *, keep: bool) -> list[Any]:
        rows = [member.feeds[0].shape[0] for member in members] if self.max_batch else [0]
        total = sum(rows)
        first = members[0].feeds
        shapes = {
            name: (total, *array.shape[1:]) if self.max_batch else array.shape
            for name, array in zip(self.engine.inputs, first)
        }
        room = self.engine.room(shapes)
        for place, name in enumerate(self.engine.inputs):
            target = room[name]
            if len(members) == 1:
                target[...] = first[place]
            else:
                np.concatenate([member.feeds[place] for member in members], out=target)
        results = self.engine.run(shapes)
        if keep:
            results = {name: value.copy() for name, value in results.items()}
        for name in self.stretched:
            results[name] = results[name].reshape(*results[name].shape, 1)
        return self.responses(members, rows, results, total)

    def responses(self, members: list[Member], rows: list[int], results: dict[str, Any], total: int) -> list[Any]:
        if not self.max_batch:
            return [respond(members[0].wanted, results)]
        for name, value in results.items():
            if value.ndim == 0 or value.shape[0] != total:
                raise ValueError(f"output {name} is {list(value.shape)} for a batch of {total}")
        found, begin = [], 0
        for member, count in zip(members, rows):
            end = begin + count
            found.append(respond(member.wanted, {name: results[name][begin:end] for name in member.wanted}))
            begin = end
        return found

    def failure(self, error: Exception) -> Any:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{self.name}: {error}"))


def respond(wanted: list[str], values: dict[str, Any]) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, values[name]) for name in wanted])


def check_tensors(engine: Engine, config: dict[str, Any]) -> None:
    """Refuse a config whose tensors are not the plan's."""
    for part, names in (("input", engine.inputs), ("output", engine.outputs)):
        said = {tensor["name"]: tensor["data_type"] for tensor in config[part]}
        if said.keys() != set(names):
            have, want = sorted(said), sorted(names)
            raise pb_utils.TritonModelException(f"the config's {part}s are {have}, the plan's {want}")
        for name, kind in said.items():
            if np.dtype(pb_utils.triton_string_to_numpy(kind)) != np.dtype(engine.dtype(name)):
                message = f"{part} {name} is {kind} in the config, {np.dtype(engine.dtype(name))} in the plan"
                raise pb_utils.TritonModelException(message)
