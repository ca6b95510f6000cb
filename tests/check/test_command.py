"""`repogen check` for people and for programs."""

import json

from repogen.check.examples import python_model, write_tree
from repogen.commands.check import check
from repogen.console import Console

BAD = {
    **python_model("dynamic_batching { preferred_batch_size: [16] }"),
    **python_model("response_cache { enable: true }", name="n"),
}


def test_errors_are_told_by_model_and_exit_1(tmp_path, capsys):
    root = write_tree(tmp_path / "r", BAD)
    assert check(root, server="embedded", console=Console()) == 1
    out = capsys.readouterr().out
    assert "m\n  m/config.pbtxt:7: error RG403 preferred_batch_size 16" in out
    assert "n\n  n/config.pbtxt:7: warning RG413" in out
    assert out.rstrip().endswith("for Triton embedded: 1 error, 1 warning")


def test_warnings_alone_exit_0(tmp_path, capsys):
    root = write_tree(tmp_path / "r", python_model("response_cache { enable: true }"))
    assert check(root, server="26.08", console=Console()) == 0
    assert "1 warning" in capsys.readouterr().out


def test_json_is_one_document_with_counts(tmp_path, capsys):
    root = write_tree(tmp_path / "r", BAD)
    assert check(root, server="embedded", console=Console(as_json=True)) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"error": 1, "warning": 1, "note": 0}
    first = document["findings"][0]
    assert first["code"] == "RG403"
    assert first["where"] == "m/config.pbtxt:7"
    assert set(first) == {"code", "severity", "where", "model", "message", "hint"}


def test_nothing_to_mend(tmp_path, capsys):
    assert check(write_tree(tmp_path / "r", python_model()), server="embedded", console=Console()) == 0
    assert "nothing to mend" in capsys.readouterr().out
