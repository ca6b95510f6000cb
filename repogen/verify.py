"""Compare what a live server answers with ONNX Runtime on the same inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.errors import MissingExtra
from repogen.model import ServedModel, ServedTensor
from repogen.triton import Client, Rejected

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

TOLERANCE = 5e-3
"""Relative L2 difference that fp32 on another device (TF32 included) may have."""


@dataclass(frozen=True)
class Comparison:
    """One output at one batch size (0: the model does not batch). `problem` is "" when it is right."""

    model: str
    batch: int
    output: str
    max_abs: float
    relative_l2: float
    problem: str = ""


def verify_model(model: ServedModel, client: Client, *, seed: int) -> tuple[Comparison, ...]:
    """Ask the server and ONNX Runtime the same, at batch 1, 2 and the maximum; all outputs of all of them.

    What the server refuses is a problem of that batch; raises ServerError when nothing answers.
    """
    from repogen.samples import request

    reference = _Reference((model.build.onnx if model.build else model.files)[0].source)
    found: list[Comparison] = []
    for batch in batches(model):
        inputs = request(
            model.inputs,
            batch,
            max_batch_size=model.max_batch_size,
            shapes=model.shapes,
            hints=model.hints,
            seed=seed + batch,
        )
        try:
            answers = client.infer(model.name, inputs, [tensor.name for tensor in model.outputs])
        except Rejected as error:
            found.append(Comparison(model.name, batch, "", 0.0, 0.0, error.message))
            continue
        expected = reference.answer(model, inputs)
        found += [
            compare(model.name, batch, tensor, expected[tensor.name], answers.get(tensor.name))
            for tensor in model.outputs
        ]
    return tuple(found)


def batches(model: ServedModel) -> tuple[int, ...]:
    """Return the batch sizes to verify; 0 stands for a request without a batch axis."""
    if not model.max_batch_size:
        return (0,)
    return tuple(sorted({size for size in (1, 2, model.max_batch_size) if size <= model.max_batch_size}))


def compare(model: str, batch: int, tensor: ServedTensor, expected: "Array", got: "Array | None") -> Comparison:
    """Compare one output: numbers within TOLERANCE, everything else exactly."""
    import numpy as np

    def result(problem: str, max_abs: float = 0.0, relative: float = 0.0) -> Comparison:
        return Comparison(model, batch, tensor.name, max_abs, relative, problem)

    if got is None:
        return result("the server did not answer it")
    if got.shape != expected.shape:
        return result(f"is {list(got.shape)}, not {list(expected.shape)}")
    if expected.dtype == np.object_:
        unlike = int(np.sum(_as_bytes(expected) != _as_bytes(got)))
        return result(f"{unlike} of {expected.size} strings differ" if unlike else "")
    want, have = expected.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(want), np.isfinite(have)):
        return result("has NaN or infinity in other places")
    want, have = np.nan_to_num(want), np.nan_to_num(have)
    max_abs = float(np.max(np.abs(want - have), initial=0.0))
    norm = float(np.linalg.norm(want))
    relative = float(np.linalg.norm(want - have)) / norm if norm else max_abs
    whole = expected.dtype.kind not in "fV"
    wrong = max_abs > 0 if whole else relative > TOLERANCE
    return result(f"differs by {max_abs:.3g} (relative L2 {relative:.3g})" if wrong else "", max_abs, relative)


class _Reference:
    """ONNX Runtime, fp32, on this machine's CPU."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra("onnxruntime", "proof") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(self, model: ServedModel, inputs: Mapping[str, "Array"]) -> dict[str, "Array"]:
        """Return the outputs as Triton would shape them: scalars as [1], and reshapes undone."""
        feed = {tensor.name: _for_graph(tensor, inputs[tensor.name]) for tensor in model.inputs}
        outputs: Sequence[Array] = self._session.run([tensor.name for tensor in model.outputs], feed)
        return {
            tensor.name: array.reshape(_wire_shape(tensor, array.shape))
            for tensor, array in zip(model.outputs, outputs, strict=True)
        }


def _for_graph(tensor: ServedTensor, array: "Array") -> "Array":
    import numpy as np

    if array.dtype == np.object_:
        text = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
        array = np.array(text, dtype=object).reshape(array.shape)
    if tensor.narrowed:
        array = array.astype(np.int64)
    if tensor.scalar:
        return array.reshape(())
    return array.reshape(array.shape[:1]) if tensor.reshape == () else array


def _wire_shape(tensor: ServedTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if tensor.reshape == ():
        return (*shape, 1)
    return shape or (1,)


def _as_bytes(array: "Array") -> "Array":
    import numpy as np

    items = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
    return np.array(items, dtype=object)
