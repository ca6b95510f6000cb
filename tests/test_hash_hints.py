import hashlib
import os
import time

import pytest

from repogen import hash_hints
from repogen.files import sha256

OLD = time.time_ns() + 3600 * 10**9  # "now" of a run that hashes an hour after the file was written


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def test_an_unchanged_file_is_known_and_a_changed_one_is_not(cache, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    hash_hints.remember(path.stat(), "remembered", now=OLD)
    assert sha256(path) == "remembered"
    path.write_bytes(b"two")
    assert sha256(path) == digest(b"two")


@pytest.mark.parametrize("what", ["touched", "same size and mtime", "replaced", "mode"])
def test_any_sign_of_a_change_forgets_it(cache, tmp_path, what):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    status = path.stat()
    hash_hints.remember(status, "remembered", now=OLD)
    time.sleep(0.02)
    if what == "touched":
        os.utime(path)
    elif what == "same size and mtime":
        path.write_bytes(b"two")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif what == "replaced":
        (tmp_path / "b").write_bytes(b"two")
        (tmp_path / "b").replace(path)
    else:
        path.chmod(0o600)
    assert sha256(path) == digest(path.read_bytes())


def test_what_changed_just_now_is_never_remembered(cache, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    assert sha256(path) == digest(b"one")
    assert hash_hints.known(path.stat()) is None
    hash_hints.remember(path.stat(), "remembered", now=path.stat().st_ctime_ns - 10**9)  # a clock that went back
    assert hash_hints.known(path.stat()) is None


def test_hints_outlive_the_process_and_join_those_of_others(cache, tmp_path):
    for name in ("a", "b"):
        path = tmp_path / name
        path.write_bytes(b"x")
        hash_hints.remember(path.stat(), name, now=OLD)
        hash_hints.save(cache)
        hash_hints._hints.cache_clear()
    assert [hash_hints.known((tmp_path / name).stat()) for name in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize("content", ["", "{", '{"version": 99, "hints": {"1:1": []}}', "[]"])
def test_a_damaged_file_of_hints_only_costs_time(cache, tmp_path, content):
    cache.mkdir()
    (cache / "hashes.json").write_text(content)
    (tmp_path / "a").write_bytes(b"one")
    assert sha256(tmp_path / "a") == digest(b"one")
