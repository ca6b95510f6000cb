"""The element types of ONNX, Triton and NumPy, side by side."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataType:
    """One element type under each of its names.

    `onnx` is the name in `TensorProto.DataType`, `triton` the one in `config.pbtxt`, `wire` the one in the
    inference protocol. `numpy` is None where NumPy has no such type.
    """

    onnx: str
    triton: str
    wire: str
    numpy: str | None
    size: int  # bytes an element; 0 for strings


_TABLE = (
    DataType("FLOAT", "TYPE_FP32", "FP32", "float32", 4),
    DataType("UINT8", "TYPE_UINT8", "UINT8", "uint8", 1),
    DataType("INT8", "TYPE_INT8", "INT8", "int8", 1),
    DataType("UINT16", "TYPE_UINT16", "UINT16", "uint16", 2),
    DataType("INT16", "TYPE_INT16", "INT16", "int16", 2),
    DataType("INT32", "TYPE_INT32", "INT32", "int32", 4),
    DataType("INT64", "TYPE_INT64", "INT64", "int64", 8),
    DataType("STRING", "TYPE_STRING", "BYTES", "object", 0),
    DataType("BOOL", "TYPE_BOOL", "BOOL", "bool", 1),
    DataType("FLOAT16", "TYPE_FP16", "FP16", "float16", 2),
    DataType("DOUBLE", "TYPE_FP64", "FP64", "float64", 8),
    DataType("UINT32", "TYPE_UINT32", "UINT32", "uint32", 4),
    DataType("UINT64", "TYPE_UINT64", "UINT64", "uint64", 8),
    DataType("BFLOAT16", "TYPE_BF16", "BF16", None, 2),
)

BY_ONNX = {row.onnx: row for row in _TABLE}
BY_TRITON = {row.triton: row for row in _TABLE}
BY_WIRE = {row.wire: row for row in _TABLE}
