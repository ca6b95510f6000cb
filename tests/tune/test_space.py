from dataclasses import replace

from repogen.tune.setting import QueuePolicy, Setting
from repogen.tune.space import candidates, triton_default

BASE = Setting(16, 2, 3000, preserve_ordering=True, free_axes=True, policy=QueuePolicy(5000))


def test_the_grid_is_finite_ordered_and_without_repetition():
    grid = candidates(BASE, instances=(1, 2))
    assert len(grid) == len(set(grid)) == 11 * (2 + 3 + 3) * 2 + 2  # batches of 4 have one preferred size less
    assert list(grid) == sorted(grid)
    assert candidates(BASE, instances=(1, 2)) == grid


def test_delays_leave_room_for_the_work():
    grid = candidates(BASE, instances=(1, 1), slo=0.004)
    assert {setting.delay for setting in grid} == {0, 100, 200, 500, 1000, 2000}


def test_what_is_not_tuned_stays():
    same = [
        replace(s, max_batch=16, instances=2, delay=3000, preferred=(), batching=True)
        for s in candidates(BASE, instances=(1, 2))
    ]
    assert set(same) == {BASE}


def test_a_model_of_batch_two_has_no_preferred_sizes():
    grid = candidates(Setting(2), instances=(1, 1))
    assert {(setting.max_batch, setting.preferred) for setting in grid} == {(2, ())}
    assert any(not setting.batching for setting in grid)


def test_tritons_default_is_of_one_instance_without_a_delay():
    assert triton_default(BASE) == Setting(16, free_axes=True)


def test_settings_in_words():
    assert Setting(16, 2, 500, (4, 8)).words() == "delay 500us, preferred 4,8, 2 instances, batches up to 16"
    assert Setting(16, batching=False).words() == "no batching, 1 instance"
