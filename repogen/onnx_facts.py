"""The child that reads an ONNX file: what it declares, as JSON. It alone parses the protobuf of a model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repogen.dtypes import BY_ONNX
from repogen.external import entries_of
from repogen.input_values import input_hints
from repogen.dataflow import Flow

_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"}
_KNOWN_DOMAINS |= {"com.microsoft.nchwc", "com.ms.internal.nhwc", "com.microsoft.experimental"}
_DATA_DEPENDENT = {"NonZero", "Unique", "NonMaxSuppression", "Compress", "StringSplit", "RoiAlign:max"}
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_ANONYMOUS = {"", "?", "-1", "None", "unknown", "*"}
"""Symbols that exporters write for "any size": two of them are not the same size."""
_HALF_MAX = 65504.0
_LISTED = 50
_INFERABLE = 256 * 2**20
"""Bytes up to which shapes are inferred: it copies the model."""
_CHUNK = 4 * 2**20


class _Bad(Exception):  # noqa: N818 - the message is for the user
    """What is wrong with the file, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
