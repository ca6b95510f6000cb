"""Every attribute of TensorRT that repogen's own calls use, and the versions that have it.

What Polygraphy calls is its own affair. A test compares this table with what the bindings of TensorRT 8.6, 10.0, 10.16
and 11.4 and of TensorRT-RTX really have, and with what our two modules that call TensorRT use.
"""

_ALWAYS = ""
_TABLE: dict[str, dict[str, str]] = {
    "Builder": {
        _ALWAYS: "create_network",
    },
    "BuilderFlag": {
        _ALWAYS: "TF32",
        "-11.0": "FP16 INT8 OBEY_PRECISION_CONSTRAINTS",
        "10.0-11.0": "BF16",
    },
    "DataType": {
        _ALWAYS: "BOOL FLOAT HALF INT32 INT8 UINT8",
        "10.0-": "BF16 INT64",
    },
    "EngineInspector": {
        _ALWAYS: "get_engine_information",
    },
    "ExecutionContextAllocationStrategy": {
        "10.0-": "USER_MANAGED",
    },
    "HardwareCompatibilityLevel": {
        _ALWAYS: "AMPERE_PLUS",
        "10.9-": "SAME_COMPUTE_CAPABILITY",
    },
    "IBuilderConfig": {
        _ALWAYS: "clear_flag get_memory_pool_limit set_flag",
        "10.0-": "progress_monitor",
    },
    "ICudaEngine": {
        _ALWAYS: (
            "create_engine_inspector create_execution_context get_tensor_dtype get_tensor_location "
            "get_tensor_mode get_tensor_name get_tensor_profile_shape get_tensor_shape is_shape_inference_io "
            "num_io_tensors num_optimization_profiles"
        ),
        "-11.0": "create_execution_context_without_device_memory device_memory_size",
        "10.1-": "device_memory_size_v2",
    },
    "IExecutionContext": {
        _ALWAYS: (
            "active_optimization_profile device_memory execute_async_v3 get_max_output_size get_tensor_shape "
            "profiler set_input_shape set_optimization_profile_async set_output_allocator set_tensor_address"
        ),
        "10.1-": "set_device_memory",
    },
    "ILayer": {
        _ALWAYS: "get_input get_output num_inputs num_outputs type",
        "-11.0": "precision set_output_type",
    },
    "ILogger": {
        _ALWAYS: "log",
    },
    "INetworkDefinition": {
        _ALWAYS: "get_input get_layer get_output num_inputs num_layers num_outputs",
    },
    "IProfiler": {
        _ALWAYS: "report_layer_time",
    },
    "IProgressMonitor": {
        "10.0-": "phase_finish phase_start step_complete",
    },
    "ITensor": {
        _ALWAYS: "dtype is_shape_tensor name shape",
    },
    "LayerInformationFormat": {
        _ALWAYS: "JSON",
    },
    "LayerType": {
        _ALWAYS: "ELEMENTWISE NORMALIZATION REDUCE SOFTMAX UNARY",
    },
    "Logger": {
        _ALWAYS: "ERROR",
    },
    "MemoryPoolType": {
        _ALWAYS: "WORKSPACE",
    },
    "NetworkDefinitionCreationFlag": {
        "-11.0": "EXPLICIT_BATCH",
        "10.0-": "STRONGLY_TYPED",
    },
    "OnnxParser": {
        _ALWAYS: "get_error num_errors parse_from_file set_flag",
        "10.1-": "supports_model_v2",
    },
    "OnnxParserFlag": {
        _ALWAYS: "NATIVE_INSTANCENORM",
    },
    "ParserError": {
        _ALWAYS: "code desc",
        "10.0-": "node_name node_operator",
    },
    "ProfilingVerbosity": {
        _ALWAYS: "DETAILED",
    },
    "Runtime": {
        _ALWAYS: "deserialize_cuda_engine engine_host_code_allowed",
    },
    "TensorIOMode": {
        _ALWAYS: "INPUT",
    },
    "TensorLocation": {
        _ALWAYS: "HOST",
    },
    "module": {
        _ALWAYS: (
            "Builder BuilderFlag DataType HardwareCompatibilityLevel ILogger IOutputAllocator IProfiler "
            "LayerInformationFormat LayerType Logger MemoryPoolType NetworkDefinitionCreationFlag OnnxParser "
            "OnnxParserFlag ProfilingVerbosity Runtime TensorIOMode TensorLocation init_libnvinfer_plugins nptype"
        ),
        "10.0-": "ExecutionContextAllocationStrategy IProgressMonitor",
    },
}
"""By class (`module` is TensorRT itself) and span: `10.1-` is from 10.1 on, `-11.0` is before 11.0."""

USES: dict[str, dict[str, str]] = {
    kind: {name: span for span, names in spans.items() for name in names.split()} for kind, spans in _TABLE.items()
}


def has(kind: str, name: str, version: tuple[int, ...]) -> bool:
    """Whether TensorRT `version` has an attribute that is in the table. KeyError where the table lacks it."""
    span = USES[kind][name]
    if span == _ALWAYS:
        return True
    since, _, until = span.partition("-")
    return (not since or version >= _parts(since)) and (not until or version < _parts(until))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
