"""What monitoring knows of a repository: the models, what is promised of them, and how often anybody looks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds: what production has, and what a test shortens."""

    scrape: int = 15
    soon: int = 60  # for how long something must hold before anybody is told
    sustained: int = 300
    long: int = 900
    start: int = 300  # longest start of a server

    @property
    def window(self) -> int:
        """Of every rate: four scrapes, so that one that fails leaves enough."""
        return 4 * self.scrape


@dataclass(frozen=True)
class Watched:
    """`objectives` are (model, quantile, seconds), `batched` are (model, max_batch_size) of those that merge requests.

    `bounded` are (model, max_queue_size) of those whose queue has an end.
    `queue_target` is the mean wait, in seconds, at which there should be more servers.
    """

    name: str
    models: tuple[str, ...]
    objectives: tuple[tuple[str, str, float], ...]
    batched: tuple[tuple[str, int], ...]
    bounded: tuple[tuple[str, int], ...]
    gpus: bool
    queue_target: float
    timing: Timing


def span(seconds: int) -> str:
    """Return a duration as Prometheus writes it: 90s, 5m, 1h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
