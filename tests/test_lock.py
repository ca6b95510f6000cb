import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from repogen.errors import Locked, RepogenError
from repogen.lock import writer

HOLDER = """
import sys, time
from pathlib import Path
from repogen.lock import writer
with writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_writer_is_told_who_holds_it(tmp_path, holder):
    with pytest.raises(Locked) as refused, writer(tmp_path):
        pass
    owner = json.loads((tmp_path / "lock").read_text())
    assert owner["pid"] == holder.pid
    for part in (f"process {holder.pid}", owner["host"], owner["started"], owner["user"]):
        assert part in str(refused.value)
    assert refused.value.exit_code == 5


def test_it_waits_as_long_as_it_is_told_to(tmp_path, holder):
    begun = time.monotonic()
    with pytest.raises(Locked), writer(tmp_path, wait=0.4):
        pass
    assert time.monotonic() - begun >= 0.4


def test_a_killed_owner_frees_it_by_dying(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with writer(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_waiting_ends_when_the_owner_goes(tmp_path, holder):
    told = []

    def note(text):
        told.append(text)
        holder.kill()

    with writer(tmp_path, wait=30, note=note):
        pass
    assert str(holder.pid) in told[0]


def test_the_file_stays_the_same_one(tmp_path):
    with writer(tmp_path):
        first = (tmp_path / "lock").stat().st_ino
    with writer(tmp_path):
        assert (tmp_path / "lock").stat().st_ino == first


def test_the_note_of_a_dead_owner_is_not_taken_for_the_holder(tmp_path):
    with writer(tmp_path):
        (tmp_path / "lock").write_text(
            json.dumps({"user": "x", "pid": 2**22 + 1, "host": os.uname().nodename, "started": ""})
        )
        with pytest.raises(Locked, match="has just begun"), writer(tmp_path):
            pass


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, code):
    def none(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(RepogenError, match="has no locks") as refused, writer(tmp_path):
        pass
    assert "local disk" in str(refused.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RepogenError, match="file/state"), writer(tmp_path / "file" / "state"):
        pass
