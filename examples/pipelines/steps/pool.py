"""What the model says of each token to one vector of length 1: the mean over the tokens that are no padding."""

import numpy as np
from repogen_step import Array, Step

SMALLEST = 1e-12


class TritonPythonModel(Step):
    def run(self, hidden: Array, mask: Array) -> dict[str, Array]:
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        norms = np.linalg.norm(mean, axis=1, keepdims=True)
        return {"embedding": (mean / np.maximum(norms, SMALLEST)).astype(np.float32)}
