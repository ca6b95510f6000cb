"""Every rule, in the order of its code."""

from repogen.check import (
    batching_rules,
    cuda_graph_rules,
    ensemble_rules,
    instance_rules,
    layout_rules,
    onnx_file_rules,
    onnx_shape_rules,
    onnx_tensor_rules,
    onnxruntime_rules,
    production_rules,
    python_rules,
    schema_rules,
    security_rules,
    sequence_rules,
    tensor_rules,
    tensorrt_rules,
    warmup_rules,
)
from repogen.check.rule import Rule

_MODULES = (
    batching_rules,
    cuda_graph_rules,
    ensemble_rules,
    instance_rules,
    layout_rules,
    onnx_file_rules,
    onnx_shape_rules,
    onnx_tensor_rules,
    onnxruntime_rules,
    production_rules,
    python_rules,
    schema_rules,
    security_rules,
    sequence_rules,
    tensor_rules,
    tensorrt_rules,
    warmup_rules,
)

RULES: tuple[Rule, ...] = tuple(sorted((rule for module in _MODULES for rule in module.RULES), key=lambda it: it.code))
