"""The recogniser's scores to text: the best character of each column, repeats and blanks dropped (CTC)."""

import numpy as np
from repogen_step import Array, Step

BLANK = 0
UNSURE = 0.5  # mean score below which a line counts as no text


class TritonPythonModel(Step):
    def start(self) -> None:
        characters = (self.folder / "characters.txt").read_text(encoding="utf-8")
        self.alphabet = ["", *characters.split("\n"), " "]

    def run(self, scores: Array) -> dict[str, Array]:
        read = [self.spelt(rows) for rows in scores]
        sure = [(text, score) for text, score in read if text and score >= UNSURE]
        return {
            "text": np.array([text.encode() for text, _ in sure], dtype=np.object_),
            "confidence": np.array([score for _, score in sure], dtype=np.float32),
        }

    def spelt(self, scores: Array) -> tuple[str, float]:
        best = scores.argmax(axis=1)
        kept = (best != BLANK) & np.concatenate([[True], best[1:] != best[:-1]])
        text = "".join(self.alphabet[index] for index in best[kept])
        return text, float(scores.max(axis=1)[kept].mean()) if text else 0.0
