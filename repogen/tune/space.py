"""The settings that are tried: pure, finite, in a fixed order."""

from dataclasses import replace

from repogen.tune.setting import Setting

_DELAYS = (0, 100, 200, 500, 1000, 2000, 3000, 5000, 8000, 12_000, 20_000)
_SMALLEST_PART = 4  # batches are tried up to the model's maximum, its half and its quarter


def triton_default(base: Setting) -> Setting:
    """Return what Triton does where a config says `dynamic_batching {}` and nothing of instances."""
    return Setting(base.max_batch, free_axes=base.free_axes)


def candidates(base: Setting, *, instances: tuple[int, int], slo: float | None = None) -> tuple[Setting, ...]:
    """Return every setting to simulate: what is not tuned (queue policies, ordering, priorities) is as in `base`.

    A delay of more than half of the objective cannot leave room for the work itself.
    """
    longest = min(_DELAYS[-1], slo * 0.5e6 if slo else _DELAYS[-1])
    delays = [delay for delay in _DELAYS if delay <= longest]
    found = {
        replace(base, max_batch=size, instances=count, delay=delay, preferred=preferred, batching=True)
        for size in _maxima(base.max_batch)
        for count in range(instances[0], instances[1] + 1)
        for delay in delays
        for preferred in _preferred(size)
    }
    alone = {
        replace(base, instances=count, delay=0, preferred=(), batching=False)
        for count in range(instances[0], instances[1] + 1)
    }
    return tuple(sorted(found | alone))


def _maxima(largest: int) -> list[int]:
    sizes = {largest, *(largest // part for part in range(2, _SMALLEST_PART + 1, 2))}
    return sorted(size for size in sizes if size > 1 or size == largest)


def _preferred(max_batch: int) -> list[tuple[int, ...]]:
    """Return no preferred size, a half of the maximum, and a quarter with a half."""
    half, quarter = max_batch // 2, max_batch // 4
    return [(), *([(half,)] if half > 1 else []), *([(quarter, half)] if quarter > 1 else [])]
