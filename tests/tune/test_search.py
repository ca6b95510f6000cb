import math
from dataclasses import replace

import pytest

from repogen.tune.forecast import Predictor
from repogen.tune.refit import refitted
from repogen.tune.search import Budget, Question, next_step, outlook, search
from repogen.tune.setting import Setting
from repogen.tune.space import candidates, triton_default
from repogen.tune.trial import Goal, Measured, Trial
from tests.tune.fake_server import FakeServer, calibration

BASE = Setting(16, delay=5000)


def question(goal, guess, *, instances=(1, 2)):
    settings = [s for s in candidates(BASE, instances=instances, slo=goal.slo) if s.delay in (0, 1000, 5000)]
    return Question(goal, tuple(settings), Predictor(guess, percentile=goal.percentile), BASE, triton_default(BASE))


@pytest.fixture(scope="module")
def truth():
    """10 % slower than the calibration says, and more uneven."""
    return calibration(fixed=0.0022, each=0.000275, contention=0.1, spread=0.08)


@pytest.fixture(scope="module")
def guess():
    return calibration(contention=0.1)


@pytest.mark.slow
def test_the_highest_rate_is_found_in_six_runs(truth, guess):
    asked = question(Goal(slo=0.020), guess)
    server = FakeServer(truth)
    answer = search(asked, server, Budget(6))
    best = max(server.true_capacity(setting, 0.020) for setting in asked.candidates)
    assert answer.held
    assert len(answer.trials) <= 6
    assert answer.choice.rate >= 0.95 * best * 0.97
    assert server.true_capacity(answer.choice.setting, 0.020) >= 0.95 * best
    assert (answer.choice.setting, answer.choice.rate) in server.asked


def test_the_default_and_the_current_setting_are_measured_too(truth, guess):
    server = FakeServer(truth)
    search(question(Goal(slo=0.020, rate=900.0), guess), server, Budget(6))
    assert {BASE, triton_default(BASE)} <= {setting for setting, _ in server.asked}


def test_the_cheapest_setting_that_holds_wins(truth, guess):
    server = FakeServer(truth)
    answer = search(question(Goal(slo=0.020, rate=900.0), guess), server, Budget(6))
    assert answer.held
    assert answer.choice.setting.instances == 1
    assert answer.choice.measured.latency <= 0.020


def test_two_instances_where_one_is_not_enough(truth, guess):
    answer = search(question(Goal(slo=0.020, rate=3500.0), guess), FakeServer(truth), Budget(6))
    assert answer.held
    assert answer.choice.setting.instances == 2


@pytest.mark.slow
def test_the_lowest_latency_without_an_objective(truth, guess):
    server, asked = FakeServer(truth), question(Goal(rate=300.0), guess)
    answer = search(asked, server, Budget(6))
    exact = Predictor(truth, seed=5)
    best = min(exact.at(setting, 300.0).latency for setting in asked.candidates)
    assert answer.held
    assert exact.at(answer.choice.setting, 300.0).latency <= best * 1.1
    assert answer.choice.measured.latency <= 1.02 * min(trial.measured.latency for trial in answer.trials)


@pytest.mark.slow
def test_what_cannot_be_held_says_its_limit(truth, guess):
    asked = question(Goal(slo=0.020, rate=9000.0), guess)
    server = FakeServer(truth)
    answer = search(asked, server, Budget(5))
    best = max(server.true_capacity(setting, 0.020) for setting in asked.candidates)
    assert not answer.held
    assert answer.choice is not None
    assert answer.limit == pytest.approx(best, rel=0.1)


def test_a_void_run_is_repeated_and_never_believed(truth, guess):
    server = FakeServer(truth, void={0})
    answer = search(question(Goal(slo=0.020, rate=900.0), guess), server, Budget(6))
    assert server.asked[0] == server.asked[1]
    assert answer.choice.measured.valid
    assert [trial.measured.valid for trial in answer.trials][:2] == [False, True]


def test_a_rate_that_the_client_cannot_keep_is_asked_lower(truth, guess):
    class Late(FakeServer):
        def __call__(self, setting, rate):
            seen = super().__call__(setting, rate)
            return replace(seen, valid=False, reason="late") if rate > 3200 else seen

    server = Late(truth)
    answer = search(question(Goal(slo=0.020), guess), server, Budget(6))
    assert server.asked[0] == server.asked[1]
    assert server.asked[2][1] < 0.9 * server.asked[1][1]
    assert answer.held
    assert 0.7 * 3200 < answer.choice.rate <= 3200


def test_when_every_run_is_void_nothing_is_recommended(truth, guess):
    server = FakeServer(truth, void=set(range(20)))
    answer = search(question(Goal(slo=0.020, rate=900.0), guess), server, Budget(20))
    assert answer.choice is None
    assert len(server.asked) == 3


def test_a_search_goes_on_where_it_was_interrupted(truth, guess):
    asked = question(Goal(slo=0.020, rate=900.0), guess)
    whole = search(asked, FakeServer(truth), Budget(6))
    kept = []

    class Interrupted(Exception):
        pass

    def note(trial):
        kept.append(trial)
        if len(kept) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        search(asked, FakeServer(truth), Budget(6), note=note)
    server = FakeServer(truth)
    server.asked += [(trial.setting, trial.rate) for trial in kept]  # the noise goes on, too
    again = search(asked, server, Budget(6), done=kept)
    assert again.trials == whole.trials


def test_the_clock_ends_a_search(truth, guess):
    time = iter(range(100))
    server = FakeServer(truth)
    search(question(Goal(slo=0.020, rate=900.0), guess), server, Budget(50, seconds=2), clock=lambda: next(time))
    assert len(server.asked) == 1


def test_trials_correct_the_prediction(truth, guess):
    predictor = Predictor(guess)
    setting = Setting(16)
    server = FakeServer(truth, noise=0.0)
    trials = [Trial(setting, rate, "candidate", 0.0, server(setting, rate)) for rate in (1500.0, 2000.0, 2300.0)]
    better = refitted(predictor, trials)
    checked = Predictor(truth, seed=5).at(setting, 1800.0).latency
    assert abs(better.at(setting, 1800.0).latency / checked - 1) < abs(
        predictor.at(setting, 1800.0).latency / checked - 1
    )
    one, two = (better.calibration.services[count] for count in (1, 2))
    assert all(one.at(rate).scale > 1 for rate in (1500.0, 2000.0, 2300.0))
    assert two.at(1500.0).scale == two.at(2300.0).scale > 1


def test_a_latency_beyond_all_measure_is_no_evidence(guess):
    setting = Setting(16)
    seen = Measured(50.0, 49.0, 51.0)
    better = refitted(Predictor(guess), [Trial(setting, 900.0, "candidate", 0.006, seen)])
    assert 1 <= better.calibration.services[1].at(900.0).scale < 1.2


def test_a_tail_further_out_is_asked_of_the_same_runs(truth, guess):
    server = FakeServer(truth, percentile=99.9)
    answer = search(question(Goal(slo=0.025, rate=900.0, percentile=99.9), guess), server, Budget(6))
    assert answer.held


@pytest.mark.parametrize("goal", [Goal(0.020, 900.0), Goal(0.020)], ids=["rate", "max"])
def test_the_outlook_is_of_the_best_and_of_the_references(guess, goal):
    asked = question(goal, guess)
    rows = outlook(asked, asked.predictor, 3)
    assert {BASE, triton_default(BASE)} <= {row.setting for row in rows}
    assert len(rows) <= 5
    assert rows[0].latency <= 0.020


def test_next_step_depends_on_nothing_but_the_trials(guess):
    asked = question(Goal(slo=0.020, rate=900.0), guess)
    assert next_step(asked, []) == next_step(asked, [])
    assert not math.isinf(next_step(asked, []).predicted)
