"""How far two answers are apart."""

from typing import Any

import numpy as np

STRICT = 1e-5
"""Of models that sum nothing."""
SAME_ARITHMETIC = 1e-4
OTHER_ORDER = 1e-2
"""Allowed differences, as shares of the largest value."""
_BYTES_OF_FLOAT = 4


def difference(want: "np.ndarray[Any, Any]", have: "np.ndarray[Any, Any]", tolerance: float) -> str:
    """Say how far `have` is from `want`, "" when within `tolerance` of the largest value."""
    if want.shape != have.shape:
        return f"is {list(have.shape)}, not {list(want.shape)}"
    if want.dtype.kind not in "fV":
        unlike = int(np.sum(want != have))
        return f"differs in {unlike} of {want.size} elements" if unlike > want.size * tolerance else ""
    half = want.dtype.itemsize < _BYTES_OF_FLOAT  # fp16 and bf16 have 10 and 7 bits
    want, have = want.astype(np.float64), have.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], have[~finite], equal_nan=True) or not np.array_equal(
        finite, np.isfinite(have)
    ):
        return "has NaN or infinity in other places"
    largest = float(np.max(np.abs(want[finite]), initial=0.0))
    off = float(np.max(np.abs(want[finite] - have[finite]), initial=0.0))
    least = 0.02 if half else 0.0
    if not off <= max(least, tolerance) * largest + 1e-6:
        return f"is off by {off:.3g} where its largest value is {largest:.3g}"
    return ""
