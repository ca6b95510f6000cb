"""docs/manifest.md is made from the schema."""

import json
import re

import pytest
import yaml
from pydantic import TypeAdapter

from repogen.manifest import ManifestSchema, ModelEntry, load_manifest
from repogen.manifest_page import example_of, manifest_page, rows, sections
from repogen.settings_schema import Strict
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "manifest.md"
KEYS = [
    pytest.param(kind, name, row, id=f"{kind.__name__}.{name}")
    for _, kind, schema in sections()
    for name, row, _ in rows(kind, schema)
]


def every_mapping(kind: type = Strict) -> set[type]:
    below = {one for heir in kind.__subclasses__() for one in (heir, *every_mapping(heir))}
    return {one for one in below if one.__module__.startswith("repogen.")}


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == manifest_page(), "python -m repogen.manifest_page > docs/manifest.md"


@pytest.mark.parametrize(("kind", "name", "row"), KEYS)
def test_every_key_says_what_it_is(kind, name, row):
    assert row.get("description"), f"{kind.__name__}.{name} needs Field(description=…)"


def test_every_mapping_and_every_key_is_on_the_page():
    told = {kind for _, kind, _ in sections()}
    assert told == every_mapping()
    for kind in told:
        own = {name for title, one, schema in sections() for name, _, _ in rows(one, schema) if issubclass(kind, one)}
        assert own >= set(kind.model_fields)


@pytest.mark.parametrize(("kind", "name", "row"), [key for key in KEYS if example_of(key.values[0], key.values[1])])
def test_every_example_is_accepted_by_the_schema_and_by_editors(kind, name, row):
    import jsonschema

    written = yaml.safe_load(example_of(kind, name))
    TypeAdapter(kind.model_fields[name].rebuild_annotation()).validate_python(written)
    text = json.loads(json.dumps(written))  # the keys of JSON are text
    jsonschema.validate(text, {**row, "$defs": ManifestSchema.model_json_schema()["$defs"]})


def test_every_link_leads_to_a_heading():
    page = manifest_page()
    headings = {
        re.sub(r"[^\w -]", "", line[3:].lower()).replace(" ", "-") for line in re.findall("^## .*", page, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == headings - {"top-level"} | {"top-level"}


def test_a_row_is_one_line():
    lines = manifest_page().splitlines()
    assert [line for line in lines if line.startswith("|") and not line.endswith("|")] == []


def test_a_row_says_type_default_and_example():
    page = manifest_page()
    assert "| `max_queue_delay` | duration | `0ms` | how long a request may wait for others |" in page
    assert re.search(r"\| `shm` \| size \| `1GiB` \|", page)
    assert "| `precision` | `fp32`, `fp16`, `bf16` or `int8` | `fp32` |" in page
    assert re.search(r"\| `shapes` \| by name: \[mapping\]\(#shapeskey\) \|.*<br>`\{W: \{min: 32, opt: 320", page)
    assert "| `alerts` | `slack`, `pagerduty` or text | none |" in page
    assert re.search(r"\| `optimization_level` \| whole number 0 to 5 \|", page)


def test_a_manifest_of_every_example_loads(tmp_path):
    """Examples of a model's keys that may stand together, in one manifest."""
    keys = ("calibration", "accuracy", "instances", "dynamic_batching", "versions", "tune", "shapes", "outputs")
    entry = {name: yaml.safe_load(example_of(_owner(name), name)) for name in keys}
    path = tmp_path / "repogen.yaml"
    path.write_text(yaml.safe_dump({"triton": "26.08", "models": {"m": {"source": "m.onnx", **entry}}}))
    assert load_manifest(path).models["m"].tune.slo == {"p99": 20_000}


def _owner(name: str) -> type:
    return next(kind for _, kind, _ in sections() if issubclass(ModelEntry, kind) and name in kind.__annotations__)
