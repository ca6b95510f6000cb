from pathlib import Path

import pytest

from repogen.errors import ManifestError
from repogen.yaml_source import read_yaml


def read(tmp_path: Path, text: str):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return read_yaml(path)


def test_every_value_knows_its_line(tmp_path):
    source = read(tmp_path, "a: 1\nb:\n  c: [x,\n      {d: 2}]\n")
    assert source.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    assert source.where(("b", "c", 1, "d")).endswith("m.yaml:4 b.c[1].d")
    assert source.where(("b", "missing")).endswith("m.yaml:2 b.missing")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("12:30", "12:30"), ("0x1f", "0x1f"), ("1_000", "1_000"), ("010", "010"),
        ("true", True), ("~", None), ("", None), ("'5'", "5"), ("-3", -3), ("1e3", 1000.0), ("2026-01-01", "2026-01-01"),
    ],
)  # fmt: skip
def test_scalars_are_yaml_1_2(tmp_path, text, value):
    found = read(tmp_path, f"a: {text}\n").data["a"]
    assert found == value
    assert type(found) is type(value) or isinstance(value, float)


def test_a_release_keeps_its_last_zero(tmp_path):
    assert read(tmp_path, "triton: 26.10\n").data["triton"].text == "26.10"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r":3 a: 'a' is given twice, first on line 1"),
        ("a: !!python/object:os.system x\n", r":1: the YAML tag .* is not allowed"),
        ("a: !x {b: 1}\n", r":1: the YAML tag '!x' is not allowed"),
        ("a: [1\n", r":2: not valid YAML"),
        ("a: 'x\n", r"not valid YAML"),
        ("? [a]\n: 1\n", r":1: a key must be plain text"),
        ("{" + "a: {" * 90 + "}" * 91, r"too deep"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_line(tmp_path, text, message):
    with pytest.raises(ManifestError, match=message):
        read(tmp_path, text)


def test_a_star_without_quotes_is_told(tmp_path):
    (tmp_path / "a.yaml").write_text("models:\n  a: {source: *.onnx}\n")
    with pytest.raises(ManifestError, match=r"a.yaml:2: not valid YAML.*stands in quotes"):
        read_yaml(tmp_path / "a.yaml")


def test_aliases_that_explode_are_refused(tmp_path):
    text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    for n in range(1, 9):
        text += f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n"
    with pytest.raises(ManifestError, match="too many values"):
        read(tmp_path, text)


def test_files_that_are_no_manifest(tmp_path):
    with pytest.raises(ManifestError, match="there is no such manifest"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ManifestError, match="is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: é".encode("latin-1"))
    with pytest.raises(ManifestError, match=r"latin.yaml:2: is not UTF-8"):
        read_yaml(tmp_path / "latin.yaml")
