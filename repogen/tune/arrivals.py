"""When simulated requests come: by the same words as the load generator's, and the same for all candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repogen.errors import RepogenError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Arrivals:
    """`text` as in `repogen bench --arrivals`: poisson, constant, burst(ON, OFF), ramp(PART, SECONDS), trace:FILE."""

    text: str = "poisson"

    def draw(self, rate: float, count: int, seed: int) -> Array:
        """Return `count` times in seconds at the mean rate. A trace is repeated, and stretched to the rate.

        Poisson and constant arrivals have the same pattern at every rate.
        """
        import numpy as np

        if rate <= 0 or count < 1:
            raise RepogenError(f"a load needs a rate and requests, not {rate:g}/s and {count}")
        if self.text == "constant":
            return np.arange(1, count + 1) / rate
        if self.text == "poisson":
            times: Array = np.cumsum(np.random.default_rng([seed, 0]).exponential(1.0, count)) / rate
            return times
        return self._scheduled(rate, count, seed)

    def _scheduled(self, rate: float, count: int, seed: int) -> Array:
        import numpy as np

        from repogen.load.arrivals import CLOSED, parse, read_trace, schedule

        how = parse(self.text)
        if how.kind == CLOSED:
            raise RepogenError(
                "a closed loop has no rate to tune for", hint="poisson, constant, burst(ON, OFF), trace:FILE"
            )
        if how.kind == "trace":
            from pathlib import Path

            return _repeated(read_trace(Path(how.file)).due * 1e-9, rate, count, where=how.file)
        blocks, total = [], 0
        for block in schedule(how, lambda: rate, seed):
            blocks.append(block.due)
            total += len(block.due)
            if total >= count:
                break
        return np.concatenate(blocks)[:count] * 1e-9


def _repeated(times: Array, rate: float, count: int, *, where: str) -> Array:
    import numpy as np

    gaps = np.diff(times)
    if not len(gaps) or gaps.mean() <= 0:
        raise RepogenError("a trace needs two different times at least", where=where)
    stretched: Array = np.cumsum(np.resize(gaps / gaps.mean(), count)) / rate
    return stretched
