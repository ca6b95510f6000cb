"""Lower the precision of a model inside its own ONNX graph: fp16 and bf16 by a rewrite, int8 by Q/DQ pairs.

The lowered graph is what ONNX Runtime serves and what TensorRT builds from, strongly typed, on every release.
"""
