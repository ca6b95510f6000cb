"""What magnitudes each tensor has on the user's data: a histogram of each, gathered one sample at a time.

ONNX Runtime's own calibrators keep every tensor of every sample until the end, and their entropy method begins
with as many bins as levels, where it has nothing to choose; so the gathering is ours and its memory does not grow.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repogen.precision.data import Channels, Sample

BINS = 2048
LEVELS = 128
"""Magnitudes that symmetric int8 tells apart."""
_MESSAGE = 2**31 - 2**24
_STRIDE = 4  # bins between the thresholds that are compared
_DEFAULT_PERCENTILE = 99.99
_ENTROPY_KEEPS = 99.9  # divergence counts a clipped value once, however far it is clipped: no more than 1 in 1000


@dataclass
class Histogram:
    """Counts of magnitudes in equal bins from 0 to `limit`, which doubles when larger ones come."""

    limit: float = 0.0
    largest: float = 0.0
    counts: "np.ndarray[Any, Any]" = field(default_factory=lambda: np.zeros(BINS, np.int64))
    not_finite: int = 0

    def add(self, values: "np.ndarray[Any, Any]", *, counted: bool = True) -> None:
        """Take the values in; with `counted` false only their extremes."""
        sizes = np.abs(values.astype(np.float32, copy=False)).ravel()
        finite = np.isfinite(sizes)
        if not finite.all():
            self.not_finite += int(sizes.size - finite.sum())
            sizes = sizes[finite]
        largest = float(sizes.max(initial=0.0))
        self.largest = max(self.largest, largest)
        if not counted:
            return
        if largest > 0 and self.limit == 0:
            self.limit = float(2.0 ** np.ceil(np.log2(largest)))
        while largest > self.limit:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2, np.int64)])
            self.limit *= 2
        if self.limit:
            bins = np.minimum((sizes * (BINS / self.limit)).astype(np.int32), BINS - 1)
            self.counts += np.bincount(bins, minlength=BINS)

    def threshold(self, method: str, percentile: float | None = None) -> float:
        """Return the magnitude that the largest int8 value stands for."""
        if method == "minmax" or not self.limit:
            return self.largest
        if method == "percentile":
            share = np.cumsum(self.counts) / max(1, self.counts.sum())
            index = int(np.searchsorted(share, (percentile or _DEFAULT_PERCENTILE) / 100.0))
            return min(self.largest, (index + 1) * self.limit / BINS)
        least = self.threshold("percentile", _ENTROPY_KEEPS)
        return min(self.largest, max(least, entropy_bins(self.counts) * self.limit / BINS))


def entropy_bins(counts: "np.ndarray[Any, Any]") -> int:
    """Return after how many bins to cut so that 128 levels lose the least information (Kullback-Leibler)."""
    counts = counts.astype(np.float64)
    counts[0] = counts[1]  # zeros, which every scale holds exactly, would drown the rest
    used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else LEVELS
    if used <= LEVELS:
        return used
    tails = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])
    candidates = [*range(LEVELS, used, _STRIDE), used]
    losses = [_loss(counts[:cut], tails[cut]) for cut in candidates]
    return int(candidates[int(np.argmin(losses))])


def _loss(kept: "np.ndarray[Any, Any]", tail: float) -> float:
    """Return the divergence of the distribution cut here from what 128 levels make of it."""
    wanted = kept.copy()
    wanted[-1] += tail
    starts = (np.arange(LEVELS) * kept.size) // LEVELS
    lengths = np.diff([*starts, kept.size])
    filled = (kept > 0).astype(np.float64)
    totals, used = np.add.reduceat(kept, starts), np.add.reduceat(filled, starts)
    level = np.divide(totals, used, out=np.zeros(LEVELS), where=used > 0)
    have = np.repeat(level, lengths) * filled
    if wanted.sum() == 0 or have.sum() == 0:
        return float("inf")
    # What the cut put on an empty last bin has no level: a little of everything stands for it.
    have = np.where((wanted > 0) & (have == 0), have.sum() * 1e-9, have)
    wanted, have = wanted / wanted.sum(), have / have.sum()
    there = wanted > 0
    return float(np.sum(wanted[there] * np.log(wanted[there] / have[there])))


@dataclass(frozen=True)
class Table:
    """The largest magnitude and the int8 threshold of each tensor, and what to tell people of the data."""

    largest: Mapping[str, float]
    thresholds: Mapping[str, float]
    notes: Sequence[str]
    samples: int

    def as_json(self) -> dict[str, Any]:
        return {
            "largest": dict(self.largest), "thresholds": dict(self.thresholds),
            "notes": list(self.notes), "samples": self.samples,
        }  # fmt: skip


def gather(
    model: Any, names: Sequence[str], data: Iterable[Sample], *, method: str, percentile: float | None, seconds: float
) -> Table:
    """Run the prepared model on the data and return the table of the named tensors.

    Stops early, and says so, when `seconds` are over.
    """
    session = open_with_outputs(model, names)
    histograms = {name: Histogram() for name in names}
    channels = Channels()
    begun, count, notes = time.monotonic(), 0, []
    for sample in data:
        if count and time.monotonic() - begun > seconds:
            notes.append(f"stopped after {count} samples: the time was over")
            break
        channels.add(sample.arrays)
        for name, value in zip(names, session.run(names, sample.arrays), strict=True):
            histograms[name].add(value, counted=method != "minmax")
        count += max((len(array) for array in sample.arrays.values() if array.ndim), default=1)
    notes += channels.constant()
    notes += [f"{name} is 0 on all samples" for name in names if not histograms[name].largest][:5]
    infinite = [name for name in names if histograms[name].not_finite]
    notes += [f"{name} has NaN or infinity in fp32 already" for name in infinite][:5]
    return Table(
        {name: float("inf") if name in infinite else row.largest for name, row in histograms.items()},
        {name: row.threshold(method, percentile) for name, row in histograms.items()},
        notes,
        count,
    )


def open_with_outputs(model: Any, names: Sequence[str], *, optimised: bool = True) -> Any:
    """Return a session of the model that can be asked for any of the named tensors."""
    import onnx
    import onnxruntime

    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    there = {value.name for value in asked.graph.output}
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if sum(len(tensor.raw_data) for tensor in asked.graph.initializer) < _MESSAGE:
        return onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:  # a protobuf ends at 2 GiB
        path = f"{folder}/model.onnx"
        onnx.save_model(asked, path, save_as_external_data=True, location="weights")
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
