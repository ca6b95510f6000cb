"""A pipeline predicted: the batcher's simulation once for each step, the answers of one being the requests of the next.

Pure. Steps that wait for the same tensors run side by side; an answer is out when the last step is done. What passes
between client and server and from step to step is one gap at the end: it delays an answer and no other request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repogen.errors import Refused
from repogen.tune.batcher import Workload, simulate
from repogen.tune.service import Service
from repogen.tune.setting import Setting

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stage:
    """A step: its model, the steps that it waits for, and its tensors by the names that they have in the ensemble."""

    model: str
    after: tuple[int, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class Traffic:
    """What each request of the pool is to one step: how many samples, which shape; and how long each shape takes.

    `weights` are parts of the mean. A pool of equal requests has one shape.
    """

    sizes: tuple[int, ...] = (1,)
    shapes: tuple[int, ...] = (0,)
    weights: tuple[float, ...] = (1.0,)

    @property
    def uniform(self) -> bool:
        return set(self.sizes) == {1} and len(self.weights) == 1

    @property
    def mean_size(self) -> float:
        return sum(self.sizes) / len(self.sizes)


@dataclass(frozen=True)
class Level:
    """How the steps are at one rate: `scales` times as long as alone, each; cycles differ by `spread`."""

    rate: float
    scales: tuple[float, ...]
    spread: float


@dataclass(frozen=True)
class Pipeline:
    """What is known of an ensemble: its steps, what they have to do, and how long each takes alone.

    `levels` by rising rate; `gap`: quantiles, as (probability, seconds).
    """

    stages: tuple[Stage, ...]
    traffic: tuple[Traffic, ...]
    services: tuple[Mapping[int, Service], ...]  # of each step, by the number of its instances
    gap: tuple[tuple[float, float], ...]
    levels: tuple[Level, ...] = ()

    def at(self, rate: float) -> Level:
        """Return how the steps are at a rate: on the line nearest to all levels, since one run alone is chance.

        The line may fall: what is rarely asked finds its processor asleep.
        """
        import numpy as np

        if not self.levels:
            return Level(rate, (1.0,) * len(self.stages), 0.0)
        rates = np.array([level.rate for level in self.levels])
        spread = sum(level.spread for level in self.levels) / len(self.levels)
        near = min(rate, 1.3 * rates[-1])
        scales = []
        for column in zip(*(level.scales for level in self.levels), strict=True):
            middle, apart = sum(column) / len(column), rates - rates.mean()
            slope = float(apart @ np.array(column)) / (float(apart @ apart) or 1.0)
            scales.append(max(middle + slope * (near - float(rates.mean())), 0.5))
        return Level(rate, tuple(scales), spread)

    def latencies(
        self,
        settings: Sequence[Setting],
        times: Array,
        rate: float,
        *,
        seed: int = 0,
        first: int = 0,
        level: Level | None = None,
    ) -> Array:
        """Return what clients see whose requests come at `times`; `first`: the place of the first one in the pool."""
        import numpy as np

        known = level or self.at(rate)
        done: list[Array] = []
        for number, stage in enumerate(self.stages):
            came = np.maximum.reduce([done[before] for before in stage.after]) if stage.after else times
            done.append(self._finished(number, settings[number], came, known, seed, first))
        answered: Array = np.maximum.reduce(done) - times
        probabilities, seconds = zip(*self.gap, strict=True)
        drawn = np.random.default_rng([seed, 2]).uniform(size=len(times))
        return answered + np.interp(drawn, probabilities, seconds)

    def _finished(self, number: int, setting: Setting, came: Array, level: Level, seed: int, first: int) -> Array:
        """Return when one step has answered the requests that came to it."""
        import numpy as np

        order = np.argsort(came, kind="stable")
        traffic = self.traffic[number]
        service = replace(self.service(number, setting.instances), scale=level.scales[number], spread=level.spread)
        cycles = service.cycles(setting.max_batch, traffic.mean_size)
        jitter = service.jitter(seed * len(self.stages) + number)
        if traffic.uniform:
            outcome = simulate(setting, Workload(came[order].tolist()), cycles, jitter)
        else:
            place = (first + order) % len(traffic.sizes)
            workload = Workload(
                came[order].tolist(),
                sizes=np.array(traffic.sizes)[place].tolist(),
                shapes=np.array(traffic.shapes)[place].tolist(),
            )
            tables = [[seconds * weight for seconds in cycles] for weight in traffic.weights]
            outcome = simulate(setting, workload, tables, jitter)
        finished = np.empty_like(came)
        finished[order] = came[order] + np.where(np.isnan(outcome.latencies), math.inf, outcome.latencies)
        return finished

    def service(self, number: int, instances: int) -> Service:
        """Return how long a step takes with so many instances: as tried, or as with the nearest number that was."""
        known = self.services[number]
        return known[min(known, key=lambda count: (abs(count - instances), count))]


def stages_of(config: Any) -> tuple[Stage, ...]:
    """Return an ensemble's steps in an order in which each comes after those that it waits for."""
    steps = list(config.ensemble_scheduling.step)
    names = [step.model_name for step in steps]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"{config.name} calls {twice} twice: its steps would share one queue, which is not simulated")
    ready = {tensor.name for tensor in config.input}
    makers: dict[str, int] = {}
    ordered: list[Stage] = []
    while steps:
        step = next((one for one in steps if ready.issuperset(one.input_map.values())), None)
        if step is None:
            raise Refused(f"the steps of {config.name} wait for one another")
        after = sorted({makers[name] for name in step.input_map.values() if name in makers})
        makers |= dict.fromkeys(step.output_map.values(), len(ordered))
        ready |= set(step.output_map.values())
        ordered.append(Stage(step.model_name, tuple(after), dict(step.input_map), dict(step.output_map)))
        steps.remove(step)
    return tuple(ordered)
