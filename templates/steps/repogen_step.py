"""A thin base for Triton's Python backend: a step is a class with `run`, which gets and returns arrays by name.

    from repogen_step import Step

    class TritonPythonModel(Step):
        def start(self):                      # once for each instance; may be left out
            self.table = (self.folder / "table.txt").read_text()

        def run(self, text):                  # once for each request; arguments are the model's inputs
            return {"length": ...}            # every output

Where the model batches, axis 0 of each array is the batch. What `run` raises becomes the error of that one request.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

Array = np.ndarray[Any, Any]


class Step:
    """What Triton makes once for each instance: `folder` holds the files beside the code, `parameters` the config's."""

    folder: Path
    parameters: Mapping[str, str]

    def start(self) -> None:
        """Prepare what all requests need."""

    def run(self, **inputs: Array) -> Mapping[str, Array]:
        """Answer one request."""
        raise NotImplementedError

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        kinds = {tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"]) for tensor in config["output"]}
        self._outputs = {name: np.dtype(kind) for name, kind in kinds.items()}
        self.folder = Path(args["model_repository"]) / args["model_version"]
        self.parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        self.start()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            given = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
            made = self.run(**{name: tensor.as_numpy() for name, tensor in given.items() if tensor is not None})
            wanted = [name for name in self._outputs if name in request.requested_output_names()]
            return pb_utils.InferenceResponse([self._tensor(name, made[name]) for name in wanted])
        except Exception as error:  # of this request alone: the others of the batch have their answers
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))

    def _tensor(self, name: str, value: Array) -> Any:
        if value.dtype != self._outputs[name]:
            raise TypeError(f"output {name} is {value.dtype}, and the config says {self._outputs[name]}")
        return pb_utils.Tensor(name, value)
