"""The fields of ModelConfig that older servers do not know, and refuse the whole file for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from repogen.errors import ManifestError
from repogen.releases import Release


@dataclass(frozen=True)
class NewField:
    """`since` is the first Triton that knows the field; `confidence` is `tried` where 2.51 itself was asked."""

    message: str
    name: str
    since: tuple[int, int]
    confidence: str


NEW_FIELDS = (
    NewField("ModelConfig", "model_metrics", (2, 54), "inferred; tried: 2.51 refuses it"),
    NewField("ModelEnsembling", "max_inflight_requests", (2, 64), "inferred; tried: 2.51 refuses it"),
    NewField("ModelSequenceBatching.State", "use_growable_memory", (2, 50), "inferred; tried: 2.51 knows it"),
    NewField("ModelInput", "is_non_linear_format_io", (2, 48), "inferred; tried: 2.51 knows it"),
    NewField("ModelOutput", "is_non_linear_format_io", (2, 48), "inferred; tried: 2.51 knows it"),
)
_BY_FIELD = {(field.message, field.name): field for field in NEW_FIELDS}


def set_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, str, Any, Any]]:
    """Return (path, message name, field descriptor, value) of every set field, however deep."""
    kind = message.DESCRIPTOR.full_name.removeprefix("inference.")
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        yield path, kind, field, value
        for index, item in enumerate(_messages(field, value)):
            inner = path if not field.is_repeated else f"{path}[{index}]"
            yield from set_fields(item, f"{inner}.")


def new_field(message: str, name: str) -> NewField | None:
    return _BY_FIELD.get((message, name))


def _messages(field: Any, value: Any) -> list[Any]:
    if field.message_type is None:
        return []
    if field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"].message_type
        return list(value.values()) if inner is not None else []
    return list(value) if field.is_repeated else [value]


def refuse_newer_fields(config: Any, release: Release, where: str) -> None:
    """Raise ManifestError for the first set field of `config` that the Triton of `release` does not know."""
    major, minor, *_ = (int(part) for part in release.triton.split("."))
    for path, kind, field, _ in set_fields(config):
        newer = new_field(kind, field.name)
        if newer is not None and newer.since > (major, minor):
            since = ".".join(map(str, newer.since))
            message = f"{path} needs Triton {since}, and release {release.ngc} is {release.triton}"
            raise ManifestError(message, where=where, hint=f"remove it, or pin a newer release ({newer.confidence})")
