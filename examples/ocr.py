"""Reads the text off a picture with three PP-OCR models: find lines, turn them upright, recognise them.

Lines must run horizontally (upside down is fine): boxes are upright rectangles, which needs no OpenCV.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]
Infer = Callable[[str, Mapping[str, Array]], Mapping[str, Array]]

STRIDE = 32  # the detector halves its input five times
INK = 0.3  # a pixel belongs to text
LINE = 0.5  # mean over a box: it is a line of text
UNCLIP = 1.6  # the detector marks shrunken lines; this undoes it
SMALLEST = 5  # pixels
HEIGHT = 48  # of a line, for the classifier and the recogniser
CLASSIFIER_WIDTH = 192
RECOGNISER_WIDTH = 320  # at least
UPSIDE_DOWN = 0.9
BLANK = 0  # CTC


class Line(NamedTuple):
    text: str
    confidence: float
    turned: bool  # it stood upside down


def read_text(picture: Image.Image, infer: Infer, alphabet: list[str]) -> list[Line]:
    """Return the lines of text in `picture`, from top to bottom."""
    picture = picture.convert("RGB")
    crops = [picture.crop(box) for box in find_lines(picture, infer)]
    if not crops:
        return []
    turned = _upside_down(crops, infer)
    upright = [
        crop.transpose(Image.Transpose.ROTATE_180) if turn else crop for crop, turn in zip(crops, turned, strict=True)
    ]
    width = max(RECOGNISER_WIDTH, *(round(HEIGHT * crop.width / crop.height) for crop in upright))
    outputs = infer("text_rec", {"x": _batch(upright, width)})
    scores = outputs["softmax_11.tmp_0"]
    return [Line(*_decode(rows, alphabet), turn) for rows, turn in zip(scores, turned, strict=True)]


def find_lines(picture: Image.Image, infer: Infer) -> list[tuple[int, int, int, int]]:
    """Return the (left, top, right, bottom) of every line of text, from top to bottom."""
    width, height = (max(STRIDE, round(side / STRIDE) * STRIDE) for side in picture.size)
    outputs = infer("text_det", {"x": _pixels(picture.resize((width, height)))[None]})
    ink = outputs["sigmoid_0.tmp_0"][0, 0]
    boxes = []
    for left, top, right, bottom in connected_boxes(ink > INK):
        wide, high = right - left, bottom - top
        if min(wide, high) < SMALLEST or ink[top:bottom, left:right].mean() < LINE:
            continue
        margin = wide * high * UNCLIP / (2 * (wide + high))
        grown = (left - margin, top - margin, right + margin, bottom + margin)
        boxes.append(_scaled(grown, picture.width / width, picture.height / height, picture.size))
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def connected_boxes(mask: Array) -> list[tuple[int, int, int, int]]:
    """Return the box around each connected patch of `mask` (corners touch: 8 neighbours)."""
    # Runs of set pixels, row by row, each merged with those it touches in the row above (union-find).
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, stops = np.nonzero(edges == -1)
    runs = list(zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True))
    parent = list(range(len(runs)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = run = parent[parent[run]]
        return run

    above = 0
    for this, (row, start, stop) in enumerate(runs):
        while runs[above][0] < row - 1 or (runs[above][0] == row - 1 and runs[above][2] < start):
            above += 1
        other = above
        while runs[other][0] == row - 1 and runs[other][1] <= stop:
            parent[root(other)] = root(this)
            other += 1
    patches: dict[int, tuple[int, int, int, int]] = {}
    for this, (row, start, stop) in enumerate(runs):
        left, top, right, _ = patches.get(root(this), (start, row, stop, row))
        patches[root(this)] = (min(left, start), top, max(right, stop), row + 1)
    return list(patches.values())


def load_alphabet(recogniser: Path) -> list[str]:
    """Return the characters that the recogniser's scores stand for; they lie in its own metadata."""
    import onnx

    model = onnx.load_model(recogniser, load_external_data=False)
    characters = next(entry.value for entry in model.metadata_props if entry.key == "character")
    return ["", *characters.split("\n"), " "]  # the CTC blank comes first, the space last


def _upside_down(crops: list[Image.Image], infer: Infer) -> list[bool]:
    outputs = infer("text_cls", {"x": _batch(crops, CLASSIFIER_WIDTH)})
    return [bool(score[1] > UPSIDE_DOWN) for score in outputs["save_infer_model/scale_0.tmp_1"]]


def _decode(scores: Array, alphabet: list[str]) -> tuple[str, float]:
    best = scores.argmax(axis=1)
    kept = (best != BLANK) & np.concatenate([[True], best[1:] != best[:-1]])
    text = "".join(alphabet[index] for index in best[kept])
    return text, float(scores.max(axis=1)[kept].mean()) if text else 0.0


def _batch(crops: list[Image.Image], width: int) -> Array:
    batch = np.zeros((len(crops), 3, HEIGHT, width), np.float32)
    for slot, crop in zip(batch, crops, strict=True):
        wide = max(1, min(width, round(HEIGHT * crop.width / crop.height)))
        slot[:, :, :wide] = _pixels(crop.resize((wide, HEIGHT), Image.Resampling.BILINEAR))
    return batch


def _pixels(picture: Image.Image) -> Array:
    """Return channels first, in the order that the models were trained with (BGR), from -1 to 1."""
    return (np.asarray(picture, np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5) - 1


def _scaled(
    box: tuple[float, float, float, float], across: float, down: float, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    left, top, right, bottom = box
    return (
        max(0, round(left * across)),
        max(0, round(top * down)),
        min(size[0], round(right * across)),
        min(size[1], round(bottom * down)),
    )
