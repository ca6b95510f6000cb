"""Valid repositories that between them set most fields of a config: what the mutations start from."""

from repogen.check.ensemble_examples import ensemble
from repogen.check.examples import python_model
from repogen.check.rule import Tree

_X = 'name: "x" data_type: TYPE_FP32 dims: [4]'
_Y = 'name: "y" data_type: TYPE_FP32 dims: [4]'
_WARMUP = (
    'model_warmup [{ name: "w" batch_size: 2 count: 1 '
    'inputs { key: "x" value { data_type: TYPE_FP32 dims: [4] random_data: true } } }]'
)
_SEQUENCE = """\
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 4 preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100 }
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] },
    { name: "END" control [{ kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] }] },
    { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] }] },
    { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
  ]
  state [{
    input_name: "past" output_name: "next" data_type: TYPE_FP32 dims: [2]
    initial_state { name: "zero" data_type: TYPE_FP32 dims: [2] zero_data: true }
  }]
}
"""
_STREAM = "model_transaction_policy { decoupled: true }\ninstance_group"

BASES: dict[str, Tree] = {
    "plain": python_model(),
    "batched": python_model(
        "dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 500 priority_levels: 2 "
        "default_priority_level: 1 default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 } "
        "priority_queue_policy { key: 2 value { max_queue_size: 7 } } }\n" + _WARMUP
    ),
    "ordered": python_model("dynamic_batching { preserve_ordering: true }\nresponse_cache { enable: true }"),
    "unbatched": python_model('parameters { key: "a" value { string_value: "b" } }', replaced={"size: 8": "size: 0"}),
    "shaped": python_model(
        'batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x" }]\n'
        'batch_output [{ target_name: "y" source_input: "x" }]\n'
        "version_policy { latest { num_versions: 1 } }",
        replaced={
            _X: f"{_X} reshape {{ shape: [2, 2] }} allow_ragged_batch: true",
            _Y: f'{_Y} label_filename: "labels.txt"',
        },
        files={"m/labels.txt": "cat\ndog\n"},
    ),
    "images": python_model(
        'metric_tags { key: "team" value: "ocr" }\n'
        "optimization { priority: PRIORITY_MAX input_pinned_memory { enable: true } cuda { graphs: true } }",
        replaced={
            _X: 'name: "x" data_type: TYPE_UINT8 format: FORMAT_NHWC dims: [8, 8, 3] },\n'
            '  { name: "mask" data_type: TYPE_BOOL dims: [-1, 2] optional: true',
            "kind: KIND_CPU": 'kind: KIND_CPU count: 1 rate_limiter { resources [{ name: "R" count: 1 }] priority: 2 }',
        },
    ),
    "sequences": python_model(_SEQUENCE),
    "direct": python_model(
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } control_input [{ "
        'name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] }] }'
    ),
    "stream": python_model(
        "model_transaction_policy { decoupled: true }\nversion_policy { specific { versions: [1, 3] } }",
        files={"m/3/model.py": ""},
    ),
    "ensemble": ensemble(),
    "wide ensemble": ensemble(
        (
            'input_map { key: "x" value: "t" }',
            'input_map { key: "x" value: "t" } input_map { key: "w" value: "x" }',
        ),
        second={"input [": 'input [{ name: "w" data_type: TYPE_FP32 dims: [-1] }, '},
    ),
    "stream ensemble": ensemble(first={"instance_group": _STREAM}, added="version_policy { all { } }"),
}
