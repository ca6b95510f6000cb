"""The detector's answer and the picture to lines of text: for the classifier, and kept for the recogniser."""

import lines
import numpy as np
from repogen_step import Array, Step

MOST = 64  # lines of one picture: what the models after this one take at a time
CLASSIFIER_WIDTH = 192
RECOGNISER_WIDTH = 320  # at least


class TritonPythonModel(Step):
    def run(self, pixels: Array, ink: Array) -> dict[str, Array]:
        high, wide = pixels.shape[:2]
        crops = [lines.cut_out(pixels, corners) for corners in lines.find_lines(ink[0, 0], high, wide)[:MOST]]
        if not crops:  # the models after this one take no empty batch: an empty line says nothing
            crops = [np.full((lines.HEIGHT, RECOGNISER_WIDTH, 3), 255, np.uint8)]
        width = max(RECOGNISER_WIDTH, *(lines.width_of(crop) for crop in crops))
        return {
            "for_turning": lines.batch_of(crops, CLASSIFIER_WIDTH),
            "lines": lines.batch_of(crops, width),
            "upside_down": lines.batch_of([crop[::-1, ::-1] for crop in crops], width),
        }
