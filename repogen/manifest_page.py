"""Print docs/manifest.md: `python -m repogen.manifest_page > docs/manifest.md`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from repogen.manifest import ManifestSchema, ModelEntry, ModelSettings
from repogen.settings_schema import BuildEntry, Strict
from repogen.units import duration_text

Schema = Mapping[str, Any]
Row = Mapping[str, Any]

_HEAD = """\
# The manifest, key by key

Made from the schema by `python -m repogen.manifest_page`; `repogen schema` prints the same for editors, as JSON schema.

Keys that are not here are refused, and so are keys that stand twice; the message names file, line and what is close.
YAML is read as version 1.2 says (`no` is text). A duration is a number with `us`, `ms`, `s`, `m` or `h`, a size one
with `B`, `KiB`, `MiB`, `GiB`, `TiB` (or `KB`, `MB`, `GB`). `${NAME}` stands for the environment's value in `source`,
`repository` and `build_cache`, and is never printed. Paths are relative to the manifest's folder.
`defaults` lie under each model's entry, mapping by mapping; a list is replaced as a whole.
"""
# What several entries share is told once, under the name by which readers look for it.
_TITLES: Mapping[type[BaseModel], str] = {
    ManifestSchema: "Top level",
    ModelEntry: "`models.NAME`",
    ModelSettings: "`models.NAME` and `defaults`",
    BuildEntry: "`models.NAME` and `defaults`: how a TensorRT plan is built",
}
_NONE = "none"
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def manifest_page() -> str:
    """Return the page of every key."""
    return "\n".join(_lines()).rstrip() + "\n"


def sections() -> Iterator[tuple[str, type[BaseModel], Schema]]:
    """Yield each mapping of the manifest once, with its title and the schema of the keys that it has of its own."""
    top = ManifestSchema.model_json_schema()
    schemas = {**top["$defs"], ManifestSchema.__name__: top}
    titles = _titles()
    for kind, title in titles.items():
        # A class without a schema of its own is only ever inherited: what it has is in its heirs' schemas.
        heir = next(one for one in titles if issubclass(one, kind) and one.__name__ in schemas)
        yield title, kind, schemas[heir.__name__]


def rows(kind: type[BaseModel], schema: Schema) -> Iterator[tuple[str, Row, bool]]:
    """Yield the keys that `kind` has of its own: name, schema, and whether one must give it."""
    for name in kind.__annotations__:
        if name in schema["properties"]:
            yield name, schema["properties"][name], name in schema.get("required", ())


def example_of(kind: type[BaseModel], name: str) -> str:
    """Return the first example of a key as one line of YAML, or ""."""
    examples = kind.model_fields[name].examples  # those of the schema are sorted by key
    if not examples:
        return ""
    text = str(yaml.safe_dump(examples[0], default_flow_style=True, sort_keys=False, width=1000))
    return text.removesuffix("...\n").strip()  # which ends a document that is a scalar


def _lines() -> Iterator[str]:
    titles = {kind.__name__: title for title, kind, _ in sections()}
    yield _HEAD
    yield "\n".join(f"- [{title.replace('`', '')}](#{_anchor(title)})" for title in titles.values()) + "\n"
    for title, kind, schema in sections():
        yield f"## {title}"
        yield f"{(kind.__doc__ or '').strip()}\n"
        yield "| key | type | default | what it is |\n|---|---|---|---|"
        for name, row, required in rows(kind, schema):
            yield _line(name, row, required=required, titles=titles, example=example_of(kind, name))
        yield ""


def _line(name: str, row: Row, *, required: bool, titles: Mapping[str, str], example: str) -> str:
    default = "required" if required else _default(row)
    text = row.get("description", "") + (f"<br>`{example}`" if example else "")
    cells = (f"`{name}`", words(row, titles), default, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def words(row: Row, titles: Mapping[str, str]) -> str:
    """Return the type of a key for people; mappings with a section of their own are links to it."""
    if "$ref" in row:
        return f"[mapping](#{_anchor(titles[row['$ref'].split('/')[-1]])})"
    if "anyOf" in row:
        said = [word for one in row["anyOf"] if one.get("type") != "null" for word in _choices(one, titles)]
        return _or(list(dict.fromkeys(said)))
    if "enum" in row:
        return _or(_choices(row, titles))
    if "const" in row:
        return f"`{row['const']}`"
    return _plain(row, titles)


def _choices(row: Row, titles: Mapping[str, str]) -> list[str]:
    return [f"`{value}`" for value in row["enum"]] if "enum" in row else [words(row, titles)]


def _plain(row: Row, titles: Mapping[str, str]) -> str:
    kind = row.get("type")
    if kind == "array":
        if "prefixItems" in row:
            return "[" + ", ".join(words(one, titles) for one in row["prefixItems"]) + "]"
        return f"list of {words(row['items'], titles)}"
    if kind == "object":
        values = row.get("additionalProperties")
        keys = f"by {words(row['propertyNames'], titles)}" if "enum" in row.get("propertyNames", ()) else "by name"
        return f"{keys}: {words(values, titles)}" if isinstance(values, Mapping) and values else "mapping"
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _bounds(row)
    return {"boolean": "true, false", "string": _unit(row)}.get(str(kind), "anything")


def _bounds(row: Row) -> str:
    """Return the bounds as words; that a number is not negative goes without saying."""
    whole = row["type"] == "integer"
    low = row["exclusiveMinimum"] + 1 if whole and "exclusiveMinimum" in row else row.get("minimum")
    high = row["exclusiveMaximum"] - 1 if whole and "exclusiveMaximum" in row else row.get("maximum")
    if not whole and ("exclusiveMinimum" in row or "exclusiveMaximum" in row):
        ends = [f"above {row['exclusiveMinimum']}"] if "exclusiveMinimum" in row else []
        ends += [f"below {row['exclusiveMaximum']}"] if "exclusiveMaximum" in row else []
        return " " + ", ".join([*ends, *([f"up to {high}"] if high is not None else [])])
    if high is not None and high < 10**6:
        return f" {low} to {high}"
    return f" from {low}" if low else ""


def _unit(row: Row) -> str:
    """Durations and sizes are told from other text by their examples: the schema knows no units."""
    first = str(row.get("examples", [""])[0])
    return {"2ms": "duration", "8GiB": "size", "200/s": "rate"}.get(first, "text")


def _or(said: Sequence[str]) -> str:
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}"


def _default(row: Row) -> str:
    value = row.get("default")
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None or value in ({}, [], ""):
        return _NONE
    if isinstance(value, Mapping):
        return "its defaults"
    unit = _unit(row)
    if unit == "duration":
        return f"`{duration_text(value)}`"
    return f"`{_size(value)}`" if unit == "size" else f"`{value}`"


def _size(value: int) -> str:
    unit, factor = next((row for row in _SIZES if value % row[1] == 0), ("B", 1))
    return f"{value // factor}{unit}"


def _titles() -> dict[type[BaseModel], str]:
    """Return every mapping's title, in the order in which a reader meets them: mostly the path of its key."""
    titles = dict(_TITLES)
    for kind in _TITLES:
        _visit(kind, (), titles)
    return titles


def _visit(kind: type[BaseModel], path: Sequence[str], titles: dict[type[BaseModel], str]) -> None:
    for name in kind.__annotations__:
        field = kind.model_fields.get(name)
        for inner, below in _models_in(field.annotation if field else None):
            if inner not in titles:
                here = (*path, name + below)
                titles[inner] = f"`{'.'.join(here)}`"
                _visit(inner, here, titles)


def _models_in(annotation: Any, below: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the mappings that a type holds, each with what stands between the key and them: `[]` or `.KEY`."""
    import typing

    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation, below
        return
    step = {tuple: "[]", list: "[]", dict: ".KEY"}.get(typing.get_origin(annotation), "")
    for inner in typing.get_args(annotation):
        yield from _models_in(inner, below + step)


def _anchor(title: str) -> str:
    """Return the fragment that a page's reader gives to a heading: lower case, without marks, spaces as hyphens."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(manifest_page())
