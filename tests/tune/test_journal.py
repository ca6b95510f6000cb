from dataclasses import asdict

import pytest

from repogen.errors import RepogenError
from repogen.tune.journal import Evidence, Journal, setting_from
from repogen.tune.service import calibrate
from repogen.tune.setting import QueuePolicy, Setting
from repogen.tune.trial import Goal, Measured, Trial
from tests.tune.fake_server import closed_runs, service

EVIDENCE = Evidence("ocr", "tensorrt", "GPU", "ab" * 32, "2.51.0")
GOAL = Goal(0.02, 200.0)
SETTING = Setting(16, 2, 500, (4, 8), policy=QueuePolicy(1000), level_policies=((1, QueuePolicy(max_size=5)),))
TRIAL = Trial(SETTING, 200.0, "candidate", 0.01, Measured(0.011, 0.010, 0.012, batches=((1, 5), (4, 2))))


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "tune" / "ocr.jsonl")


def test_trials_come_back_as_they_were(journal):
    journal.add("trial", evidence=EVIDENCE, goal=GOAL, arrivals="poisson", trial=TRIAL)
    assert journal.trials(EVIDENCE, GOAL, "poisson") == [TRIAL]


@pytest.mark.parametrize(
    ("evidence", "goal", "arrivals"),
    [
        pytest.param(Evidence("ocr", "python", "CPU", "ab" * 32, "2.51.0"), GOAL, "poisson", id="another backend"),
        pytest.param(Evidence("ocr", "tensorrt", "GPU", "cd" * 32, "2.51.0"), GOAL, "poisson", id="another build"),
        pytest.param(EVIDENCE, Goal(0.03, 200.0), "poisson", id="another objective"),
        pytest.param(EVIDENCE, GOAL, "constant", id="other arrivals"),
    ],
)
def test_trials_of_something_else_do_not_count(journal, evidence, goal, arrivals):
    journal.add("trial", evidence=EVIDENCE, goal=GOAL, arrivals="poisson", trial=TRIAL)
    assert journal.trials(evidence, goal, arrivals) == []


def test_a_calibration_gives_the_same_service_again(journal):
    runs = closed_runs(service())
    journal.add("calibration", evidence=EVIDENCE, instances=1, runs=runs)
    assert journal.runs(EVIDENCE)[1] == runs
    assert calibrate(journal.runs(EVIDENCE)[1]) == calibrate(runs)


def test_a_line_that_a_crash_cut_short_costs_nothing_else(journal):
    journal.add("trial", evidence=EVIDENCE, goal=GOAL, arrivals="poisson", trial=TRIAL)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + whole[: len(whole) // 2])
    assert len(journal.trials(EVIDENCE, GOAL, "poisson")) == 1
    journal.add("trial", evidence=EVIDENCE, goal=GOAL, arrivals="poisson", trial=TRIAL)
    assert len(journal.trials(EVIDENCE, GOAL, "poisson")) == 2


def test_what_was_borrowed_and_not_returned(journal):
    assert journal.borrowed() is None
    journal.add("borrowed", url="a:1", model="ocr", config={"name": "ocr"})
    journal.add("borrowed", url="a:1", model="ocr", config={"name": "a trial's"})
    assert journal.borrowed()["config"] == {"name": "ocr"}
    journal.add("returned", url="a:1", model="ocr")
    assert journal.borrowed() is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "tune").write_text("a file")
    with pytest.raises(RepogenError, match="cannot be written"):
        Journal(tmp_path / "tune" / "ocr.jsonl").add("trial")


def test_settings_come_back_from_json():
    import json

    assert setting_from(json.loads(json.dumps(asdict(SETTING)))) == SETTING


def test_differences_are_named():
    other = Evidence("ocr", "python", "CPU", "ab" * 32, "2.60.0")
    assert other.differences(EVIDENCE) == ["backend python, not tensorrt", "device CPU, not GPU"]
