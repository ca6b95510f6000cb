"""Models of well-known shapes with random weights, written with onnx.helper: a residual CNN and a BERT encoder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Collects nodes and weights; every method returns the name of what its node gives."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        index = len(self.nodes)
        names = [f"{operator.lower()}_{index}" + (f"_{n}" if n else "") for n in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, f"{operator}_{index}", **attributes))
        return names[0]

    def save(self, path: Path, inputs: Sequence, outputs: Sequence, opset: int) -> Path:
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
        return path


def resnet(
    path: Path, *, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000, size: int = 224
) -> Path:
    """Write a bottleneck ResNet (ResNet-50 by default), He weights, BatchNormalization not folded."""
    graph = Graph(seed=50)

    def conv(x: str, read: int, made: int, kernel: int, stride: int = 1, gain: float = 1.0) -> str:
        weight = graph.rng.normal(0, np.sqrt(2 / (read * kernel * kernel)), (made, read, kernel, kernel))
        pads = [kernel // 2] * 4
        y = graph.node("Conv", x, graph.weight(weight.astype(np.float32)), strides=[stride, stride], pads=pads)
        shape = (made,)
        norm = (
            gain * graph.rng.uniform(0.8, 1.2, shape), graph.rng.normal(0, 0.1, shape),
            graph.rng.normal(0, 0.1, shape), graph.rng.uniform(0.5, 1.5, shape),
        )  # fmt: skip
        return graph.node("BatchNormalization", y, *(graph.weight(part.astype(np.float32)) for part in norm))

    x = graph.node("Relu", conv("image", 3, width, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(blocks):
        inner, outer = width << stage, 4 * (width << stage)
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = graph.node("Relu", conv(x, channels, inner, 1))
            y = graph.node("Relu", conv(y, inner, inner, 3, stride))
            y = conv(y, inner, outer, 1, gain=0.3)
            skip = x if block else conv(x, channels, outer, 1, stride, gain=0.7)
            x = graph.node("Relu", graph.node("Add", y, skip))
            channels = outer
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    last = graph.weight(graph.rng.normal(0, 1 / np.sqrt(channels), (channels, classes)).astype(np.float32))
    x = graph.node("Gemm", x, last, graph.weight(np.zeros(classes, np.float32)))
    graph.nodes.append(helper.make_node("Identity", [x], ["logits"], "logits"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, size, size])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])
    return graph.save(path, [image], [logits], opset=13)


def encoder(
    path: Path, *, layers: int = 12, hidden: int = 768, heads: int = 12, words: int = 30522, sequence: int = 128
) -> Path:
    """Write a BERT encoder (BERT-base by default): normalisations written out, a mask of -3.4e38."""
    graph = Graph(seed=12)

    def weight(*shape: int, scale: float = 0.02) -> str:
        return graph.weight(graph.rng.normal(0, scale, shape).astype(np.float32))

    def scalar(value: float) -> str:
        return graph.weight(np.array(value, np.float32))

    def dense(x: str, read: int, made: int) -> str:
        return graph.node("Add", graph.node("MatMul", x, weight(read, made, scale=read**-0.5)), weight(made))

    def norm(x: str) -> str:
        centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1]))
        variance = graph.node("ReduceMean", graph.node("Pow", centred, scalar(2.0)), axes=[-1])
        spread = graph.node("Sqrt", graph.node("Add", variance, scalar(1e-12)))
        scaled = graph.node("Mul", graph.node("Div", centred, spread), graph.weight(np.ones(hidden, np.float32)))
        return graph.node("Add", scaled, weight(hidden))

    def split(x: str) -> str:
        shape = graph.weight(np.array([0, sequence, heads, hidden // heads], np.int64))
        return graph.node("Reshape", x, shape)

    def attention(x: str, mask: str) -> str:
        q, k, v = (split(dense(x, hidden, hidden)) for _ in range(3))
        q, v = (graph.node("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 2, 3, 1]))
        scores = graph.node("Div", scores, scalar((hidden // heads) ** 0.5))
        mixed = graph.node("MatMul", graph.node("Softmax", graph.node("Add", scores, mask), axis=-1), v)
        joined = graph.weight(np.array([0, sequence, hidden], np.int64))
        return dense(graph.node("Reshape", graph.node("Transpose", mixed, perm=[0, 2, 1, 3]), joined), hidden, hidden)

    def gelu(x: str) -> str:
        erf = graph.node("Erf", graph.node("Div", x, scalar(2**0.5)))
        return graph.node("Mul", graph.node("Mul", x, graph.node("Add", erf, scalar(1.0))), scalar(0.5))

    seen = graph.node("Cast", "attention_mask", to=TensorProto.FLOAT)
    seen = graph.node("Unsqueeze", seen, graph.weight(np.array([1, 2], np.int64)))
    mask = graph.node("Mul", graph.node("Sub", scalar(1.0), seen), scalar(float(np.finfo(np.float32).min)))
    x = graph.node("Gather", weight(words, hidden, scale=1.0), "input_ids", axis=0)
    x = norm(graph.node("Add", x, weight(1, sequence, hidden, scale=0.5)))
    for _ in range(layers):
        x = norm(graph.node("Add", x, attention(x, mask)))
        x = norm(graph.node("Add", x, dense(gelu(dense(x, hidden, 4 * hidden)), 4 * hidden, hidden)))
    graph.nodes.append(helper.make_node("Identity", [x], ["hidden"], "hidden"))
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["N", sequence])
        for name in ("input_ids", "attention_mask")
    ]
    out = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["N", sequence, hidden])
    return graph.save(path, ids, [out], opset=13)


def images(count: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """Return pictures with structure at every scale, as photographs have it."""
    rng = np.random.default_rng(seed)
    made = np.zeros((count, 3, size, size), np.float32)
    cells = 2
    while cells <= size:
        coarse = rng.normal(0, 1, (count, 3, cells, cells)).astype(np.float32)
        repeat = -(-size // cells)
        made += coarse.repeat(repeat, axis=2).repeat(repeat, axis=3)[:, :, :size, :size] / np.log2(cells)
        cells *= 4
    return {"image": made}


def sentences(count: int, sequence: int, words: int, seed: int) -> dict[str, np.ndarray]:
    """Return rows of words, each padded from a place of its own."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(sequence) < rng.integers(sequence // 4, sequence + 1, (count, 1))).astype(np.int64)
    return {"input_ids": rng.integers(1, words, (count, sequence)) * mask, "attention_mask": mask}


_TEXT = """the quick brown fox jumps over lazy dog invoice total amount due street number order shipped to customer
price open daily from 9 until 18 exit only no smoking please ring bell 4711 19.99 2026"""


def lines(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return lines of printed text as a PP-OCR recogniser reads them (needs Pillow)."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        paper, ink = (tuple(int(v) for v in rng.integers(low, high, 3)) for low, high in ((150, 256), (0, 90)))
        picture = Image.new("RGB", (320, 48), paper)
        place = (int(rng.integers(6, 14)), int(rng.integers(4, 10)))
        font = ImageFont.load_default(int(rng.integers(22, 30)))
        text = " ".join(rng.choice(_TEXT.split(), rng.integers(2, 5)))
        ImageDraw.Draw(picture).text(place, text, fill=ink, font=font)
        pixels = np.asarray(picture, np.float32) / 255 + rng.normal(0, 0.02, (48, 320, 3))
        made.append(((pixels - 0.5) / 0.5).transpose(2, 0, 1)[::-1])
    return {"x": np.stack(made).astype(np.float32)}
