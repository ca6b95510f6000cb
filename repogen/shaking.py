"""Copies of a model whose weights differ in their last digits: how they answer shows how ill-conditioned it is."""

from pathlib import Path

import numpy as np

SHAKE = 3e-7
"""A few units in the last place of fp32."""
_LARGEST = 512 * 2**20


def shaken_weights(path: str) -> bytes | None:
    """Return the model with every fp32 weight off by up to SHAKE, None where it is too large to be copied."""
    import onnx

    if Path(path).stat().st_size > _LARGEST:
        return None
    model = onnx.load(path, load_external_data=False)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        return None
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            weights = onnx.numpy_helper.to_array(tensor)
            off = rng.uniform(-SHAKE, SHAKE, size=weights.shape)
            tensor.CopyFrom(onnx.numpy_helper.from_array((weights * (1 + off)).astype(np.float32), tensor.name))
    return bytes(model.SerializeToString())
