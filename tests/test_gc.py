"""`repogen gc`: what goes, what stays, and what it says."""

import json

import pytest

from repogen import generations
from repogen.build_cache import plans_folder
from repogen.generations import RECORDS, SQUASHED, Generation, Step, history, record, squashed, state_folder
from tests.conftest import tree
from tests.s3server import BUCKET, needs_s3


def sync_sizes(project, invoke, sizes):
    manifest = project / "repogen.yaml"
    text = manifest.read_text()
    for size in sizes:
        manifest.write_text(text.replace("max_batch_size: 4", f"max_batch_size: {size}"))
        invoke("sync", "-f", manifest)


def keep(project, count):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("defaults:", f"keep: {count}\ndefaults:"))


def test_what_is_served_stays_and_previous_generations_go(project, invoke):
    keep(project, 3)
    sync_sizes(project, invoke, [2, 3, 4])
    served, state = tree(project / "served/models"), state_folder(project / "served/models")
    before = tree(state / "kept")
    shown = json.loads(invoke("gc", "--keep", "1", "--dry-run", "--json", "-f", project / "repogen.yaml").stdout)
    assert (shown["removed"], shown["dry_run"]) == ([str(state / "kept/add/1")], True)
    assert shown["bytes"] == sum(len(content) for name, content in before.items() if name.startswith("add/1/"))
    assert tree(state / "kept") == before
    assert "freed" in invoke("gc", "--keep", "1", "-f", project / "repogen.yaml").stdout
    assert {name.split("/")[1] for name in tree(state / "kept")} == {"2"}
    assert tree(project / "served/models") == served
    assert "nothing to remove" in invoke("gc", "-f", project / "repogen.yaml").stdout


@needs_s3
def test_the_same_on_an_object_store(remote, s3, invoke):
    keep(remote, 3)
    sync_sizes(remote, invoke, [2, 3, 4])
    client = s3.client()
    served = {path: client.cat_file(path) for path in client.find(f"{BUCKET}/served/models")}
    top = f"{BUCKET}/served/.repogen/models/kept"
    listed = json.loads(invoke("gc", "--keep", "1", "--dry-run", "--json", "-f", remote / "repogen.yaml").stdout)
    assert listed["removed"] == [f"{top}/add/1.json"]
    assert client.exists(f"{top}/add/1.json")
    invoke("gc", "--keep", "1", "-f", remote / "repogen.yaml")
    assert client.find(top) == [f"{top}/add/2.json", f"{top}/add/3.json"]
    assert {path: client.cat_file(path) for path in client.find(f"{BUCKET}/served/models")} == served
    invoke("rollback", "-f", remote / "repogen.yaml")


def plan_of(key, size):
    folder = plans_folder() / key
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(b"p" * size)
    return folder


def test_built_plans_are_bounded_but_for_those_of_the_lock(project, invoke, monkeypatch, tmp_path):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    named, other = plan_of("a" * 64, 1000), plan_of("b" * 64, 1000)
    lock = {"format": 1, "models": {"add": {"key": named.name}}}
    (project / "repogen.lock").write_text(json.dumps(lock))
    shown = json.loads(invoke("gc", "--cache-size", "500B", "--json", "-f", project / "repogen.yaml").stdout)
    assert (shown["removed"], shown["bytes"]) == ([str(other)], 1000)
    assert named.is_dir()
    assert not other.exists()


def published(number, name, before):
    return Generation(number, "then", "me", "sync", (Step(name, "rewrite", before, number),), "done")


def test_old_records_become_one_that_says_the_same_of_the_present():
    past = [published(1, "once", None), *(published(n, "often", n - 1) for n in range(2, 10))]
    whole, gone = squashed(past, 4)
    assert gone == [1, 2, 3, 4]
    assert (whole.number, whole.what) == (5, SQUASHED)
    left = [whole, *past[5:]]
    assert generations.current(left) == generations.current(past)
    for number in range(5, 10):
        assert generations.as_of(left, number) == generations.as_of(past, number)
    assert squashed(left, 5) == (None, [])


def test_records_are_trimmed_and_nobody_returns_to_before_them(project, invoke):
    sync_sizes(project, invoke, [2, 3])
    state = state_folder(project / "served/models")
    for number in range(3, RECORDS + 20):
        record(state, Generation(number, "then", "me", "sync", (), "done"))
    invoke("gc", "-f", project / "repogen.yaml")
    assert len(history(state)) == RECORDS + 1
    assert invoke("gc", "-f", project / "repogen.yaml").stdout.startswith("nothing")
    oldest = history(state)[0].number
    refused = invoke("rollback", "--to", str(oldest - 1), "-f", project / "repogen.yaml", code=1)
    assert f"before generation {oldest} was collected" in refused.stderr
    assert "nothing to do" in invoke("sync", "-f", project / "repogen.yaml").stdout


def test_nothing_published_is_nothing_to_remove(project, invoke):
    assert "nothing to remove" in invoke("gc", "-f", project / "repogen.yaml").stdout
    assert not (project / "served").exists()


@pytest.mark.parametrize("text", ["50", "lots"])
def test_a_size_without_a_unit_is_refused(project, invoke, text):
    assert "not a size" in invoke("gc", "--cache-size", text, "-f", project / "repogen.yaml", code=2).stderr
