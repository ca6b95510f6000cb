"""RG40x: batching, queues, priorities and the response cache."""

from collections.abc import Iterator
from typing import Any

from repogen.check.examples import python_model
from repogen.check.rule import Problem, Rule
from repogen.check.subject import Subject

_LONG_DELAY = 1_000_000
_DELAY = 1  # ModelQueuePolicy.DELAY


def _preferred(subject: Subject) -> Iterator[tuple[str, int]]:
    """Return (field, size) of each preferred batch size, of either scheduler."""
    config = subject.config
    for part, sizes in (
        ("dynamic_batching", config.dynamic_batching.preferred_batch_size),
        ("sequence_batching.oldest", config.sequence_batching.oldest.preferred_batch_size),
    ):
        for index, size in enumerate(sizes):
            yield f"{part}.preferred_batch_size[{index}]", size


def _not_positive(subject: Subject) -> Iterator[Problem]:
    for field, size in _preferred(subject):
        if size <= 0:
            yield Problem(f"preferred_batch_size {size} is not positive", field=field, hint="leave it out")


def _too_large(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    for field, size in _preferred(subject):
        if size > largest:
            hint = "leave preferred_batch_size out: the server then aims at max_batch_size"
            yield Problem(f"preferred_batch_size {size} is more than max_batch_size {largest}", field=field, hint=hint)


def _negative_maximum(subject: Subject) -> Iterator[Problem]:
    if subject.config.max_batch_size < 0:
        message = f"max_batch_size is {subject.config.max_batch_size}"
        yield Problem(message, field="max_batch_size", hint="0 is a model without batching")


def _without_batches(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if config.HasField("dynamic_batching") and config.max_batch_size == 0:
        yield Problem(
            "dynamic_batching does nothing where max_batch_size is 0",
            field="dynamic_batching",
            hint="give max_batch_size, or remove dynamic_batching",
        )


def _default_priority(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    if batching.priority_levels and not 1 <= batching.default_priority_level <= batching.priority_levels:
        yield Problem(
            f"default_priority_level is {batching.default_priority_level}, "
            f"and there are {batching.priority_levels} priority_levels",
            field="dynamic_batching.default_priority_level",
            hint=f"give one from 1 to {batching.priority_levels}",
        )


def _policy_level(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    for index, level in enumerate(batching.priority_queue_policy):
        if batching.priority_levels and not 1 <= level <= batching.priority_levels:
            field = f"dynamic_batching.priority_queue_policy[{index}]"
            yield Problem(f"there is no priority level {level}, only 1 to {batching.priority_levels}", field=field)


def _without_levels(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    if not batching.priority_levels:
        for part in ("default_priority_level", "priority_queue_policy"):
            if getattr(batching, part):
                field = f"dynamic_batching.{part}"
                yield Problem(f"{part} does nothing without priority_levels", field=field)


def _order_and_levels(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    if batching.preserve_ordering and batching.priority_levels > 1:
        message = f"preserve_ordering and {batching.priority_levels} priority_levels contradict each other"
        yield Problem(message, field="dynamic_batching.preserve_ordering", hint="keep one of the two")


def _order_and_delay(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    if not batching.preserve_ordering:
        return
    policies: list[tuple[str, Any]] = [("default_queue_policy", batching.default_queue_policy)]
    policies += [
        (f"priority_queue_policy[{index}]", policy)
        for index, policy in enumerate(batching.priority_queue_policy.values())
    ]
    for field, policy in policies:
        if policy.default_timeout_microseconds and policy.timeout_action == _DELAY:
            yield Problem(
                "a request that is late cannot be delayed where preserve_ordering keeps the order",
                field=f"dynamic_batching.{field}",
                hint="timeout_action: REJECT, or no preserve_ordering",
            )


def _long_delay(subject: Subject) -> Iterator[Problem]:
    batching = subject.config.dynamic_batching
    if batching.max_queue_delay_microseconds >= _LONG_DELAY:
        seconds = batching.max_queue_delay_microseconds / 1e6
        yield Problem(
            f"a request may wait {seconds:g} s for others",
            field="dynamic_batching.max_queue_delay_microseconds",
            hint="the unit is microseconds: 2000 is 2 ms",
        )


def _cache_of_sequences(subject: Subject) -> Iterator[Problem]:
    if subject.config.response_cache.enable and subject.config.HasField("sequence_batching"):
        yield Problem("responses of a sequence cannot be cached", field="response_cache", hint="remove response_cache")


def _cache_of_streams(subject: Subject) -> Iterator[Problem]:
    decoupled = subject.config.model_transaction_policy.decoupled
    if subject.config.response_cache.enable and decoupled:
        message = "responses of a decoupled model cannot be cached"
        yield Problem(message, field="response_cache", hint="remove response_cache")


def _no_cache(subject: Subject) -> Iterator[Problem]:
    if subject.config.response_cache.enable:
        message = "response_cache does nothing unless the server has a cache"
        yield Problem(message, field="response_cache", hint="start it with --cache-config=local,size=1048576")


RULES: tuple[Rule, ...] = (
    Rule(
        "RG401",
        "error",
        "max_batch_size is negative",
        "The server refuses the model.",
        _negative_maximum,
        bad=python_model(replaced={"size: 8": "size: -1"}),
        good=python_model(replaced={"size: 8": "size: 0"}),
    ),
    Rule(
        "RG402",
        "error",
        "A preferred batch size is not positive",
        "The server refuses the model.",
        _not_positive,
        bad=python_model("dynamic_batching { preferred_batch_size: [0] }"),
        good=python_model("dynamic_batching { preferred_batch_size: [4] }"),
    ),
    Rule(
        "RG403",
        "error",
        "A preferred batch size is above the maximum",
        "The server refuses the model; with max_batch_size 0 it refuses any preferred size.",
        _too_large,
        bad=python_model("dynamic_batching { preferred_batch_size: [16] }"),
        good=python_model("dynamic_batching { preferred_batch_size: [8] }"),
    ),
    Rule(
        "RG404",
        "warning",
        "Dynamic batching of a model without batching",
        "The server loads it, and every request runs alone.",
        _without_batches,
        bad=python_model("dynamic_batching { }", replaced={"size: 8": "size: 0"}),
        good=python_model("dynamic_batching { }"),
    ),
    Rule(
        "RG405",
        "error",
        "The default priority is none of the levels",
        "Levels count from 1, and one of them has to be the default.",
        _default_priority,
        bad=python_model("dynamic_batching { priority_levels: 2 }"),
        good=python_model("dynamic_batching { priority_levels: 2 default_priority_level: 2 }"),
    ),
    Rule(
        "RG406",
        "error",
        "A queue policy for a priority that does not exist",
        "The server refuses the model.",
        _policy_level,
        bad=python_model(
            "dynamic_batching { priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 2 value { max_queue_size: 9 } } }"
        ),
        good=python_model(
            "dynamic_batching { priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 1 value { max_queue_size: 9 } } }"
        ),
    ),
    Rule(
        "RG407",
        "error",
        "Order and priorities contradict each other",
        "preserve_ordering allows one level of priority.",
        _order_and_levels,
        bad=python_model("dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }"),
        good=python_model("dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }"),
    ),
    Rule(
        "RG408",
        "error",
        "Order and delayed requests contradict each other",
        "A request that ran out of time may be rejected, not put behind, where the order is kept.",
        _order_and_delay,
        bad=python_model(
            "dynamic_batching { preserve_ordering: true "
            "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9000 } }"
        ),
        good=python_model(
            "dynamic_batching { preserve_ordering: true "
            "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 9000 } }"
        ),
    ),
    Rule(
        "RG409",
        "warning",
        "Priorities without levels",
        "Without priority_levels there is one queue, and what is said of levels is ignored.",
        _without_levels,
        bad=python_model("dynamic_batching { default_priority_level: 1 }"),
        good=python_model("dynamic_batching { priority_levels: 2 default_priority_level: 1 }"),
    ),
    Rule(
        "RG410",
        "warning",
        "The queue delay is a second or more",
        "The unit is the microsecond, and the delay is paid by every request that finds no full batch.",
        _long_delay,
        bad=python_model("dynamic_batching { max_queue_delay_microseconds: 2000000 }"),
        good=python_model("dynamic_batching { max_queue_delay_microseconds: 2000 }"),
    ),
    Rule(
        "RG411",
        "error",
        "A cache for sequences",
        "The server refuses the model.",
        _cache_of_sequences,
        bad=python_model("response_cache { enable: true } sequence_batching { }"),
        good=python_model("response_cache { enable: true } dynamic_batching { }"),
    ),
    Rule(
        "RG412",
        "error",
        "A cache for a decoupled model",
        "The server refuses the model.",
        _cache_of_streams,
        bad=python_model("response_cache { enable: true } model_transaction_policy { decoupled: true }"),
        good=python_model("model_transaction_policy { decoupled: true }"),
    ),
    Rule(
        "RG413",
        "warning",
        "A cache that the server may not have",
        "Caching has to be asked for in the server's own options too. Without that, the config is accepted in silence.",
        _no_cache,
        bad=python_model("response_cache { enable: true }"),
        good=python_model(),
    ),
)
