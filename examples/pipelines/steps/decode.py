"""A picture's bytes (PNG, JPEG, …) to its pixels, and to what the text detector wants."""

import io

import lines
import numpy as np
from PIL import Image
from repogen_step import Array, Step


class TritonPythonModel(Step):
    def start(self) -> None:
        self.short_side = int(self.parameters.get("short_side", lines.SHORT_SIDE))

    def run(self, image: Array) -> dict[str, Array]:
        with Image.open(io.BytesIO(image[0])) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        return {"pixels": pixels, "seen": lines.detector_input(pixels, self.short_side)[None]}
