"""The first step of pipeline_gpu.py: the example's tokeniser, in the integers that plans of TensorRT 8 take."""

import numpy as np
import tokenise  # examples/pipelines/steps/tokenise.py, which lies beside this file on the server


class TritonPythonModel(tokenise.TritonPythonModel):
    def run(self, text):
        return {name: array.astype(np.int32) for name, array in super().run(text).items()}
