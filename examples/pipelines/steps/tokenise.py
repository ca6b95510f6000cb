"""Sentences to token numbers, padded to the longest of their request: the model's own tokenizer.json decides how."""

import numpy as np
from repogen_step import Array, Step
from tokenizers import Tokenizer

LONGEST = 256  # tokens, as the model's own settings say; what is beyond is left out


class TritonPythonModel(Step):
    def start(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding()

    def run(self, text: Array) -> dict[str, Array]:
        found = self.tokenizer.encode_batch([row[0].decode() for row in text])
        return {
            "ids": np.array([row.ids for row in found], np.int64),
            "mask": np.array([row.attention_mask for row in found], np.int64),
            "kinds": np.array([row.type_ids for row in found], np.int64),
        }
