"""What the backends of a Triton release accept, as data."""

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
