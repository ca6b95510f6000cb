"""Makes examples/models/minilm.onnx out of the weights that fetch_models.py brought: a BERT of six layers.

    python examples/fetch_models.py --pipelines
    python examples/pipelines/export_minilm.py

The graph is written node by node from the published weights (all-MiniLM-L6-v2), so that no PyTorch is needed.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

HERE = Path(__file__).resolve().parent
HEADS = 12
EPSILON = 1e-12  # of the model's layer normalisation
MASKED = -1e4  # exp() of it is 0, and FP16 holds it
OPSET, IR = 17, 8
_HEADER = 8  # bytes of a safetensors file that say how long its JSON header is


def read_weights(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:_HEADER], "little")
    header = json.loads(content[_HEADER : _HEADER + size])
    base = _HEADER + size
    types = {"F32": np.float32, "I64": np.int64}
    found = {}
    for name, said in header.items():
        if name != "__metadata__":
            begin, end = (base + offset for offset in said["data_offsets"])
            found[name] = np.frombuffer(content[begin:end], types[said["dtype"]]).reshape(said["shape"])
    return found


class Graph:
    """An ONNX graph in the making: each method adds a node and returns the name of what it makes."""

    def __init__(self, weights: dict[str, Array], heads: int) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._weights = weights
        self.heads = heads
        self.width = weights["embeddings.word_embeddings.weight"].shape[1]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, name: str) -> str:
        return self.constant(self._weights[name])

    def dense(self, x: str, name: str) -> str:
        product = self.node("MatMul", x, self.constant(self._weights[f"{name}.weight"].T))
        return self.node("Add", product, self.weight(f"{name}.bias"))

    def normalised(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        erf = self.node("Erf", self.node("Div", x, self.number(math.sqrt(2))))
        half = self.node("Mul", x, self.number(0.5))
        return self.node("Mul", half, self.node("Add", erf, self.number(1)))

    def split(self, x: str) -> str:
        split = self.node("Reshape", x, self.whole(0, 0, self.heads, self.width // self.heads))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def attention(self, x: str, mask: str, name: str) -> str:
        query, key, value = (self.split(self.dense(x, f"{name}.self.{part}")) for part in ("query", "key", "value"))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.node("Div", scores, self.number(math.sqrt(self.width // self.heads)))
        weights = self.node("Softmax", self.node("Add", scaled, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self.dense(self.node("Reshape", mixed, self.whole(0, 0, self.width)), f"{name}.output.dense")
        return self.normalised(self.node("Add", joined, x), f"{name}.output.LayerNorm")

    def layer(self, x: str, mask: str, name: str) -> str:
        attended = self.attention(x, mask, f"{name}.attention")
        wide = self.gelu(self.dense(attended, f"{name}.intermediate.dense"))
        narrow = self.dense(wide, f"{name}.output.dense")
        return self.normalised(self.node("Add", narrow, attended), f"{name}.output.LayerNorm")

    def embedded(self) -> str:
        words = self.node("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        kinds = self.node("Gather", self.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
        length = self.node("Slice", self.node("Shape", "input_ids"), self.whole(1), self.whole(2))
        table = self.weight("embeddings.position_embeddings.weight")
        places = self.node("Slice", table, self.whole(0), length, self.whole(0))
        total = self.node("Add", self.node("Add", words, kinds), places)
        return self.normalised(total, "embeddings.LayerNorm")

    def mask(self) -> str:
        """Return what is added to each score: 0, or so little that the softmax makes nothing of it."""
        wide = self.node("Unsqueeze", self.node("Cast", "attention_mask", to=TensorProto.FLOAT), self.whole(1, 2))
        return self.node("Mul", self.node("Sub", self.number(1), wide), self.number(MASKED))


def bert(
    weights: dict[str, Array], name: str, *, heads: int = HEADS, whole: int = TensorProto.INT64
) -> onnx.ModelProto:
    """Return a BERT of these weights; `whole` is the type of its inputs."""
    graph = Graph(weights, heads)
    mask = graph.mask()
    x = graph.embedded()
    layer = 0
    while f"encoder.layer.{layer}.output.dense.bias" in weights:
        x = graph.layer(x, mask, f"encoder.layer.{layer}")
        layer += 1
    graph.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, whole, ["batch", "length"]) for name in names]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", graph.width])
    made = helper.make_graph(graph.nodes, name, inputs, [output], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(model)
    return model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make minilm.onnx and characters.txt for the pipelines.")
    parser.add_argument("--models", type=Path, default=HERE.parent / "models")
    models: Path = parser.parse_args(arguments).models
    weights = models / "minilm.safetensors"
    if not weights.is_file():
        print(f"{weights} is not there: python examples/fetch_models.py --pipelines brings it", file=sys.stderr)
        return 1
    onnx.save(bert(read_weights(weights), "all-MiniLM-L6-v2"), models / "minilm.onnx")
    (models / "characters.txt").write_text(_characters(models / "text_rec.onnx"), encoding="utf-8")
    print(f"{models}: wrote minilm.onnx and characters.txt")
    return 0


def _characters(recogniser: Path) -> str:
    """Return the characters that the recogniser's scores stand for, one a line; they lie in its own metadata."""
    model = onnx.load_model(recogniser, load_external_data=False)
    return str(next(entry.value for entry in model.metadata_props if entry.key == "character"))


if __name__ == "__main__":
    sys.exit(main())
