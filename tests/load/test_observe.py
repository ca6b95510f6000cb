"""What the models that an ensemble calls did, over the same window as the ensemble itself."""

from dataclasses import replace

import pytest

from repogen.errors import ServerError
from repogen.load.observe import Batching, Observer, from_json, members_of
from repogen.load.served import serve
from repogen.pbtxt import parse
from repogen.triton import BatchStatistics, Statistics

STEP = 'step {{ model_name: "{0}" model_version: -1 input_map {{ key: "x" value: "a" }} }}'
CONFIGS = {
    "whole": "ensemble_scheduling { " + "".join(STEP.format(name) for name in ("inner", "slow", "first")) + " }",
    "inner": "ensemble_scheduling { " + "".join(STEP.format(name) for name in ("first", "second")) + " }",
    **dict.fromkeys(("first", "second", "slow"), ""),
}
MS = 1_000_000


class FakeClient:
    """Answers with counters that grow by `step` at each question."""

    def __init__(self, steps, *, lost=False):
        self.steps, self.asked, self.lost = steps, 0, lost

    def config(self, model):
        return parse(f'name: "{model}" {CONFIGS[model]}')

    def statistics_of(self, names):
        self.asked += 1
        if self.lost and self.asked > 1:
            raise ServerError("gone")
        return {name: self.steps[name](self.asked) for name in names if name in self.steps}

    def statistics(self, name):
        return self.statistics_of((name,))[name]


def growing(name, queue=0, infer=0, executions=10):
    def at(asked):
        rows = (BatchStatistics(2, executions * asked, 0, infer * MS * asked, 0),)
        return Statistics(name, 20 * asked, 0, 20 * asked, executions * asked, queue * MS * asked, 0,
                          infer * MS * asked, 0, rows, 400 * MS * asked)  # fmt: skip

    return at


def observed(client, model="whole"):
    observer = Observer(client, model, batching=Batching(8, dynamic=True))
    observer.begin()
    return observer.end()


def test_the_members_of_an_ensemble_are_those_that_do_the_work():
    assert members_of(FakeClient({}), "whole") == ("first", "second", "slow")
    assert members_of(FakeClient({}), "slow") == ()


def test_every_step_is_counted_over_the_same_window():
    client = FakeClient({"whole": growing("whole"), "first": growing("first", 20, 60), "second": growing("second", 0, 40),
                         "slow": growing("slow", 40, 200)})  # fmt: skip
    told = from_json(observed(client).to_json())
    assert client.asked == 2  # one question for all of them, before and after
    did = serve(told, arrivals="poisson", users=1, rate=1.0, shapes=1)
    assert list(did.members) == ["first", "second", "slow"]
    assert (did.members["first"].queue, did.members["first"].compute) == (1.0, 3.0)
    assert (did.members["slow"].executions, did.members["slow"].mean_batch) == (10, 2.0)
    assert did.total == 20.0
    assert did.share(did.members["slow"]) == pytest.approx(12 / 20)
    assert did.between == pytest.approx(20 - 3 * 20)  # each member says 20 ms: side by side
    assert did.note == ""


def test_shares_never_add_up_to_more_than_all():
    client = FakeClient(
        {"whole": growing("whole"), **{name: growing(name, 0, 400) for name in ("first", "second", "slow")}}
    )
    did = serve(observed(client), arrivals="poisson", users=1, rate=1.0, shapes=1)
    assert sum(did.share(one) for one in did.members.values()) == pytest.approx(1)


def test_a_member_that_was_reloaded_voids_the_window():
    def restarted(asked):
        return growing("slow", 1, 1)(3 - asked)

    client = FakeClient(
        {"whole": growing("whole"), "first": growing("first"), "second": growing("second"), "slow": restarted}
    )
    seen = observed(client)
    assert seen.restarted
    assert seen.problem.startswith("slow's statistics started over")


def test_a_lost_server_and_a_plain_model():
    client = FakeClient({name: growing(name) for name in CONFIGS}, lost=True)
    assert observed(client).problem == "the server was lost: gone"
    plain = observed(FakeClient({"slow": growing("slow", 0, 40)}), "slow")
    assert (plain.members, plain.statistics.requests) == ({}, 20)
    assert from_json({**plain.to_json(), "members": {}}) == replace(plain, members={})
