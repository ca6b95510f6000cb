"""The gate: what it measures, what it lets pass, and that a failure publishes nothing."""

import contextlib
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from repogen.accuracy import judge, pass_gate, question_of, verdict_of
from repogen.builds import runs_here
from repogen.commands.gates import pass_plan_gates
from repogen.console import Console
from repogen.errors import ManifestError, Refused
from repogen.gpu import Gpu
from repogen.judging import Totals, answer, compare
from repogen.model import Gate, Tensor
from repogen.precision.data import Sample
from tests.conftest import tree
from tests.precision.kit import graph_of

RNG = np.random.default_rng(7)
X = (Tensor("x", "TYPE_FP32", ("N", 8)),)
HERE = Sample("val.npz", 3, {})


def classifier(weight, head=None):
    nodes = [("MatMul", "x w", "h"), ("Relu", "h", "r"), ("MatMul", "r v", "y")]
    head = np.eye(8) if head is None else head
    constants = {"w": weight.astype(np.float32), "v": head.astype(np.float32)}
    return graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], constants)


@pytest.fixture
def gate(tmp_path):
    """A gate whose candidate is the reference until a test makes it another."""
    weight = RNG.normal(0, 1, (8, 8))
    onnx.save(classifier(weight), tmp_path / "a.onnx")
    onnx.save(classifier(weight), tmp_path / "b.onnx")
    np.savez(tmp_path / "val.npz", x=RNG.normal(0, 1, (9, 8)).astype(np.float32))
    files = (tmp_path / "val.npz",)
    return Gate(tmp_path / "a.onnx", "d", tmp_path / "b.onnx", "fp16", X, 4, files, folder=tmp_path)


def spoil(path, scale):
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(
        numpy_helper.from_array((array + RNG.normal(0, scale, array.shape)).astype(np.float32), tensor.name)
    )
    onnx.save(model, path)


def test_figures_are_those_of_numpy():
    want, have = RNG.normal(0, 1, (5, 6)), RNG.normal(0, 1, (5, 6))
    totals = Totals()
    for row in range(5):
        totals.add(want[row : row + 1], have[row : row + 1], Sample("f", row, {}))
    found = totals.as_json()
    assert found["cosine"] == pytest.approx(np.vdot(want, have) / np.linalg.norm(want) / np.linalg.norm(have))
    assert found["relative_l2"] == pytest.approx(np.linalg.norm(want - have) / np.linalg.norm(want))
    assert found["max_abs"] == pytest.approx(np.abs(want - have).max())
    assert found["top1"] == np.mean(want.argmax(-1) == have.argmax(-1))
    errors = np.linalg.norm(want - have, axis=1) / np.linalg.norm(want, axis=1)
    assert [row[2] for row in found["worst"]] == np.argsort(-errors)[:3].tolist()


def test_nan_whole_numbers_and_other_shapes():
    totals = Totals()
    totals.add(np.array([[1.0, np.inf, 3.0]]), np.array([[np.nan, np.inf, 3.0]]), HERE)
    assert totals.as_json()["nan"] == 1  # infinity where fp32 has it too is right
    whole = Totals()
    whole.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), HERE)
    assert whole.as_json()["top1"] == 0.75
    other = Totals()
    other.add(np.zeros((2, 3)), np.zeros((2, 4)), HERE)
    assert other.as_json()["unlike"] == "is [2, 4] where fp32 has [2, 3]"


def row(**changes):
    return {"output": "y", "batch": 1, "cosine": 0.9999, "relative_l2": 0.01, "max_abs": 0.1, "top1": 0.98, "nan": 0, "unlike": "", "worst": []} | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "limits", "said"),
    [
        ({}, {}, ""),
        ({"cosine": 0.99}, {}, "has cosine 0.99, less than 0.999"),
        ({"cosine": 0.99}, {"cosine": 0.98}, ""),
        ({"relative_l2": 0.04}, {}, "has relative_l2 0.04, more than 0.03"),
        ({"nan": 2}, {}, "has 2 NaN or infinite values"),
        ({}, {"top1": 0.99}, "has top1 0.98, less than 0.99"),
        ({}, {"max_abs": 0.05}, "has max_abs 0.1, more than 0.05"),
        ({"cosine": 1.0, "relative_l2": 0.0, "top1": 0.9}, {}, "has top1 0.9, less than 0.99"),
        ({"unlike": "is [1]"}, {}, "is [1]"),
    ],
)
def test_limits(gate, changes, limits, said):
    from dataclasses import replace

    answer = {"rows": [row(**changes)], "samples": 1, "scores": None}
    (judged,) = verdict_of(answer, replace(gate, limits=limits)).rows
    assert judged.problem.startswith(said)
    assert bool(judged.problem) == bool(said)


@pytest.mark.parametrize(
    ("scores", "floor", "drop", "said"),
    [
        ((0.9, 0.88), 0.85, 0.05, ""),
        ((0.9, 0.84), 0.85, None, "my:score is 0.84 where fp32 has 0.9, less than the floor 0.85"),
        ((0.9, 0.84), None, 0.05, "a drop of more than 0.05"),
        ((0.9, 0.95), None, 0.0, ""),
    ],
)
def test_scores(gate, scores, floor, drop, said):
    from dataclasses import replace

    answer = {"rows": [row()], "samples": 1, "scores": scores}
    verdict = verdict_of(answer, replace(gate, metric="my:score", floor=floor, drop=drop))
    assert said in verdict.problem
    assert verdict.passed == (not said)


def test_each_batch_size_is_judged(gate):
    verdict = judge(gate)
    assert verdict.passed
    assert verdict.samples == 9
    assert [(one.output, one.batch) for one in verdict.rows] == [("y", 1), ("y", 2), ("y", 4)]


def test_a_model_that_answers_otherwise_is_refused_by_its_worst_samples(gate):
    spoil(gate.candidate, 0.3)
    with pytest.raises(Refused, match="'y' at batch .* worst: .*val.npz sample \\d") as caught:
        pass_gate("m", gate)
    assert caught.value.exit_code == 1
    assert "what is published stays" in str(caught.value)


def test_rows_that_depend_on_their_neighbours_are_found(gate):
    """Right at batch 1 and wrong at 2: only asking at each size shows it."""

    def reference(arrays):
        return {"y": arrays["x"] * 2}

    def candidate(arrays):
        return {"y": arrays["x"] * 2 + (0.5 if len(arrays["x"]) == 2 else 0)}

    from repogen.accuracy import question_of

    answer = compare(reference, candidate, question_of(gate))
    problems = {one.batch: one.problem for one in verdict_of(answer, gate).rows}
    assert not problems[1]
    assert not problems[4]
    assert "cosine" in problems[2] or "relative_l2" in problems[2]


def test_the_users_own_metric_runs_on_labels(gate, tmp_path):
    from dataclasses import replace

    (tmp_path / "scoring.py").write_text(
        "def right(answers, samples):\n"
        "    hits = [(a['y'].argmax(-1) == s['label']).mean() for a, s in zip(answers, samples)]\n"
        "    return sum(hits) / len(hits)\n"
        "def broken(answers, samples):\n"
        "    return answers['y']\n"
    )
    x = RNG.normal(0, 1, (8, 8)).astype(np.float32)
    from tests.precision.kit import run

    labels = run(onnx.load(gate.reference), {"x": x})[0].argmax(-1)
    np.savez(tmp_path / "val.npz", x=x, label=labels)
    verdict = judge(replace(gate, metric="scoring:right", floor=0.9))
    assert verdict.scores == (1.0, 1.0)
    with pytest.raises(ManifestError, match="scoring:broken failed: TypeError"):
        judge(replace(gate, metric="scoring:broken"))
    with pytest.raises(ManifestError, match="nowhere:f cannot be imported"):
        judge(replace(gate, metric="nowhere:f"))
    with pytest.raises(ManifestError, match="'label' is no input"):
        judge(gate)  # without a metric nobody reads labels


def test_a_verdict_is_remembered_and_limits_are_not(gate, monkeypatch):
    from dataclasses import replace

    from repogen import accuracy

    spoil(gate.candidate, 0.003)
    assert pass_gate("m", gate).passed
    monkeypatch.setattr(accuracy, "ask", lambda *_, **__: pytest.fail("it was asked again"))
    assert judge(gate).passed
    assert not judge(replace(gate, limits={"relative_l2": 1e-6})).passed


MANIFEST = """triton: "26.08"
repository: served/models
defaults: {{instances: [{{kind: cpu}}]}}
models:
  m:
    source: a.onnx
    max_batch_size: 4
    precision: {precision}
    {more}
"""


def test_sync_publishes_the_lowered_graph(gate, tmp_path, invoke):
    (tmp_path / "repogen.yaml").write_text(MANIFEST.format(precision="fp16", more="precision_options: {io: graph}"))
    done = invoke("sync", "-f", tmp_path / "repogen.yaml")
    assert "in fp16 answers like fp32 on" in done.stdout
    model = onnx.load(tmp_path / "served/models/m/1/model.onnx")
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    config = (tmp_path / "served/models/m/config.pbtxt").read_text()
    assert config.count("TYPE_FP16") == 2
    assert "TYPE_FP32" not in config
    assert "nothing to do" in invoke("sync", "-f", tmp_path / "repogen.yaml").stdout


def test_io_types_stay_unless_asked(gate, tmp_path, invoke):
    """Case 24: precision and the types of inputs and outputs are two settings."""
    (tmp_path / "repogen.yaml").write_text(MANIFEST.format(precision="fp16", more=""))
    invoke("sync", "-f", tmp_path / "repogen.yaml")
    assert "TYPE_FP16" not in (tmp_path / "served/models/m/config.pbtxt").read_text()


def test_a_failing_gate_keeps_what_is_published(gate, tmp_path, invoke):
    manifest = tmp_path / "repogen.yaml"
    manifest.write_text(MANIFEST.format(precision="fp32", more=""))
    invoke("sync", "-f", manifest)
    before = tree(tmp_path / "served/models")
    manifest.write_text(MANIFEST.format(precision="fp16", more="accuracy: {data: val.npz, relative_l2: 1.0e-9}"))
    failed = invoke("sync", "-f", manifest, code=1)
    assert "val.npz sample" in failed.stderr
    assert tree(tmp_path / "served/models") == before


@pytest.mark.parametrize(
    ("precision", "more", "said"),
    [
        ("fp8", "", "fp8 is not built"),
        ("int8", "", "int8 needs calibration data"),
        ("int8", "calibration: {data: none/*.npz}", "there are no .npz files at"),
        ("bf16", "", "ONNX Runtime has no bfloat16 kernels"),
        ("fp32", "calibration: {data: val.npz}", "calibration is given, but the precision is fp32"),
        ("fp16", "accuracy: {floor: 0.5}", "floor and drop are of a metric"),
        ("fp16", "accuracy: {metric: nocolon}", "metric"),
        ("int8", "calibration: {data: val.npz, method: guess}", "method"),
    ],
)
def test_manifest_refusals(gate, tmp_path, invoke, precision, more, said):
    (tmp_path / "repogen.yaml").write_text(MANIFEST.format(precision=precision, more=more))
    failed = invoke("plan", "-f", tmp_path / "repogen.yaml", code=2)
    assert said in failed.stderr
    assert "repogen.yaml:" in failed.stderr


class Engine:
    """What runs a plan, with ONNX Runtime in the GPU's place: it takes float32 and answers in memory that it reuses."""

    def __init__(self, path, *, version_compatible):
        self.session = ort.InferenceSession(Path(path).read_bytes())
        self.inputs, self.held = ["x"], np.zeros(64, np.float32)

    def dtype(self, _name):
        return np.float32

    def room(self, shapes):
        self.x = np.zeros(shapes["x"], np.float32)
        return {"x": self.x}

    def run(self, _shapes):
        (y,) = self.session.run(["y"], {"x": self.x})
        held = self.held[: y.size].reshape(y.shape)
        held[...] = y
        return {"y": held}


@pytest.mark.parametrize(("scale", "passes"), [(0.0, True), (0.5, False)])
def test_a_plan_is_judged_by_what_it_answers(gate, tmp_path, monkeypatch, scale, passes):
    spoil(gate.candidate, scale)
    plan = gate.candidate.rename(tmp_path / "model.plan")
    monkeypatch.setattr("repogen.judging.plan_engine", lambda: types.SimpleNamespace(Engine=Engine))
    judged = replace(gate, candidate=plan)
    verdict = verdict_of(answer(question_of(judged)), judged)
    assert verdict.passed is passes
    assert {row.batch for row in verdict.rows} == {1, 2, 4}


@pytest.mark.parametrize(("here", "judged"), [(True, ["the plan of m"]), (False, [])])
def test_sync_judges_plans_where_they_can_run(gate, tmp_path, monkeypatch, here, judged):
    build = types.SimpleNamespace(options=types.SimpleNamespace(version_compatible=True))
    model = types.SimpleNamespace(gate=gate, build=build, files=[types.SimpleNamespace(source=tmp_path / "model.plan")])
    plan = types.SimpleNamespace(writes=[types.SimpleNamespace(name="m", model=model)])
    asked = []

    def passing(name, gate, *, memory):
        asked.append(name)
        assert gate.candidate == tmp_path / "model.plan"
        assert gate.version_compatible
        raise Refused("it does not")

    monkeypatch.setattr("repogen.builds.runs_here", lambda _: here)
    monkeypatch.setattr("repogen.accuracy.pass_gate", passing)
    with pytest.raises(Refused) if here else contextlib.nullcontext():
        pass_plan_gates(plan, Console())
    assert asked == judged


@pytest.mark.parametrize(
    ("kind", "capability", "version", "runs"),
    [
        ("tensorrt", "9.0", "8.6.0", True),
        ("tensorrt", "9.0", "8.6", True),
        ("tensorrt", "9.0", "10.3", False),
        ("tensorrt", "8.6", "8.6.0", False),
        ("tensorrt_rtx", "9.0", "8.6.0", False),
    ],
)
def test_a_plan_runs_on_its_own_gpu_and_tensorrt(monkeypatch, kind, capability, version, runs):
    monkeypatch.setattr("repogen.builds.gpus", lambda: (Gpu("H200", "9.0"),))
    monkeypatch.setattr("repogen.builds.metadata.version", lambda _: "8.6.0")
    build = types.SimpleNamespace(kind=kind, capability=capability, version=version)
    assert runs_here(build) is runs
