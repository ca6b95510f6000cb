"""What a check says, and where."""

import pytest

from repogen.check.engine import check_repository
from repogen.check.examples import CONFIG, python_model, write_tree
from repogen.check.rule import Link, Problem, Rule
from repogen.check.subject import read_repository, version_of
from repogen.check.target import target_of
from repogen.errors import RepogenError

EMBEDDED = target_of("embedded")


def found(tmp_path, tree, target=EMBEDDED):
    return check_repository(write_tree(tmp_path / "r", tree), target)


def test_a_finding_names_the_line_of_the_field(tmp_path):
    tree = {
        "m/config.pbtxt": CONFIG + "\ndynamic_batching {\n  preferred_batch_size: [4,\n    16]\n}\n",
        "m/1/model.py": "",
    }
    (finding,) = found(tmp_path, tree)
    assert (finding.code, finding.severity, finding.where) == ("RG403", "error", "m/config.pbtxt:10")
    assert finding.model == "m"
    assert "16" in finding.message
    assert "8" in finding.message
    assert finding.hint


def test_a_syntax_error_keeps_protobufs_line_and_words(tmp_path):
    tree = {"m/config.pbtxt": CONFIG + "max_batchsize: 8\n", "m/1/model.py": ""}
    (finding,) = found(tmp_path, tree)
    assert finding.where == "m/config.pbtxt:7"
    assert 'no field named "max_batchsize"' in finding.message


def test_the_worst_comes_first_and_nothing_is_said_twice(tmp_path):
    tree = python_model("dynamic_batching { max_queue_delay_microseconds: 2000000 preferred_batch_size: [9, 9] }")
    findings = found(tmp_path, tree)
    assert [(it.severity, it.code) for it in findings] == [("error", "RG403"), ("warning", "RG410")]


def test_a_clean_repository_has_no_findings(tmp_path):
    assert found(tmp_path, python_model("dynamic_batching { }")) == []


def test_a_missing_repository_is_an_error_of_ours(tmp_path):
    with pytest.raises(RepogenError, match="cannot be read"):
        check_repository(tmp_path / "none", EMBEDDED)


@pytest.mark.parametrize(
    ("server", "triton"), [("2.51", (2, 51)), ("24.10", (2, 51)), ("26.08", (2, 72)), ("embedded", (2, 51))]
)
def test_a_server_is_named_by_release_or_version(server, triton):
    assert target_of(server).triton == triton


def test_an_unknown_server_is_refused():
    with pytest.raises(RepogenError, match=r"'9\.9' is not known"):
        target_of("9.9")


def test_a_target_without_gpu_judges_otherwise(tmp_path):
    tree = python_model(replaced={"KIND_CPU": "KIND_GPU"})
    assert [it.code for it in found(tmp_path, tree)] == ["RG501"]
    assert check_repository(tmp_path / "r", target_of("2.51")) == []


@pytest.mark.parametrize(
    ("folder", "version"),
    [("1", 1), ("01", None), ("0", 0), ("00", None), ("2.tmp", 2), ("v2", None), ("-3", -3), (" 4", 4), ("+5", 5)],
)
def test_versions_are_read_as_the_server_does(folder, version):
    assert version_of(folder) == version


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", (3,)),
        ("version_policy { latest { num_versions: 2 } }", (2, 3)),
        ("version_policy { all { } }", (1, 2, 3)),
        ("version_policy { specific { versions: [3, 1, 9] } }", (1, 3)),
        ("version_policy { latest { } }", ()),
        ("version_policy { }", (3,)),
    ],
)
def test_the_policy_chooses_versions(tmp_path, policy, served):
    tree = python_model(policy, files={"m/2/model.py": "", "m/3/model.py": "", "m/warmup/x": ""})
    assert read_repository(write_tree(tmp_path / "r", tree)).models["m"].served == served


def test_links_to_models_are_followed(tmp_path):
    write_tree(tmp_path / "store", python_model())
    tree = {"m": Link(str(tmp_path / "store" / "m"))}
    assert [it for it in found(tmp_path, tree) if it.severity == "error"] == []


def test_a_rule_that_names_a_file_points_at_it(tmp_path):
    rule = Rule("RG999", "note", "t", "w", lambda _: [Problem("said", file="1/model.py")], {}, {}, scope="model")
    root = write_tree(tmp_path / "r", python_model())
    assert [it.where for it in check_repository(root, EMBEDDED, [rule])] == ["m/1/model.py"]
