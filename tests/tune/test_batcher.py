import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repogen.tune.batcher import Workload, closed_loop, simulate
from repogen.tune.scheduler import Scheduler
from repogen.tune.setting import QueuePolicy, Setting
from tests.tune.reference import World

MS = 1e-3


def random_case(seed, *, plain):
    """A setting, a workload and service times; times are real numbers, so that no two events coincide."""
    rng = random.Random(seed)
    count, span = rng.randint(1, 60), rng.choice([0.02, 0.1, 1.0])
    max_batch = rng.randint(2, 12)
    setting = Setting(
        max_batch,
        rng.randint(1, 3),
        delay=rng.choice([0, 0, 500, 2000, 5000]),
        preferred=tuple(rng.sample(range(1, max_batch + 1), rng.randint(0, min(3, max_batch)))),
        free_axes=rng.random() < 0.3,
    )
    times = sorted(rng.uniform(0, span) for _ in range(count))
    sizes = shapes = priorities = ()
    if not plain:
        sizes = [rng.randint(1, min(4, max_batch)) for _ in times] if rng.random() < 0.5 else ()
        shapes = [rng.choice([0, 0, 1]) for _ in times] if rng.random() < 0.4 else ()
        setting = replace(setting, free_axes=bool(shapes) or setting.free_axes)
        if rng.random() < 0.5:
            policy = QueuePolicy(rng.choice([0, 1500, 6000]), rng.choice(["reject", "delay"]), rng.choice([0, 3, 10]))
            setting = replace(setting, policy=policy)
        if rng.random() < 0.4:
            levels = ((1, QueuePolicy(rng.choice([0, 3000]))),)
            setting = replace(setting, priority_levels=2, level_policies=levels)
            priorities = [rng.randint(1, 2) for _ in times]
    cycles = [[0.0, *(rng.uniform(1, 8) * MS + b * rng.uniform(0, 1) * MS for b in range(max_batch))] for _ in "ab"]
    jitter = [rng.uniform(0.8, 1.3) for _ in range(7)]
    return setting, Workload(times, sizes, shapes, priorities), cycles, jitter


def by_reference(setting, workload, cycles, jitter):
    rows = [
        {"number": r.number, "time": r.time, "size": r.size, "shape": r.shape, "priority": r.priority}
        for r in workload.requests()
    ]
    world = World(setting, rows, cycles, jitter).run()
    latencies = np.full(len(rows), np.nan)
    for finish, numbers in world.executed:
        for number in numbers:
            latencies[number] = finish - rows[number]["time"]
    return latencies, [sorted(numbers) for _, numbers in world.executed], sorted(world.rejected)


def members(outcome):
    return [np.flatnonzero(outcome.execution_of == index).tolist() for index in range(len(outcome.sizes))]


@pytest.mark.parametrize("block", range(8))
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "everything"])
def test_equals_the_reference(block, plain):
    for seed in range(block * 100, block * 100 + 100):
        case = random_case(seed, plain=plain)
        outcome = simulate(*case)
        latencies, executed, rejected = by_reference(*case)
        np.testing.assert_array_equal(outcome.latencies, latencies, err_msg=f"{seed}: {case[0]}")
        assert members(outcome) == executed, f"{seed}: {case[0]}"
        assert np.flatnonzero(outcome.execution_of < 0).tolist() == rejected


def test_the_random_cases_reach_what_they_are_for():
    cases = [random_case(seed, plain=False) for seed in range(300)]
    assert sum(simulate(*case).rejected > 0 for case in cases) > 20
    assert sum(case[0].policy.action == "delay" and case[0].policy.timeout > 0 for case in cases) > 20
    assert sum(bool(case[1].shapes) and bool(case[1].sizes) for case in cases) > 20


@settings(max_examples=100, deadline=None)
@given(st.integers(1000, 10**9), st.booleans())
def test_every_request_is_answered_once_and_no_batch_is_too_large(seed, plain):
    setting, workload, cycles, jitter = random_case(seed, plain=plain)
    outcome = simulate(setting, workload, cycles, jitter)
    sizes = np.array(workload.sizes or [1] * len(workload.times))
    answered = outcome.execution_of >= 0
    assert np.isnan(outcome.latencies).tolist() == (~answered).tolist()
    assert (outcome.latencies[answered] > 0).all()
    assert int(outcome.sizes.sum()) == int(sizes[answered].sum())
    assert outcome.sizes.max(initial=0) <= setting.max_batch
    assert outcome.rejected == 0 or setting.policy != QueuePolicy() or setting.level_policies


@settings(max_examples=60, deadline=None)
@given(st.integers(1000, 10**9))
def test_first_come_first_served_without_priorities(seed):
    setting, workload, cycles, jitter = random_case(seed, plain=True)
    outcome = simulate(setting, workload, cycles, jitter)
    assert (np.diff(outcome.execution_of) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1000, 10**9))
def test_ordered_answers_come_in_order_and_never_earlier(seed):
    setting, workload, cycles, jitter = random_case(seed, plain=True)
    free = simulate(setting, workload, cycles, jitter)
    held = simulate(replace(setting, preserve_ordering=True), workload, cycles, jitter)
    times = np.array(workload.times)
    assert (np.diff(held.latencies + times) > -1e-12).all()
    assert (held.latencies >= free.latencies).all()


def test_without_a_delay_nothing_waits_for_an_idle_instance():
    times = [0.0, 0.1, 0.2, 0.2001]
    outcome = simulate(Setting(8, 2), Workload(times), [0, *[0.01] * 8])
    assert outcome.latencies == pytest.approx([0.01] * 4)


def test_with_a_delay_an_idle_instance_waits_for_all_of_it():
    outcome = simulate(Setting(8, 2, delay=2000), Workload([0.0, 0.0005]), [0, *[0.01] * 8])
    assert outcome.latencies == pytest.approx([0.012, 0.0115])
    assert outcome.histogram == {2: 1}


def test_a_preferred_size_ends_the_wait():
    outcome = simulate(Setting(8, 1, delay=5000, preferred=(2,)), Workload([0.0, 0.001]), [0, *[0.01] * 8])
    assert outcome.latencies == pytest.approx([0.011, 0.010])


def test_a_waiting_batch_grows_while_the_instance_is_busy():
    times = [0.0, 0.001, 0.002, 0.003]
    outcome = simulate(Setting(8, 1), Workload(times), [0, *[0.01] * 8])
    assert outcome.histogram == {1: 1, 3: 1}


def test_a_batch_sent_by_the_timer_does_not_grow():
    """Why a small delay costs throughput: what the timer sent takes no later arrivals, though the instance is busy."""
    times, cycles = [0.0, 0.0101, 0.0102, 0.0103, 0.0104], [0, 0.1, *[0.01] * 7]
    assert simulate(Setting(8, 1, delay=50), Workload(times), cycles).sizes.tolist() == [1, 1, 3]
    assert simulate(Setting(8, 1), Workload(times), cycles).sizes.tolist() == [1, 4]


def test_free_axes_make_the_batcher_look_at_every_arrival():
    times, cycles = [0.0, 0.0101, 0.0102, 0.0103, 0.0104], [0, 0.1, *[0.01] * 7]
    outcome = simulate(Setting(8, 1, delay=50, free_axes=True), Workload(times), cycles)
    assert outcome.sizes.tolist() == [1, 4]


def test_a_policy_forms_batches_only_when_an_instance_waits():
    times, cycles = [0.0, 0.001, 0.0011, 0.002], [0, *[0.01] * 4]
    ahead = simulate(Setting(4, 1, preferred=(2,)), Workload(times), cycles)
    assert ahead.sizes.tolist() == [1, 2, 1]  # the batch of two was closed while the instance was busy
    policy = QueuePolicy(timeout=10**9)
    just_in_time = simulate(Setting(4, 1, policy=policy), Workload(times), cycles)
    assert just_in_time.sizes.tolist() == [1, 3]


def test_a_stale_wish_for_a_batch_leaves_a_request_to_the_regular_look():
    """All that waited has expired, the preferred size is still waited for: Triton looks again after 0.5 s."""
    setting = Setting(4, 1, delay=10_000, preferred=(3,), policy=QueuePolicy(timeout=1000, action="delay"))
    rejecting = replace(setting, policy=QueuePolicy(timeout=1000))
    assert simulate(rejecting, Workload([0.0, 0.1]), [0, *[0.01] * 4]).rejected == 2
    assert simulate(setting, Workload([0.0]), [0, *[0.01] * 4]).latencies[0] == pytest.approx(0.02)


def test_a_timeout_rejects_what_waited_too_long():
    setting = Setting(1, 1, policy=QueuePolicy(timeout=5000))
    outcome = simulate(setting, Workload([0.0, 0.001, 0.008]), [0, 0.01])
    assert outcome.execution_of.tolist() == [0, -1, 1]


def test_a_full_queue_rejects():
    setting = Setting(1, 1, policy=QueuePolicy(max_size=1))
    outcome = simulate(setting, Workload([0.0, 0.001, 0.002, 0.011]), [0, 0.01])
    assert outcome.execution_of.tolist() == [0, 1, -1, 2]


def test_priorities_overtake():
    setting = Setting(1, 1, priority_levels=2)
    outcome = simulate(setting, Workload([0.0, 0.001, 0.002], priorities=[2, 2, 1]), [0, 0.01])
    assert outcome.execution_of.tolist() == [0, 2, 1]


def test_shapes_never_merge():
    setting = Setting(8, 1, free_axes=True)
    outcome = simulate(setting, Workload([0.0, 0.001, 0.002, 0.003], shapes=[0, 1, 0, 0]), [[0, *[0.01] * 8]] * 2)
    assert members(outcome) == [[0], [1], [2, 3]]


def test_one_server_without_batching_is_lindleys_recursion():
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.01, 2000))
    jitter = rng.uniform(0.5, 1.5, 2000).tolist()
    outcome = simulate(Setting(1, 1, batching=False), Workload(times.tolist()), [0, 0.008], jitter)
    wait, waits = 0.0, []
    for gap, factor in zip(np.diff(times, append=np.inf), jitter, strict=True):
        waits.append(wait)
        wait = max(0.0, wait + 0.008 * factor - gap)
    np.testing.assert_allclose(outcome.latencies, np.array(waits) + 0.008 * np.array(jitter), atol=1e-9)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_unlimited_batches_meet_inoues_bound(load):
    """Poisson arrivals, service alpha*b + tau0, one server, no delay: mean latency within a few per cent of phi1."""
    alpha, tau = 0.1438e-3, 1.8874e-3
    rate = load / alpha
    times = np.cumsum(np.random.default_rng(5).exponential(1 / rate, 120_000)).tolist()
    cycles = [0.0, *(alpha * b + tau for b in range(1, 513))]
    seen = simulate(Setting(512, 1), Workload(times), cycles)
    bound = 1.5 * tau / (1 - load) + alpha / 2 * (load + 2) / (1 - load**2)
    assert seen.latencies.mean() == pytest.approx(bound, rel=0.04)


def test_a_closed_loop_keeps_its_clients():
    """Two clients, no batching, one instance: the second always waits for the first."""
    outcome = closed_loop(Setting(1, 1, batching=False), 2, 100, [0, 0.01], gaps=[0.002])
    assert outcome.latencies[10:].max() == pytest.approx(0.018)
    assert outcome.seconds == pytest.approx(1.0)
    alone = closed_loop(Setting(4, 1, delay=1000), 1, 50, [0, *[0.01] * 4], gaps=[0.002])
    assert alone.latencies == pytest.approx([0.011] * 50)


def test_both_paths_agree_on_long_runs():
    rng = np.random.default_rng(11)
    times = np.cumsum(rng.exponential(1 / 900, 4000)).tolist()
    jitter = rng.lognormal(0, 0.1, 512).tolist()
    cycles = [0.0, *(0.002 + 0.00028 * b for b in range(1, 17))]
    for setting in (
        Setting(16),
        Setting(16, 2, 2000),
        Setting(16, 1, 5000, (4, 8)),
        Setting(16, 3, 1000, free_axes=True),
    ):
        scheduler = Scheduler(setting, [cycles], jitter)
        scheduler.run(Workload(times).requests())
        slow = [len(requests) for _, _, requests in scheduler.executions]
        assert simulate(setting, Workload(times), cycles, jitter).sizes.tolist() == slow
