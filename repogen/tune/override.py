"""A setting on a live server: read from its config, put into it by the load call, and taken back.

Triton takes a whole config with the load call and serves it at once, no request lost and no file touched. A later
plain load does not bring the files' config back: only loading the original as an override does.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from repogen.embedded import THREADS
from repogen.errors import Refused, ServerError
from repogen.tune.journal import Journal
from repogen.tune.setting import QueuePolicy, Setting

_ACTIONS = {0: "reject", 1: "delay"}
_MERGING = 2  # the least max_batch_size with which requests are merged


class Server(Protocol):
    """As much of `repogen.triton.Client` as trials need."""

    url: str

    def config(self, model: str) -> Any: ...
    def load(self, name: str, config_json: str | None = None) -> None: ...


def setting_of(config: Any) -> Setting:
    """Return the setting that a live `ModelConfig` has. Refuses models that have no dynamic batcher to tune."""
    group = _only_group(config)
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
        raise Refused(f"{config.name} has another scheduler than the dynamic batcher: there is nothing to tune")
    if config.max_batch_size < 2:  # noqa: PLR2004 - one alone is no batch
        raise Refused(
            f"{config.name} has max_batch_size {config.max_batch_size}: requests are never merged",
            hint="a model that can be batched may say more",
        )
    said = config.dynamic_batching
    preferred = tuple(said.preferred_batch_size)
    return Setting(
        max_batch=config.max_batch_size,
        instances=_count(group),
        delay=said.max_queue_delay_microseconds,
        preferred=() if preferred == (config.max_batch_size,) else preferred,  # Triton's own, where none is given
        batching=config.HasField("dynamic_batching"),
        preserve_ordering=said.preserve_ordering,
        free_axes=any(size < 0 for tensor in config.input if not tensor.allow_ragged_batch for size in tensor.dims),
        policy=_policy(said.default_queue_policy),
        priority_levels=said.priority_levels,
        level_policies=tuple((level, _policy(policy)) for level, policy in sorted(said.priority_queue_policy.items())),
    )


def with_setting(config: Any, setting: Setting) -> Any:
    """Return a copy of `config` that has the setting; its queue policies, priorities and ordering stay."""
    changed = type(config)()
    changed.CopyFrom(config)
    group = _only_group(changed)
    before, group.count = group.count, max(setting.instances // max(len(group.gpus), 1), 1)
    if threads := changed.parameters[THREADS].string_value if THREADS in changed.parameters else "":
        changed.parameters[THREADS].string_value = str(max(int(threads) * before // group.count, 1))
    changed.max_batch_size = setting.max_batch
    if not setting.batching:
        changed.ClearField("dynamic_batching")
        return changed
    changed.dynamic_batching.SetInParent()
    changed.dynamic_batching.max_queue_delay_microseconds = setting.delay
    del changed.dynamic_batching.preferred_batch_size[:]
    changed.dynamic_batching.preferred_batch_size.extend(setting.preferred)
    return changed


def setting_of_step(config: Any) -> Setting:
    """Return the same for a step of a pipeline, which need not merge requests: then it is its instances."""
    if config.max_batch_size >= _MERGING or config.HasField("ensemble_scheduling"):
        return setting_of(config)
    return Setting(max_batch=1, instances=sum(_count(group) for group in config.instance_group) or 1, batching=False)


def with_setting_of_step(config: Any, setting: Setting) -> Any:
    """Return a copy of a step's config that has the setting."""
    if config.max_batch_size >= _MERGING:
        return with_setting(config, setting)
    changed = type(config)()
    changed.CopyFrom(config)
    if setting.instances != setting_of_step(config).instances:
        group = _only_group(changed)
        group.count = max(setting.instances // max(len(group.gpus), 1), 1)
    return changed


def as_json(config: Any) -> str:
    """Return a config as the load call takes it."""
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(config, preserving_proto_field_name=True))


def put(server: Server, config: Any) -> None:
    """Let the server run `config`, and prove that it does."""
    server.load(config.name, as_json(config))
    found, wanted = setting_of_step(server.config(config.name)), setting_of_step(config)
    # Triton may write the preferred size down that it uses where none was given.
    if replace(found, preferred=found.sizes) != replace(wanted, preferred=wanted.sizes):
        raise ServerError(
            f"{config.name} does not run the config that it was loaded with",
            hint="is the server's model control mode explicit, and does nobody else load models?",
        )


@contextmanager
def borrowed(server: Server, model: str, journal: Journal) -> Iterator[Any]:
    """Yield the live config; whatever the block loads, that config runs again after it.

    It is on the disk before the block begins. An interrupt ends the block; a second one ends the process at once,
    and then the next run puts the config back.
    """
    with all_borrowed(server, {model: journal}) as originals:
        yield originals[model]


@contextmanager
def all_borrowed(server: Server, journals: Mapping[str, Journal]) -> Iterator[Mapping[str, Any]]:
    """Do the same for several models, each with the journal of its own: all of them are put back, or said not to be."""
    for journal in journals.values():
        give_back_left(server, journal)
    originals = {model: server.config(model) for model in journals}
    for model, journal in journals.items():
        journal.add("borrowed", url=server.url, model=model, config=json.loads(as_json(originals[model])))
    with _interruptible() as interrupts:
        try:
            yield originals
        finally:
            interrupts.deferred = True
            with ExitStack() as stack:  # one that cannot be put back keeps none of the others
                for model, journal in journals.items():
                    stack.callback(_give_back, server, originals[model], journal)
    if interrupts.late:
        raise KeyboardInterrupt


def give_back_left(server: Server, journal: Journal, *, live: Callable[[str], bool] | None = None) -> bool:
    """Put back what a run that was killed left behind; return whether there was anything to put back.

    A server that is gone, or that has loaded the model anew since, needs nothing of it.
    """
    left = journal.borrowed()
    if left is None:
        return False
    if left["url"] != server.url:
        if not (live or _live)(left["url"]):
            journal.add("returned", url=left["url"], model=left["model"], gone=True)
            return False
        raise Refused(
            f"an earlier run left {left['model']} at {left['url']} with a config of its trials",
            where=str(journal.path),
            hint=f"run tune with --url {left['url']} first",
        )
    original = _parsed(left["config"])
    if not _is_trial_of(server.config(original.name), original):
        journal.add("returned", url=left["url"], model=left["model"], gone=True)
        return False
    _give_back(server, original, journal)
    return True


def _is_trial_of(config: Any, original: Any) -> bool:
    """Return whether a live config is the original with another setting, and not one that came after it."""
    bare = replace(setting_of_step(original), batching=False)  # the batcher may be changed, or taken out
    return _same(with_setting_of_step(config, bare), with_setting_of_step(original, bare))


def _live(url: str) -> bool:
    from repogen.triton import Client

    with Client(url, deadline=3.0) as client:
        return client.live()


def _give_back(server: Server, original: Any, journal: Journal) -> None:
    if not _same(server.config(original.name), original):
        server.load(original.name, as_json(original))
        if not _same(server.config(original.name), original):
            raise ServerError(
                f"{original.name} does not run its own config again after the trials",
                where=str(journal.path),
                hint="restart the server; `repogen tune` tries again, too",
            )
    journal.add("returned", url=server.url, model=original.name)


@dataclass
class _Interrupts:
    """`deferred`: the first signal waits until the config is back; `late`: one did."""

    count: int = 0
    deferred: bool = False
    late: bool = False


@contextmanager
def _interruptible() -> Iterator[_Interrupts]:
    """Turn signals into KeyboardInterrupt, once; the second one ends the process at once."""
    state = _Interrupts()

    def stop(number: int, _frame: object) -> None:
        state.count += 1
        if state.count > 1:
            os._exit(128 + number)
        if state.deferred:
            state.late = True
        else:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parsed(told: Mapping[str, Any]) -> Any:
    from google.protobuf.json_format import ParseDict

    from repogen.pbtxt import schema

    return ParseDict(dict(told), schema().ModelConfig(), ignore_unknown_fields=True)


def _same(one: Any, other: Any) -> bool:
    return bool(one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True))


def _count(group: Any) -> int:
    return int(group.count * max(len(group.gpus), 1))


def _only_group(config: Any) -> Any:
    if len(config.instance_group) != 1:
        raise Refused(
            f"{config.name} has {len(config.instance_group)} instance groups, and only the count of one can be tuned",
            hint="give it one group",
        )
    return config.instance_group[0]


def _policy(said: Any) -> QueuePolicy:
    return QueuePolicy(
        said.default_timeout_microseconds,
        _ACTIONS.get(said.timeout_action, "reject"),
        said.max_queue_size,
        said.allow_timeout_override,
    )
