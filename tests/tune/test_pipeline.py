"""Simulators in series, what runs of the whole say of the steps, and which settings are chosen by that."""

from dataclasses import replace

import numpy as np
import pytest

from repogen.errors import Refused
from repogen.pbtxt import parse
from repogen.tune.pipeline import Level, Pipeline, Stage, Traffic, stages_of
from repogen.tune.pipeline_search import PipelineQuestion, PipelineTrial, chosen, ranked, to_measure
from repogen.tune.pipeline_service import Seen, calibrated, with_instances
from repogen.tune.service import Latencies, Service
from repogen.tune.setting import Setting
from repogen.tune.trial import Goal, Measured

ALONE = Setting(1, batching=False)
NO_GAP = ((0.0, 0.0), (1.0, 0.0))


def stage(model, *after):
    return Stage(model, after, {}, {})


def service(*times, instances=1):
    return {instances: Service(instances, tuple((size, t) for size, t in enumerate(times, start=1)), 0.0, 0.0)}


def pipeline(*services, stages=None, traffic=None, **more):
    chain = stages or tuple(stage(f"m{n}", *([n - 1] if n else [])) for n in range(len(services)))
    return Pipeline(chain, traffic or (Traffic(),) * len(services), services, more.pop("gap", NO_GAP), **more)


def arrivals(rate, count=2000, seed=0):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def queued(times, cycles):
    """One server, first come first served: when each is done."""
    free, found = 0.0, []
    for time, cycle in zip(times, cycles, strict=True):
        free = max(time, free) + cycle
        found.append(free)
    return np.array(found)


def test_queues_in_series():
    times = arrivals(70)
    expected = queued(queued(times, [0.008] * 2000), [0.011] * 2000) - times
    seen = pipeline(service(0.008), service(0.011)).latencies((ALONE, ALONE), times, 70)
    assert np.allclose(seen, expected)


def test_steps_side_by_side_join():
    shape = (stage("a"), stage("left", 0), stage("right", 0), stage("end", 1, 2))
    times = arrivals(40)
    a = queued(times, [0.005] * 2000)
    joined = np.maximum(queued(a, [0.004] * 2000), queued(a, [0.012] * 2000))
    seen = pipeline(service(0.005), service(0.004), service(0.012), service(0.003), stages=shape)
    assert np.allclose(
        seen.latencies((ALONE,) * 4, times, 40),
        queued(np.sort(joined), [0.003] * 2000)[np.argsort(np.argsort(joined))] - times,
    )


def test_each_request_takes_what_its_shape_takes():
    traffic = (Traffic((1, 1, 1), (0, 1, 0), (0.5, 2.0)),)
    times = arrivals(50, 999)
    cycles = [0.01 * (0.5, 2.0, 0.5)[(n + 4) % 3] for n in range(999)]
    seen = pipeline(service(0.01), traffic=traffic).latencies((ALONE,), times, 50, first=4)
    assert np.allclose(seen, queued(times, cycles) - times)


def test_a_step_merges_what_the_step_before_lets_through():
    batching = Setting(8, delay=0)
    times = arrivals(300)
    cheap = service(*(0.004 + 0.0001 * n for n in range(8)))
    whole = pipeline(service(0.003), cheap).latencies((ALONE, batching), times, 300)
    single = pipeline(service(0.003), cheap).latencies((ALONE, replace(batching, batching=False)), times, 300)
    assert np.percentile(whole, 99) < np.percentile(single, 99) / 5  # 4 ms each at 300/s is more than one can do


def test_levels_lie_on_a_line_and_go_not_far_beyond():
    levels = (Level(10, (1.0, 1.3), 0.1), Level(20, (1.2, 1.2), 0.3), Level(30, (1.4, 1.1), 0.2))
    known = pipeline(service(0.01), service(0.01), levels=levels)
    assert known.at(15).scales == pytest.approx((1.1, 1.25))
    assert known.at(33).scales == pytest.approx((1.46, 1.07))
    assert known.at(1000).scales == pytest.approx((1.58, 1.01))  # as at 39/s
    assert known.at(15).spread == pytest.approx(0.2)
    bent = pipeline(service(0.01), levels=(Level(10, (1.0,), 0), Level(20, (1.3,), 0), Level(30, (1.0,), 0)))
    assert bent.at(20).scales == pytest.approx((1.1,))  # one run alone is chance
    assert pipeline(service(0.01), levels=levels[:1]).at(99).scales == pytest.approx((1.0, 1.3))


ENSEMBLE = """
name: "e" input [{ name: "IN" data_type: TYPE_FP32 dims: [1] }]
ensemble_scheduling {
  step { model_name: "last" input_map { key: "x" value: "l" } input_map { key: "y" value: "r" } output_map { key: "z" value: "OUT" } }
  step { model_name: "right" input_map { key: "x" value: "a" } output_map { key: "y" value: "r" } }
  step { model_name: "left" input_map { key: "x" value: "a" } output_map { key: "y" value: "l" } }
  step { model_name: "first" input_map { key: "x" value: "IN" } output_map { key: "y" value: "a" } }
}
"""


def test_the_steps_of_a_config():
    found = stages_of(parse(ENSEMBLE))
    assert [(one.model, one.after) for one in found] == [
        ("first", ()),
        ("right", (0,)),
        ("left", (0,)),
        ("last", (1, 2)),
    ]
    assert found[3].inputs == {"x": "l", "y": "r"}
    with pytest.raises(Refused, match="calls left twice"):
        stages_of(parse(ENSEMBLE.replace('"right"', '"left"')))


def seen_of(truth, settings, rate=0.0, clients=0, count=4000, slower=1.0):
    """What a run against `truth` shows."""
    times = arrivals(rate or 1.0, count, seed=9)
    taken = truth.latencies(
        settings, times, rate, seed=5, level=None if rate else Level(0, (1.0,) * len(truth.stages), 0)
    )
    p50, p90, p99 = np.percentile(taken, (50, 90, 99))
    rows = tuple(
        ((1, count, truth.service(n, one.instances).cycles(1)[1] * (truth.at(rate).scales[n] if rate else 1) * slower),)
        for n, one in enumerate(settings)
    )
    told = Latencies(float(taken.mean()), p50, p90, p99, float(taken.max()))
    return Seen(settings, rows, told, clients, () if clients else tuple(times))


def test_calibration_finds_what_load_does():
    levels = (Level(10, (1.05, 1.1), 0.1), Level(60, (1.3, 1.5), 0.2))
    truth = pipeline(service(0.004), service(0.007), gap=((0.0, 0.001), (1.0, 0.001)), levels=levels)
    settings = (ALONE, ALONE)
    runs = [seen_of(truth, settings, clients=1), seen_of(truth, settings, clients=8)]
    runs += [seen_of(truth, settings, rate=rate) for rate in (15.0, 35.0, 55.0)]
    found = calibrated(truth.stages, truth.traffic, runs)
    assert found.service(1, 1).cycles(1)[1] == pytest.approx(0.007)
    assert found.gap[2][1] == pytest.approx(0.001, abs=1e-4)
    for rate in (25.0, 45.0, 58.0):
        times = arrivals(rate, 20_000, seed=3)
        p99 = [np.percentile(one.latencies(settings, times, rate), 99) for one in (found, truth)]
        assert p99[0] == pytest.approx(p99[1], rel=0.1)


def test_more_instances_are_known_in_proportion():
    known = with_instances(pipeline(service(0.004), service(0.01, 0.012)), 1, 1, {1: 5.0, 2: 6.0})
    assert known.service(1, 2).cycles(2) == pytest.approx([0.0, 0.012, 0.0144])
    assert known.service(0, 2).cycles(1) == known.service(0, 1).cycles(1)
    assert known.service(1, 3).instances == 2


def question(goal, **more):
    two = {**service(0.010, 0.0105, 0.011, 0.012), 2: Service(2, ((1, 0.010), (4, 0.012)), 0.0, 0.0)}
    plain = {"current": (ALONE, Setting(4, delay=20_000)), "tuned": (1,), "instances": (1, 2), **more}
    return PipelineQuestion(goal, pipeline(service(0.002), two), **plain)


def test_the_search_drops_a_delay_that_costs_more_than_it_buys():
    asked = question(Goal(rate=60.0))
    best = ranked(asked)[0]
    assert best[0] == ALONE  # a step that is not tuned stays
    assert best[1].delay < 20_000
    assert asked.predicted(best) < asked.predicted(asked.current) / 1.5


def test_an_objective_that_one_instance_holds_takes_one():
    assert ranked(question(Goal(slo=0.060, rate=60.0)))[0][1].instances == 1
    assert ranked(question(Goal(slo=0.016, rate=60.0)))[0][1].instances == 2


def test_what_is_measured_and_what_is_chosen():
    asked = question(Goal(slo=0.060, rate=60.0))
    rows = to_measure(asked, 4)
    assert [role for role, _ in rows] == ["candidate", "current", "candidate", "default"]
    assert len({settings for _, settings in rows}) == 4
    assert to_measure(asked, 1) == rows[:1]

    def trial(settings, latency, **more):
        return PipelineTrial(settings, 60.0, "candidate", latency, Measured(latency, latency, latency, **more))

    slow, fast = trial(asked.current, 0.055), trial(rows[0][1], 0.020)
    assert chosen(asked.goal, [slow, fast]) == (fast, True)
    assert chosen(asked.goal, [trial(asked.current, 0.07)])[1] is False
    assert chosen(asked.goal, [trial(asked.current, 0.01, valid=False)]) == (None, False)
