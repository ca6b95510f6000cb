import pytest

from repogen.desired import desired_models
from repogen.errors import ManifestError


def refused(project, settings):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text() + settings)
    with pytest.raises(ManifestError) as error:
        desired_models(manifest)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("dynamic_batching: {priority_levels: 2}", "default_priority_level must be from 1 to priority_levels 2, not 0"),
        (
            "dynamic_batching: {priority_levels: 1, default_priority_level: 1, priority_queue_policy: {2: {}}}",
            "priority_queue_policy 2 is above priority_levels 1",
        ),
        (
            "dynamic_batching: {priority_levels: 2, default_priority_level: 1, preserve_ordering: true}",
            "preserve_ordering allows one priority level only",
        ),
        (
            "dynamic_batching: {preserve_ordering: true, queue_policy: {timeout: 1ms, timeout_action: delay}}",
            "does not go with timeout_action: delay",
        ),
        ("dynamic_batching: {preferred_batch_size: [8]}", "8 is larger than max_batch_size 4"),
        ("dynamic_batching: true\n    sequence_batching: {}", "are both said"),
        ("sequence_batching: {preferred_batch_size: [2]}", "mean nothing to strategy: direct"),
        ("sequence_batching: {strategy: oldest, preferred_batch_size: [9]}", "9 is larger than max_batch_size 4"),
        ("sequence_batching: {controls: {c: {kind: start, dtype: UINT64}}}", "a start control has one of the types"),
        ("sequence_batching: {}\n    response_cache: true", "does not go with sequence_batching"),
        ("decoupled: true", "the onnxruntime backend answers each request once"),
        ("versions: {latest: 1, all: true}", "say one of latest"),
        ("versions: {specific: [2]}", "version 1 is published but not among those served"),
        ("instances: [{kind: cpu, gpus: [0]}]", "gpus do not go with kind: cpu"),
        ("instances: [{kind: gpu, profile: [0]}]", "exist in TensorRT plans only"),
        ("optimization: {cuda_graphs: true}", "CUDA graphs are of TensorRT plans"),
        (
            "optimization: {accelerators: [{name: tensorrt, parameters: {precision: FP16}}]}",
            "the TensorRT accelerator has no parameter 'precision'",
        ),
        ("outputs: {y: {labels: none.txt}}", "none.txt cannot be read"),
        ("config: {max_batch_size: 3}", "config may not set 'max_batch_size'"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_line(project, settings, message):
    from repogen.render import render

    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text() + f"    {settings}\n")
    with pytest.raises(ManifestError) as error:
        [render(model) for model in desired_models(manifest)]
    assert message in str(error.value)


def test_labels_must_name_every_class(project):
    from tests.serverkit import onnx_file

    onnx_file(project / "add.onnx", [("Neg", ["x"], ["y"], {})], [("x", "FLOAT", ["N", 3])], [("y", "FLOAT", ["N", 3])])
    (project / "labels.txt").write_text("cat\ndog\n")
    assert "names 2 classes, the output has 3" in refused(project, "    outputs: {y: {labels: labels.txt}}\n")


def test_a_field_newer_than_the_pinned_server_is_refused(project):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("26.08", "24.10"))
    message = refused(project, "    metrics: [{family: nv_inference_request_summary_us, buckets: [1]}]\n")
    assert "model_metrics needs Triton 2.54, and release 24.10 is 2.51.0" in message
