"""History, rollback and gc, by the command line."""

import json
import shutil
from dataclasses import replace

import pytest

from repogen import generations, staging
from repogen.generations import Step, state_folder
from repogen.publish import publish
from repogen.staging import needs_recovery, recover
from tests.conftest import tree
from tests.test_plan import planned


@pytest.fixture
def root(project):
    return project / "served/models"


def edit(project, before, after):
    manifest = project / "repogen.yaml"
    assert before in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(before, after))


@pytest.fixture
def versions(project, root, invoke):
    """Three generations: batch 4, 2, 3; return the tree of each."""
    found = []
    for before, after in ((4, 4), (4, 2), (2, 3)):
        edit(project, f"max_batch_size: {before}", f"max_batch_size: {after}")
        invoke("sync", "-f", project / "repogen.yaml")
        found.append(tree(root))
    return found


def test_history_tells_what_each_sync_changed(project, versions, invoke):
    found = json.loads(invoke("history", "-f", project / "repogen.yaml", "--json").stdout)
    assert [(row["number"], row["what"], row["state"]) for row in found["generations"]] == [
        (1, "sync", "done"), (2, "sync", "done"), (3, "sync", "done"),
    ]  # fmt: skip
    assert [row["steps"][0]["action"] for row in found["generations"]] == ["create", "rewrite", "rewrite"]
    assert found["kept"] == [{"model": "add", "generation": 2}]
    assert "rewrite add" in invoke("history", "-f", project / "repogen.yaml").stdout


def test_rollback_returns_byte_for_byte_and_can_be_rolled_back(project, root, versions, invoke):
    invoke("rollback", "-f", project / "repogen.yaml")
    assert tree(root) == versions[1]
    invoke("rollback", "-f", project / "repogen.yaml")
    assert tree(root) == versions[2]
    assert "as it was" in invoke("rollback", "--to", "3", "-f", project / "repogen.yaml").stdout


def test_what_is_not_kept_cannot_come_back(project, root, versions, invoke):
    result = invoke("rollback", "--to", "1", "-f", project / "repogen.yaml", code=1)
    assert "not kept any more" in result.stderr
    assert tree(root) == versions[2]
    assert "newest generation is 3" in invoke("rollback", "--to", "9", "-f", project / "repogen.yaml", code=1).stderr


def test_keep_says_how_many(project, root, invoke):
    edit(project, "repository:", "keep: 2\nrepository:")
    trees = []
    for before, after in ((4, 4), (4, 2), (2, 3)):
        edit(project, f"max_batch_size: {before}", f"max_batch_size: {after}")
        invoke("sync", "-f", project / "repogen.yaml")
        trees.append(tree(root))
    invoke("rollback", "--to", "1", "-f", project / "repogen.yaml")
    assert tree(root) == trees[0]


def test_gc_removes_what_is_displaced_and_never_what_is_live(project, root, versions, invoke):
    assert "nothing to remove" in invoke("gc", "-f", project / "repogen.yaml").stdout
    removed = json.loads(invoke("gc", "--keep", "0", "-f", project / "repogen.yaml", "--json").stdout)
    assert len(removed["removed"]) == 1
    assert removed["bytes"] > 0
    assert tree(root) == versions[2]
    assert list(generations.all_kept(state_folder(root))) == []


def test_a_rollback_over_a_creation_asks_first(project, root, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    before = tree(root)
    assert "--yes" in invoke("rollback", "-f", project / "repogen.yaml", code=1).stderr
    assert tree(root) == before
    invoke("rollback", "--yes", "-f", project / "repogen.yaml")
    assert tree(root) == {}
    invoke("rollback", "-f", project / "repogen.yaml")
    assert tree(root) == before


def test_a_pruned_model_comes_back(project, root, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    before = tree(root)
    edit(project, "  add:", "  plus:")
    invoke("sync", "--prune", "--yes", "-f", project / "repogen.yaml")
    assert sorted(tree(root)) == ["plus/1/model.onnx", "plus/config.pbtxt"]
    invoke("rollback", "--yes", "-f", project / "repogen.yaml")
    assert tree(root) == before


def test_a_hand_edited_folder_that_was_overwritten_comes_back_as_it_was(project, root, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    (root / "add/config.pbtxt").write_text((root / "add/config.pbtxt").read_text() + "# mine\n")
    mine = tree(root)
    invoke("sync", "--overwrite", "-f", project / "repogen.yaml")
    assert tree(root) != mine
    invoke("rollback", "-f", project / "repogen.yaml")
    assert tree(root) == mine


def test_a_strangers_folder_that_was_overwritten_comes_back(project, root, invoke):
    (root / "add/1").mkdir(parents=True)
    (root / "add/1/model.py").write_text("theirs")
    invoke("sync", "--overwrite", "-f", project / "repogen.yaml")
    invoke("rollback", "-f", project / "repogen.yaml")
    assert tree(root) == {"add/1/model.py": b"theirs"}


def test_nothing_to_roll_back(project, invoke):
    assert "nothing was published yet" in invoke("rollback", "-f", project / "repogen.yaml", code=1).stderr
    assert "nothing was published" in invoke("history", "-f", project / "repogen.yaml").stdout
    assert "nothing to remove" in invoke("gc", "-f", project / "repogen.yaml").stdout


def test_a_damaged_record_is_an_error_with_a_way_out(project, root, versions, invoke):
    (state_folder(root) / "generations/000003.json").write_text("{")
    result = invoke("history", "-f", project / "repogen.yaml", code=2)
    assert "000003.json" in result.stderr
    assert "begin a new history" in result.stderr


def test_between_the_two_renames_of_a_system_without_exchange(project, root):
    """Where a power cut hits a system without RENAME_EXCHANGE, the next run puts the new folder in place."""
    publish(planned(project))
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    publish(planned(project))
    state, new = state_folder(root), tree(root)
    newest = generations.latest(state)
    generations.record(state, replace(newest, state="running"))
    staging.staging(state).mkdir()
    (root / "add").rename(staging.marked(state, "add", "@", root / "add"))
    assert needs_recovery(root)
    assert recover(root)
    assert tree(root) == new
    assert not needs_recovery(root)
    assert generations.latest(state) == newest


def test_a_previous_generation_on_its_way_back_arrives(project, root):
    """A run that was cut short while it undid a step that the server had refused."""
    publish(planned(project))
    old = tree(root)
    edit(project, "max_batch_size: 4", "max_batch_size: 2")
    publish(planned(project))
    state = state_folder(root)
    generations.record(state, replace(generations.latest(state), state="running"))
    staging.staging(state).mkdir()
    kept = generations.kept(state, "add", 1)
    kept.rename(staging.marked(state, "add", "!", kept))
    recover(root)
    assert tree(root) == old
    assert [generation.number for generation in generations.history(state)] == [1]


def test_the_history_as_of_a_generation():
    def generation(number, *steps):
        return generations.begun(number, "sync", steps, 1)

    past = (
        generation(1, Step("a", "create", None, 1), Step("b", "create", None, 1)),
        generation(2, Step("a", "rewrite", 1, 2)),
        generation(3, Step("b", "remove", 1, None)),
        generation(4, Step("a", "rollback", 2, 1)),
    )
    assert generations.current(past) == {"a": 1, "b": None}
    assert generations.as_of(past, 3) == {"a": 2}
    assert generations.as_of(past, 2) == {"a": 2, "b": 1}
    assert generations.as_of(past, 0) == {"a": None, "b": None}


def test_a_kept_folder_that_somebody_moved_away(project, root, versions, invoke):
    shutil.rmtree(state_folder(root) / "kept")
    assert "not kept any more" in invoke("rollback", "-f", project / "repogen.yaml", code=1).stderr
