"""Each line the right way up: the one that was cut out, or the same turned by half a circle."""

import numpy as np
from repogen_step import Array, Step

UPSIDE_DOWN = 0.9


class TritonPythonModel(Step):
    def run(self, scores: Array, lines: Array, upside_down: Array) -> dict[str, Array]:
        turned = scores[:, 1] > UPSIDE_DOWN
        return {"upright": np.where(turned[:, None, None, None], upside_down, lines)}
