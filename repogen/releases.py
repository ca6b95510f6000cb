"""The NGC releases of Triton and what each of them carries, with how sure that is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One monthly release: versions as printed by the components, "" where not known.

    `confidence` is of the TensorRT version: `sourced` from release notes or an image, `inferred` from its cadence.
    """

    ngc: str
    triton: str
    tensorrt: str
    confidence: str
    cuda: str
    onnxruntime: str


@dataclass(frozen=True)
class OnnxLimits:
    """The newest IR and opset that an ONNX Runtime opens.

    `confidence`: `measured` by loading models of each into that version; `inferred` from its neighbours.
    """

    onnxruntime: str
    ir_version: int
    opset: int
    ml_opset: int
    confidence: str


_TABLE = (
    Release("23.09", "2.38.0", "8.6.1.6", "inferred", "12.2", "1.15"),
    Release("23.10", "2.39.0", "8.6.1.6", "inferred", "12.2", ""),
    Release("23.11", "2.40.0", "8.6.1.6", "inferred", "12.3", ""),
    Release("23.12", "2.41.0", "8.6.1.6", "inferred", "12.3", ""),
    Release("24.01", "2.42.0", "8.6.1.6", "sourced", "12.3", ""),
    Release("24.02", "2.43.0", "8.6.3.1", "sourced", "12.3", ""),
    Release("24.03", "2.44.0", "8.6.3", "sourced", "12.4", ""),
    Release("24.04", "2.45.0", "8.6.3.1", "sourced", "12.4", "1.17.3"),
    Release("24.05", "2.46.0", "10.0.1.6", "sourced", "12.4", "1.18.0"),
    Release("24.06", "2.47.0", "10.1.0.27", "inferred", "12.5", "1.18.0"),
    Release("24.07", "2.48.0", "10.2.0.19", "sourced", "12.5", "1.18.1"),
    Release("24.08", "2.49.0", "10.3.0.26", "sourced", "12.6", "1.18.1"),
    Release("24.09", "2.50.0", "10.4.0.26", "inferred", "12.6", "1.19.2"),
    Release("24.10", "2.51.0", "10.5.0.18", "inferred", "12.6", "1.19.2"),
    Release("24.11", "2.52.0", "10.6.0.26", "inferred", "12.6", "1.19.2"),
    Release("24.12", "2.53.0", "10.7.0.23", "inferred", "12.6", "1.20.1"),
    Release("25.01", "2.54.0", "10.8.0.43", "inferred", "12.8", "1.20.1"),
    Release("25.02", "2.55.0", "10.8.0.43", "inferred", "12.8", "1.20.1"),
    Release("25.03", "2.56.0", "10.9.0.34", "sourced", "12.8", "1.21.0"),
    Release("25.04", "2.57.0", "10.9.0.34", "inferred", "12.9", "1.21.0"),
    Release("25.05", "2.58.0", "10.10.0.31", "inferred", "12.9", "1.22.0"),
    Release("25.06", "2.59.0", "10.11.0.33", "sourced", "12.9", "1.22.0"),
    Release("25.07", "2.59.1", "10.11.0.33", "inferred", "12.9", "1.22.0"),
    Release("25.08", "2.60.0", "10.13.2.6", "inferred", "13.0", "1.23.0"),
    Release("25.09", "2.61.0", "10.13.3.9", "inferred", "13.0", "1.23.0"),
    Release("25.10", "2.62.0", "10.13.3.9", "sourced", "13.0", "1.23.1"),
    Release("25.11", "2.63.0", "10.14.1.48", "inferred", "13.0", "1.23.2"),
    Release("25.12", "2.64.0", "10.14.1.48", "sourced", "13.1", "1.23.2"),
    Release("26.01", "2.65.0", "10.14.1.48", "inferred", "13.1", "1.23.2"),
    Release("26.02", "2.66.0", "10.15.1.29", "inferred", "13.1", "1.24.1"),
    Release("26.03", "2.67.0", "10.16", "sourced", "13.2", "1.24.2"),
    Release("26.04", "2.68.0", "10.16.1.11", "inferred", "13.2", "1.24.4"),
    Release("26.05", "2.69.0", "10.16.1.11", "inferred", "13.2", "1.24.4"),
    Release("26.06", "2.70.0", "11.0.0.114", "sourced", "13.3", "1.24.4"),
    Release("26.07", "2.71.0", "11.1.0.106", "sourced", "13.3", "1.27.0"),
    Release("26.08", "2.72.0", "11.2.1", "sourced", "13.3", "1.28.0"),
    Release("26.09", "2.73.0", "11.3.0.99", "inferred", "13.4", "1.28"),
    Release("26.10", "2.74.0", "11.4.0.106", "inferred", "13.4", ""),
    Release("26.11", "2.75.0", "11.4", "inferred", "", ""),
)

RELEASES = {row.ngc: row for row in _TABLE}
EMBEDDED = RELEASES["24.10"]
"""The release inside the nvidia-pytriton wheel, which `serve` runs where there is no Docker."""

_LIMITS = (
    OnnxLimits("1.15", 9, 19, 3, "measured"),
    OnnxLimits("1.16", 9, 19, 3, "measured"),
    OnnxLimits("1.17", 9, 20, 4, "measured"),
    OnnxLimits("1.18", 10, 21, 5, "measured"),
    OnnxLimits("1.19", 10, 21, 5, "measured"),
    OnnxLimits("1.20", 10, 21, 5, "measured"),
    OnnxLimits("1.21", 10, 22, 5, "measured"),
    OnnxLimits("1.22", 10, 22, 5, "measured"),
    OnnxLimits("1.23", 11, 23, 5, "measured"),
    OnnxLimits("1.24", 13, 25, 5, "measured"),
    OnnxLimits("1.25", 13, 25, 5, "inferred"),
    OnnxLimits("1.26", 13, 26, 5, "inferred"),
    OnnxLimits("1.27", 13, 26, 5, "measured"),
    OnnxLimits("1.28", 13, 26, 5, "measured"),
)
_BY_VERSION = {row.onnxruntime: row for row in _LIMITS}


def onnx_limits(release: Release) -> OnnxLimits | None:
    """Return what the ONNX Runtime of a release opens, None where its version is not known."""
    return _BY_VERSION.get(".".join(release.onnxruntime.split(".")[:2]))
