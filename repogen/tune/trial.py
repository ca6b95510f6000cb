"""The values that a search exchanges with whoever measures for it."""

from dataclasses import dataclass, field

from repogen.tune.setting import Setting


@dataclass(frozen=True)
class Goal:
    """What is wanted: a percentile below `slo` seconds at `rate`; no rate: the highest; no slo: the lowest latency."""

    slo: float | None = None
    rate: float | None = None
    percentile: float = 99.0

    @property
    def name(self) -> str:
        return f"P{self.percentile:g}"


@dataclass(frozen=True)
class Measured:
    """One open-loop run: the goal's percentile in seconds with its 95 % interval.

    Not `valid`: the load was not the one asked for, or requests failed; `reason` says which.
    """

    latency: float
    low: float
    high: float
    valid: bool = True
    reason: str = ""
    requests: int = 0
    seconds: float = 0.0
    rate: float = 0.0  # requests answered a second
    median: float = 0.0
    mean_batch: float = 0.0
    batches: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """A run that is worth its time: which setting at which rate, why, and what is predicted."""

    setting: Setting
    rate: float
    role: str  # candidate | default | current | repeat
    predicted: float


@dataclass(frozen=True)
class Trial:
    """A run that was made."""

    setting: Setting
    rate: float
    role: str
    predicted: float
    measured: Measured = field(hash=False)

    @property
    def error(self) -> float:
        """The prediction's error, as a part of what was measured."""
        return self.predicted / self.measured.latency - 1
