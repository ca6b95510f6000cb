"""What is tuned: one setting of Triton's batcher and instances."""

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class QueuePolicy:
    """What happens to requests that wait; times in microseconds, Triton's unit. Any of it ends prefetching."""

    timeout: int = 0
    action: str = "reject"  # or "delay": served after the level's others
    max_size: int = 0
    allow_override: bool = False

    @property
    def neutral(self) -> bool:
        return not (self.timeout or self.max_size or self.allow_override)


@dataclass(frozen=True, order=True)
class Setting:
    """One candidate. `batching` False: no dynamic batching, each request is executed by itself.

    `free_axes`: an input has axes of any size, so Triton compares the shapes of requests, and looks at every arrival.
    """

    max_batch: int
    instances: int = 1
    delay: int = 0  # microseconds
    preferred: tuple[int, ...] = ()
    batching: bool = True
    preserve_ordering: bool = False
    free_axes: bool = False
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_levels: int = 0
    level_policies: tuple[tuple[int, QueuePolicy], ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The preferred sizes as Triton has them: without any, the maximum is the only one."""
        return tuple(sorted(set(self.preferred))) or (self.max_batch,)

    @property
    def prefetches(self) -> bool:
        """Whether batches are formed ahead, up to two for each instance, and not only when one waits for work."""
        return self.policy.neutral and not self.priority_levels

    def words(self) -> str:
        """Return the setting for people: `delay 2ms, preferred 4,8, 2 instances, batches up to 16`."""
        from repogen.units import duration_text

        count = f"{self.instances} instance{'s' if self.instances > 1 else ''}"
        if not self.batching:
            return f"no batching, {count}"
        preferred = f", preferred {','.join(map(str, self.preferred))}" if self.preferred else ""
        return f"delay {duration_text(self.delay)}{preferred}, {count}, batches up to {self.max_batch}"
