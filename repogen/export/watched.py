"""What monitoring knows of a repository: the models, what is promised of them, and how often anybody looks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds. Everything follows from the scrape interval, so that a test can live faster than production."""

    scrape: int = 15
    start: int = 300  # longest start of a server

    @property
    def window(self) -> int:
        """Of every rate: four scrapes, so that one that fails leaves enough."""
        return 4 * self.scrape

    @property
    def soon(self) -> int:
        return 4 * self.scrape

    @property
    def sustained(self) -> int:
        return 20 * self.scrape

    @property
    def long(self) -> int:
        return 60 * self.scrape


@dataclass(frozen=True)
class Watched:
    """`objectives` are (model, quantile, seconds), `batched` are (model, max_batch_size) of those that merge requests.

    `queue_target` is the mean wait, in seconds, at which there should be more servers.
    """

    name: str
    models: tuple[str, ...]
    objectives: tuple[tuple[str, str, float], ...]
    batched: tuple[tuple[str, int], ...]
    gpus: bool
    queue_target: float
    timing: Timing


def span(seconds: int) -> str:
    """Return a duration as Prometheus writes it: 90s, 5m, 1h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
