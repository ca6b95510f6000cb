"""What the backends of a Triton release accept, as data."""

from dataclasses import dataclass, replace

from repogen.releases import RELEASES, Release


@dataclass(frozen=True)
class OnnxLimits:
    """The newest ONNX that one ONNX Runtime opens: opset of ai.onnx, of ai.onnx.ml, and IR version.

    `confidence` is `measured` where the wheel of that version was tried, `inferred` from its neighbours otherwise.
    """

    onnxruntime: str
    opset: int
    ml_opset: int
    ir: int
    confidence: str = "measured"


_ONNX_LIMITS = (
    OnnxLimits("1.15", 19, 3, 9),
    OnnxLimits("1.16", 19, 3, 9),
    OnnxLimits("1.17", 20, 4, 9),
    OnnxLimits("1.18", 21, 5, 10),
    OnnxLimits("1.19", 21, 5, 10),
    OnnxLimits("1.20", 21, 5, 10),
    OnnxLimits("1.21", 22, 5, 10),
    OnnxLimits("1.22", 22, 5, 10),
    OnnxLimits("1.23", 23, 5, 11),
    OnnxLimits("1.24", 25, 5, 13),
    OnnxLimits("1.27", 26, 5, 13),
    OnnxLimits("1.28", 26, 5, 13),
)
OLDEST_OPSET = 7
"""ONNX Runtime promises nothing for older models: many of their operators have no implementation."""

BF16_ONNXRUNTIME = (2, 67)
"""The first Triton whose onnxruntime backend carries BF16."""

GPU_ACCELERATORS = frozenset({"tensorrt", "cuda"})
CPU_ACCELERATORS = frozenset({"openvino"})
PRECISION_MODES = frozenset({"FP32", "FP16", "BF16", "INT8"})
TENSORRT_ACCELERATOR_KEYS = frozenset({
    "precision_mode", "max_workspace_size_bytes", "trt_max_partition_iterations", "trt_min_subgraph_size",
    "int8_calibration_table_name", "int8_use_native_calibration_table", "trt_dla_enable", "trt_dla_core",
    "trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_dump_subgraphs",
    "trt_force_sequential_engine_build", "trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable", "trt_timing_cache_path", "trt_force_timing_cache", "trt_detailed_build_log",
    "trt_build_heuristics_enable", "trt_sparsity_enable", "trt_builder_optimization_level",
    "trt_auxiliary_streams", "trt_tactic_sources", "trt_extra_plugin_lib_paths", "trt_profile_min_shapes",
    "trt_profile_max_shapes", "trt_profile_opt_shapes", "trt_cuda_graph_enable", "trt_dump_ep_context_model",
    "trt_ep_context_file_path", "trt_ep_context_embed_mode",
})  # fmt: skip

TENSORRT_DTYPES = frozenset({
    "TYPE_FP32", "TYPE_FP16", "TYPE_BF16", "TYPE_INT8", "TYPE_UINT8", "TYPE_INT32", "TYPE_INT64", "TYPE_BOOL",
})  # fmt: skip
"""The element types that an input or output of a plan can have."""
BF16_TENSORRT = (2, 47)
"""The first Triton whose tensorrt backend carries BF16."""
IMAGES_WITHOUT_TENSORRT = ("-vllm-python-py3", "-pyt-python-py3", "-py3-min", "-py3-sdk")
"""Variants of a release's image that have no tensorrt backend."""


def onnx_limits(release: Release) -> OnnxLimits | None:
    """Return what the ONNX Runtime of `release` opens; that of the last release before it where it is not known."""
    known = [row.onnxruntime for row in RELEASES.values() if row.ngc <= release.ngc and row.onnxruntime]
    if not known:
        return None
    wanted = _minor(known[-1])
    rows = [row for row in _ONNX_LIMITS if _minor(row.onnxruntime) <= wanted]
    if not rows:
        return None
    exact = release.onnxruntime and _minor(rows[-1].onnxruntime) == wanted
    return rows[-1] if exact else replace(rows[-1], onnxruntime=known[-1], confidence="inferred")


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
