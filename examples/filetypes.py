"""Names the type of files with Magika, which looks at the two ends of each."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ocr import Array, Infer


class Guess(NamedTuple):
    label: str  # "unknown" where the model is not sure enough
    confidence: float


def name_types(contents: list[bytes], infer: Infer, config: dict[str, Any]) -> list[Guess]:
    """Return the type of each content, all of them judged in one request."""
    features = np.stack([ends(content, config) for content in contents])
    scores = infer("magika", {"bytes": features})["target_label"]
    return [_guess(row, feature, config) for row, feature in zip(scores, features, strict=True)]


def ends(content: bytes, config: dict[str, Any]) -> Array:
    """Return the first and last bytes that are not white space, filled up towards the middle."""
    block, head_size, tail_size = config["block_size"], config["beg_size"], config["end_size"]
    head = content[:block].lstrip()[:head_size]
    tail = content[-block:].rstrip()[-tail_size:]
    feature = np.full(head_size + tail_size, config["padding_token"], np.int32)
    feature[: len(head)] = list(head)
    feature[len(feature) - len(tail) :] = list(tail)
    return feature


def load_config(path: Path) -> dict[str, Any]:
    """Return Magika's own settings: sizes, labels, and how sure it must be of each."""
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def _guess(scores: Array, feature: Array, config: dict[str, Any]) -> Guess:
    best = int(scores.argmax())
    label, confidence = config["target_labels_space"][best], float(scores[best])
    needed = config["thresholds"].get(label, config["medium_confidence_threshold"])
    too_short = feature[config["min_file_size_for_dl"] - 1] == config["padding_token"]
    if too_short or confidence < needed:
        return Guess("unknown", confidence)
    return Guess(config["overwrite_map"].get(label, label), confidence)
