import errno
import hashlib
import os
import stat

import pytest

from repogen.errors import RepogenError
from repogen.files import copy_synced, listed, replace_synced, write_synced

BLOCK = 8 * 2**20


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_a_copy_is_the_same_and_its_digest_is_told(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert copy_synced(tmp_path / "a", tmp_path / "b") == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "b").read_bytes() == content
    assert (tmp_path / "b").stat().st_nlink == 1


def kernel(monkeypatch, answers):
    """Let copy_file_range do what `answers` says in turn: raise, or copy at most so many bytes."""
    real, said = os.copy_file_range, iter(answers)

    def copy(source, target, count):
        answer = next(said, count)
        if isinstance(answer, OSError):
            raise answer
        return real(source, target, min(count, answer)) if answer else 0

    monkeypatch.setattr(os, "copy_file_range", copy)


LARGE = bytes(range(256)) * 2**16  # 16 MiB


@pytest.mark.parametrize(
    "answers", [[], [5, 1, 3 * 2**20], [OSError(errno.EXDEV, "no")], [OSError(errno.ENOSYS, "no")]]
)
def test_a_large_copy_is_the_same_however_the_kernel_does_it(tmp_path, monkeypatch, answers):
    kernel(monkeypatch, answers)
    (tmp_path / "a").write_bytes(LARGE)
    assert copy_synced(tmp_path / "a", tmp_path / "b") == hashlib.sha256(LARGE).hexdigest()
    assert (tmp_path / "b").read_bytes() == LARGE


def test_a_source_that_shrinks_gives_the_hash_of_what_was_copied(tmp_path, monkeypatch):
    kernel(monkeypatch, [2**20, 0])
    (tmp_path / "a").write_bytes(LARGE)
    assert copy_synced(tmp_path / "a", tmp_path / "b") == hashlib.sha256(LARGE[: 2**20]).hexdigest()
    assert (tmp_path / "b").read_bytes() == LARGE[: 2**20]


@pytest.mark.parametrize("answers", [[OSError(errno.ENOSPC, "full")], [2**20, OSError(errno.EINVAL, "odd")]])
def test_a_copy_that_fails_is_no_copy(tmp_path, monkeypatch, answers):
    kernel(monkeypatch, answers)
    (tmp_path / "a").write_bytes(LARGE)
    with pytest.raises(OSError, match="full|odd"):
        copy_synced(tmp_path / "a", tmp_path / "b")


def test_modes_are_the_same_whatever_the_umask(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "a").chmod(0o400)
    old = os.umask(0o077)
    try:
        copy_synced(tmp_path / "a", tmp_path / "b")
        write_synced(tmp_path / "c", b"x")
    finally:
        os.umask(old)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "bc"} == {0o644}


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        copy_synced(tmp_path / "a", tmp_path / "a")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "a", b"y")


def test_a_record_is_replaced_whole(tmp_path):
    replace_synced(tmp_path / "a", "one")
    (tmp_path / "a.new").write_text("of a run that was cut short")
    replace_synced(tmp_path / "a", "two")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "two"}


def test_a_folder_that_is_no_folder_is_told(tmp_path):
    assert listed(tmp_path / "none") == []
    (tmp_path / "a").write_text("")
    with pytest.raises(RepogenError, match="Not a directory"):
        listed(tmp_path / "a")
