"""The manifest's typed settings of the tuner."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt, WithJsonSchema, model_validator

from repogen.settings_schema import Duration, Strict

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*/\s*s$")


def _rate(value: object) -> object:
    if value == "max" or (isinstance(value, str) and "/" not in value):
        return value
    match = _RATE.match(value.strip()) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise ValueError(f"{value!r} is no rate: write requests a second, such as 200/s, or max")
    return float(match[1])


Rate = Annotated[
    float | Literal["max"], BeforeValidator(_rate), WithJsonSchema({"type": "string", "examples": ["200/s", "max"]})
]


class InstanceLimits(Strict):
    """How many instances may be tried."""

    min: PositiveInt = Field(1, description="instances at the least")
    max: PositiveInt = Field(description="instances at the most")

    @model_validator(mode="after")
    def _ordered(self) -> "InstanceLimits":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class TuneEntry(Strict):
    """What the tuner looks for. Without a rate it is the highest that holds the SLO; without an SLO, lowest latency."""

    slo: dict[Literal["p50", "p90", "p95", "p99", "p99.9"], Duration] = Field(
        {},
        max_length=1,
        description="one percentile and the latency that it must not exceed",
        examples=[{"p99": "20ms"}],
    )
    rate: Rate | None = Field(None, description="requests a second, such as 200/s, or max")
    percentile: Literal["p50", "p90", "p95", "p99", "p99.9"] = Field(
        "p99", description="what is lowered without an slo"
    )
    arrivals: str = Field("poisson", description="poisson, constant, burst(ON, OFF), ramp(PART, SECONDS), trace:FILE")
    instances: InstanceLimits | PositiveInt = Field(2, description="the most instances to try, or {min, max}")

    @model_validator(mode="after")
    def _asks_something(self) -> "TuneEntry":
        if not self.slo and self.rate in (None, "max"):
            raise ValueError("needs slo: {p99: 20ms}, or a rate such as 200/s at which latency is to be lowest")
        return self

    @property
    def limits(self) -> tuple[int, int]:
        said = self.instances
        return (said.min, said.max) if isinstance(said, InstanceLimits) else (1, said)
