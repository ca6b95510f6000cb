"""The manifest's typed settings of precision, calibration and the accuracy gate."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, StringConstraints

from repogen.settings_schema import Strict

Share = Annotated[float, Field(ge=0, le=1)]


def _built(value: object) -> object:
    if value == "fp8":
        raise ValueError("fp8 is not built: write fp16, bf16 or int8")
    return value


Precision = Annotated[Literal["fp32", "fp16", "bf16", "int8"], BeforeValidator(_built)]


class PrecisionEntry(Strict):
    """How a graph is lowered."""

    keep_fp32: tuple[str, ...] = Field((), description="names of nodes or operators that stay in fp32")
    io: Literal["fp32", "graph"] = Field("fp32", description="graph: inputs and outputs become half too")


class CalibrationEntry(Strict):
    """Samples from which the ranges of tensors are measured."""

    data: str = Field(description="an .npz, a folder of them, or a glob; samples along axis 0")
    method: Literal["percentile", "entropy", "minmax"] = Field(
        "percentile", description="how a tensor's range follows from its values"
    )
    percentile: Annotated[float, Field(gt=50, le=100)] | None = Field(None, description="by default 99.99")
    samples: PositiveInt | None = Field(None, description="at most so many; by default all")


class AccuracyEntry(Strict):
    """What a model in another precision must still answer before it is published."""

    data: str | None = Field(None, description="an .npz, a folder of them, or a glob; samples along axis 0")
    cosine: Share | None = Field(None, description="least cosine with the answers of fp32")
    relative_l2: NonNegativeFloat | None = Field(None, description="largest relative L2 error")
    max_abs: NonNegativeFloat | None = Field(None, description="largest error of one value")
    top1: Share | None = Field(None, description="least share of rows whose largest value is at the same place")
    nan: NonNegativeInt | None = Field(None, description="values that may be NaN or infinite; by default 0")
    metric: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = Field(
        None, description="package.module:function(answers, samples) of your own: larger is better"
    )
    floor: float | None = Field(None, description="least score by the metric")
    drop: NonNegativeFloat | None = Field(None, description="largest loss of score beside fp32")
