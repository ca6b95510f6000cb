import pytest

from repogen.errors import Refused
from repogen.manifest import load_manifest
from repogen.model import DynamicBatching, Instances, ModelFile, ServedModel
from repogen.tune.apply import apply, refuse_other_evidence
from repogen.tune.forecast import Predictor
from repogen.tune.journal import Evidence
from repogen.tune.search import Answer, Question
from repogen.tune.setting import Setting
from repogen.tune.space import triton_default
from repogen.tune.trial import Goal, Measured, Trial
from repogen.tune.tuning import Tuned, build_digest
from tests.tune.fake_server import calibration

MANIFEST = """\
# who serves what
triton: "26.08"   # the release
repository: models
defaults:
  instances: [{kind: cpu}]   # no GPU here
models:
  ocr:                       # reads
    source: ocr.onnx         # exported in May
    max_batch_size: 16

    dynamic_batching: {max_queue_delay: 5ms}   # guessed
    tune: {slo: {p99: 20ms}, rate: 900/s}
  other:
    source: other.onnx  # left alone
"""
CURRENT = Setting(16, 1, 5000)


def tuned(setting, *, held=True, current=CURRENT, day="2026-12-01", build="b", backend="onnxruntime"):
    goal = Goal(0.02, 900.0)
    choice = Trial(setting, 900.0, "candidate", 0.0091, Measured(0.0093, 0.009, 0.0097, requests=5000, rate=899.0))
    before = Trial(
        current,
        900.0,
        "current",
        0.0121,
        Measured(0.012, 0.0118, 0.0123, requests=5000, rate=899.0, batches=((1, 4), (3, 9))),
    )
    predictor = Predictor(calibration())
    question = Question(goal, (setting, current), predictor, current, triton_default(current))
    answer = Answer((choice, before), choice, held, predictor, None if held else 700.0)
    evidence = Evidence("ocr", backend, "CPU", build, "2.51.0")
    return Tuned(question, answer, evidence, "poisson", 2, 61.0, "a machine, 2 cores", day)


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "repogen.yaml"
    path.write_text(MANIFEST)
    return path


def test_only_what_was_chosen_changes_and_the_evidence_stands_beside_it(manifest):
    apply(manifest, "ocr", tuned(Setting(16, 1, 500)), report="tuned.html")
    expected = MANIFEST.replace(
        "\n    dynamic_batching: {max_queue_delay: 5ms}   # guessed",
        "\n    # tuned 2026-12-01: P99 9.30 ms [9.00, 9.70] at 900/s (objective 20 ms)\n"
        "    # measured on onnxruntime, CPU, Triton 2.51.0, a machine, 2 cores\n"
        "    # report: tuned.html\n"
        "    dynamic_batching: {max_queue_delay: 500us} # guessed",
    )
    assert manifest.read_text() == expected
    assert load_manifest(manifest).models["ocr"].dynamic_batching.max_queue_delay == 500


def test_a_second_tuning_replaces_the_evidence_of_the_first(manifest):
    apply(manifest, "ocr", tuned(Setting(16, 1, 500)), differences=["backend python, not onnxruntime"])
    assert "# FORCED: this is evidence of another target: backend python" in manifest.read_text()
    apply(manifest, "ocr", tuned(Setting(16, 1, 1000), day="2026-12-02"))
    text = manifest.read_text()
    assert "2026-12-01" not in text
    assert "FORCED" not in text
    assert text.count("# measured on") == text.count("# tuned 2026-12-02") == 1
    for comment in (
        "# who serves what",
        "# the release",
        "# no GPU here",
        "# reads",
        "# exported in May",
        "# left alone",
    ):
        assert comment in text


@pytest.mark.parametrize(
    ("setting", "check"),
    [
        pytest.param(
            Setting(16, 2, 0), lambda e: e.instances[0].count == 2 and e.instances[0].kind == "cpu", id="instances"
        ),
        pytest.param(Setting(8, 1, 0), lambda e: e.max_batch_size == 8, id="largest batch"),
        pytest.param(
            Setting(16, 1, 0, (4, 8)), lambda e: e.dynamic_batching.preferred_batch_size == (4, 8), id="preferred"
        ),
        pytest.param(Setting(16, 1, batching=False), lambda e: e.dynamic_batching is False, id="no batching"),
    ],
)
def test_every_part_of_a_setting_reaches_the_manifest(manifest, setting, check):
    apply(manifest, "ocr", tuned(setting))
    assert check(load_manifest(manifest).models["ocr"])


def test_batching_that_the_manifest_does_not_mention_is_added(manifest):
    manifest.write_text(MANIFEST.replace("    dynamic_batching: {max_queue_delay: 5ms}   # guessed\n", ""))
    apply(manifest, "ocr", tuned(Setting(16, 1, 500)))
    assert load_manifest(manifest).models["ocr"].dynamic_batching.max_queue_delay == 500
    assert "# tuned 2026-12-01" in manifest.read_text()


def test_what_was_not_held_is_not_applied(manifest):
    with pytest.raises(Refused, match="nothing was found"):
        apply(manifest, "ocr", tuned(Setting(16), held=False))
    assert manifest.read_text() == MANIFEST


def served(tmp_path, backend="onnxruntime"):
    file = ModelFile("model.onnx", tmp_path / "m.onnx", "ab" * 32, 10)
    return ServedModel("ocr", backend, "ocr.onnx", 16, (), (), (Instances("cpu", 1),), DynamicBatching(), (file,))


def test_evidence_of_the_stand_in_is_refused_unless_forced(tmp_path):
    model = served(tmp_path)
    right = tuned(Setting(16), build=build_digest(model))
    assert refuse_other_evidence(right, model, force=False) == []
    stand_in = tuned(Setting(16), build=build_digest(model), backend="python")
    with pytest.raises(Refused, match="backend python, not onnxruntime"):
        refuse_other_evidence(stand_in, model, force=False)
    assert refuse_other_evidence(stand_in, model, force=True) == ["backend python, not onnxruntime"]
    with pytest.raises(Refused, match="build old, not"):
        refuse_other_evidence(tuned(Setting(16), build="old"), model, force=False)


def test_the_step_of_a_pipeline(manifest):
    apply(manifest, "ocr", tuned(Setting(16, 1, 500)), pipeline="reading")
    assert "# tuned 2026-12-01: P99 of the pipeline reading 9.30 ms [9.00, 9.70] at 900/s" in manifest.read_text()
    apply(manifest, "ocr", tuned(Setting(16, 1, 200), day="2026-12-02"), pipeline="reading")
    assert manifest.read_text().count("# tuned") == 1


def test_a_step_that_merges_nothing_gets_its_instances(manifest):
    apply(
        manifest, "other", tuned(Setting(1, 2, batching=False), current=Setting(1, batching=False)), pipeline="reading"
    )
    entry = load_manifest(manifest).models["other"]
    assert (entry.instances[0].count, entry.dynamic_batching) == (2, None)
    assert "max_batch_size" not in manifest.read_text().partition("other:")[2]
    assert "# tuned 2026-12-01: P99 of the pipeline reading" in manifest.read_text()
