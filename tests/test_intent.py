import pytest

from repogen.errors import ManifestError
from repogen.intent import DEFAULT_MAX_BATCH, decide_onnx, decide_python
from repogen.manifest import ModelEntry
from repogen.model import Proof, Tensor

IMAGE = (Tensor("x", "TYPE_FP32", ("N", 3, "H", 0)),)
SCORES = (Tensor("y", "TYPE_FP32", ("N", 10)),)
YES = Proof(True, "proved at batch 1, 2 and 3", IMAGE, SCORES, {"H": 64})
NO = Proof(False, "axis 0 of output 'y' is fixed at 1", IMAGE, (Tensor("y", "TYPE_FP32", (1, 10)),), {"N": 1, "H": 64})
UNKNOWN = Proof(None, "it could not be run", IMAGE, SCORES)


def decide(proof, **entry):
    return decide_onnx(
        "m", ModelEntry(source="m.onnx", **entry), proof, (), lambda *key: f"f:1 {'.'.join(map(str, key))}"
    )


@pytest.mark.parametrize(
    ("proof", "asked", "expected"),
    [(YES, None, DEFAULT_MAX_BATCH), (YES, 4, 4), (YES, 0, 0), (NO, None, 0), (NO, 0, 0), (NO, 1, 0), (UNKNOWN, None, 0), (UNKNOWN, 4, 4)],
)  # fmt: skip
def test_max_batch_size(proof, asked, expected):
    assert decide(proof, max_batch_size=asked).max_batch_size == expected


def test_what_could_not_be_proved_is_said():
    assert "NOT proved: it could not be run" in decide(UNKNOWN, max_batch_size=4).notes[0]


def test_batching_a_model_that_cannot_is_refused_with_the_reason():
    with pytest.raises(
        ManifestError, match=r"f:1 max_batch_size: 4 is asked.*axis 0 of output 'y' is fixed at 1.*export"
    ):
        decide(NO, max_batch_size=4)
    with pytest.raises(ManifestError, match="max_batch_size is 0"):
        decide(NO, dynamic_batching=True)


def test_the_batch_axis_leaves_the_dims_only_where_the_model_batches():
    assert decide(YES).inputs[0].dims == (3, -1, -1)
    assert decide(YES, max_batch_size=0).inputs[0].dims == (-1, 3, -1, -1)
    assert decide(NO).outputs[0].dims == (1, 10)


def test_the_batcher_is_on_where_it_can_help():
    assert decide(YES).dynamic_batching is not None
    assert decide(YES, max_batch_size=1).dynamic_batching is None
    assert decide(YES, dynamic_batching=False).dynamic_batching is None
    assert decide(NO, dynamic_batching={"max_queue_delay": "2ms"}).dynamic_batching is None


def test_a_preferred_size_above_the_maximum_is_refused():
    with pytest.raises(ManifestError, match="preferred_batch_size: 8 is larger than max_batch_size 4"):
        decide(YES, max_batch_size=4, dynamic_batching={"preferred_batch_size": [2, 8]})


@pytest.mark.parametrize(
    ("instances", "kinds"),
    [
        (None, ["gpu"]),
        ([{"gpus": [1]}], ["gpu"]),
        ([{"kind": "cpu"}], ["cpu"]),
        ([{"kind": "auto", "count": 2}], ["auto"]),
    ],
)
def test_the_kind_of_instances_is_always_written(instances, kinds):
    assert [group.kind for group in decide(YES, instances=instances).instances] == kinds


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"x": {"dtype": "FP16"}}, "the graph has TYPE_FP32, the manifest FP16"),
        ({"x": {"dtype": "FLOAT"}}, "not a data type of Triton"),
        ({"z": {"dtype": "FP32"}}, "the graph has no input 'z'.*x"),
        ({"x": {"dims": [3, 64, 0]}}, r"axis 2 of 'x': the graph has H \(free, -1\), the manifest 64"),
        ({"x": {"dims": [3, -1]}}, "the graph has 4 axes"),
    ],
)
def test_what_the_manifest_says_of_a_tensor_is_checked(said, message):
    with pytest.raises(ManifestError, match=message):
        decide(YES, inputs=said)


def test_what_agrees_with_the_graph_is_accepted():
    assert decide(YES, inputs={"x": {"dtype": "FP32", "dims": [3, -1, 0]}}).max_batch_size == DEFAULT_MAX_BATCH


def test_shapes_are_named_by_symbol_or_by_tensor_and_axis():
    span = {"min": 1, "opt": 2, "max": 3}
    assert decide(YES, shapes={"H": span}).shapes["H"].opt == 2
    assert decide(YES, shapes={"x.2": span}).shapes["H"].opt == 2
    with pytest.raises(ManifestError, match="no free axis 'W'.*N, H"):
        decide(YES, shapes={"W": span})


def test_a_python_model_says_its_tensors():
    where = lambda *key: ".".join(map(str, key))  # noqa: E731
    tensors = {"inputs": {"t": {"dtype": "BYTES", "dims": [-1]}}, "outputs": {"y": {"dtype": "FP32", "dims": [2]}}}
    model = decide_python("m", ModelEntry(source="m.py", max_batch_size=4, **tensors), (), where)
    assert (model.backend, model.max_batch_size, model.inputs[0].dtype) == ("python", 4, "TYPE_STRING")
    with pytest.raises(ManifestError, match="outputs declared"):
        decide_python("m", ModelEntry(source="m.py", inputs=tensors["inputs"]), (), where)
    with pytest.raises(ManifestError, match="inputs.t: .*dtype and dims"):
        decide_python("m", ModelEntry(source="m.py", **{**tensors, "inputs": {"t": {"dtype": "FP32"}}}), (), where)
