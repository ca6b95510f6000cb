"""The cache of plans: whole entries only, damage found, writers that do not disturb each other, a bound."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from repogen import build_cache
from repogen.build_cache import add, building, collect, find, plans_folder, size_of_cache, staging
from repogen.plan_header import header_bytes

PLAN = header_bytes((10, 16, 1, 11), size=64) + bytes(36)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))


def build(key, plan=PLAN, shared="", **facts):
    with staging() as folder:
        (folder / "model.plan").write_bytes(plan)
        (folder / "layers.json").write_text("[]")
        return add(key, folder, {"seconds": 1.0, **facts}, shared=shared)


def test_what_was_added_is_found_with_its_facts():
    assert find("k") == (None, "never built")
    build("k", what="TensorRT 10.16")
    entry, reason = find("k")
    assert reason == ""
    assert entry.plan.source.read_bytes() == PLAN
    assert entry.facts["what"] == "TensorRT 10.16"
    assert sorted(entry.facts["files"]) == ["layers.json", "model.plan"]
    assert list((plans_folder() / ".staging").iterdir()) == []


@pytest.mark.parametrize("name", ["model.plan", "layers.json"])
def test_a_flipped_byte_sets_the_entry_aside(name):
    entry = build("k")
    path = entry.folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found, reason = find("k")
    assert found is None
    assert reason == f"the cached one is damaged: {name} changed"
    assert [path.name[:2] for path in (plans_folder() / ".corrupt").iterdir()] == ["k-"]
    assert find("k") == (None, "never built")
    build("k")
    assert find("k")[0] is not None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "model.plan").unlink(), "FileNotFoundError"),
        (lambda folder: (folder / "build.json").write_text("{"), "JSONDecodeError"),
        (lambda folder: (folder / "build.json").write_text("[]"), "TypeError"),
        (lambda folder: (folder / "build.json").unlink(), "FileNotFoundError"),
    ],
    ids=["no plan", "cut json", "other json", "no json"],
)
def test_an_entry_that_is_not_whole_is_none(damage, reason):
    damage(build("k").folder)
    found, said = find("k")
    assert found is None
    assert reason in said


def test_an_entry_under_another_key_is_none():
    build("k").folder.rename(plans_folder() / "other")
    assert find("other") == (None, "the cached one is damaged: it is of another key")


def test_a_file_that_is_no_plan_is_never_served():
    with pytest.raises(OSError, match="does not begin as a plan"):
        build("k", plan=b"\x08\x08pytorch" + bytes(64))
    assert find("k")[0] is None


def test_the_first_writer_wins():
    first = build("k", seconds=1.0)
    second = build("k", seconds=2.0)
    assert second.facts["seconds"] == first.facts["seconds"] == 1.0


def test_a_writer_that_dies_half_way_leaves_no_entry():
    with pytest.raises(RuntimeError), staging() as folder:  # noqa: PT012
        (folder / "model.plan").write_bytes(PLAN)
        raise RuntimeError
    assert find("k") == (None, "never built")
    assert [path for path in plans_folder().iterdir() if path.name[0] != "."] == []


def _build_once(cache, key, started, log):
    os.environ["REPOGEN_CACHE"] = cache
    started.wait()
    with building(key):
        if find(key)[0] is None:
            time.sleep(0.2)
            build(key)
            with Path(log).open("a") as file:
                file.write("built\n")


def test_of_several_processes_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    started, log = context.Event(), tmp_path / "log"
    cache = os.environ["REPOGEN_CACHE"]
    children = [context.Process(target=_build_once, args=(cache, "k", started, str(log))) for _ in range(4)]
    for child in children:
        child.start()
    started.set()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0] * 4
    assert log.read_text() == "built\n"
    assert find("k")[0] is not None


def test_whoever_waits_is_told(tmp_path):
    told = []
    with building("k"), building("other", lambda: told.append("waits")):
        assert told == []


def test_collect_removes_the_longest_unused_first_and_never_what_is_kept():
    for age, key in enumerate(("new", "old", "oldest", "kept")):
        folder = build(key).folder
        os.utime(folder, (time.time() - 100 * age,) * 2)
    each = size_of_cache() // 4
    assert each > len(PLAN)
    removed = collect(2 * each + 4, keep={"kept"})
    assert [row.key for row in removed] == ["oldest", "old"]
    assert {path.name for path in plans_folder().iterdir() if path.name[0] != "."} == {"new", "kept"}
    assert collect(2 * each + 4, keep={"kept"}) == ()
    assert [row.key for row in collect(0, keep={"kept"})] == ["new"]


def test_an_entry_that_was_found_is_no_longer_the_oldest():
    for age, key in ((200, "used"), (100, "idle")):
        os.utime(build(key).folder, (time.time() - age,) * 2)
    find("used")
    assert [row.key for row in collect(size_of_cache() - 1)] == ["idle"]


def test_a_shared_cache_serves_another_machine(tmp_path, monkeypatch):
    shared = str(tmp_path / "shared")
    build("k", what="theirs", shared=shared)
    assert [path.name for path in Path(shared).iterdir()] == ["k.tar"]
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "another"))
    assert find("k")[0] is None
    entry, _ = find("k", shared=shared)
    assert entry.facts["what"] == "theirs"
    assert entry.plan.source.read_bytes() == PLAN
    assert plans_folder() in entry.plan.source.parents


def test_a_shared_cache_of_any_kind_that_fsspec_knows(tmp_path, monkeypatch):
    build("k", shared="memory://plans")
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "another"))
    assert find("k", shared="memory://plans")[0] is not None


def test_what_a_shared_cache_sends_is_not_believed(tmp_path, monkeypatch):
    import tarfile

    shared = tmp_path / "shared"
    build("k", shared=str(shared))
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "another"))
    forged = tmp_path / "forged"
    forged.mkdir()
    (forged / "model.plan").write_bytes(PLAN[:-1] + b"\1")
    facts = {"key": "k", "files": {"model.plan": {"sha256": "0" * 64, "size": 64}}}
    (forged / "build.json").write_text(json.dumps(facts))
    with tarfile.open(shared / "k.tar", "w") as archive:
        for path in forged.iterdir():
            archive.add(path, f"../../{path.name}")
    entry, reason = find("k", shared=str(shared))
    assert entry is None
    assert "damaged" in reason
    assert not (tmp_path / "model.plan").exists()


def test_a_shared_cache_that_is_away_costs_nothing_but_a_build(tmp_path):
    assert find("k", shared=str(tmp_path / "nowhere")) == (None, "never built")
    assert find("k", shared="nosuchscheme://x") == (None, "never built")
    assert build("k", shared="nosuchscheme://x").plan.size == len(PLAN)


def test_what_is_a_day_old_in_staging_is_swept():
    with staging() as folder:
        pass
    left = folder.parent / "12-left"
    left.mkdir()
    os.utime(left, (time.time() - 2 * build_cache._STALE,) * 2)
    collect(10**9)
    assert not left.exists()
