"""One writer, on a real S3 server process."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from repogen import object_lock, object_s3
from repogen.errors import Locked
from repogen.object_lock import writer
from repogen.object_store import connected
from tests.s3server import BUCKET, needs_s3

pytestmark = needs_s3
URL = f"s3://{BUCKET}/.repogen/models"
HOLD = """
import sys, time
from repogen.object_lock import writer
from repogen.object_store import connected
with writer(connected(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def state(s3):
    return connected(URL)


@pytest.fixture
def holder(state):
    with subprocess.Popen([sys.executable, "-c", HOLD, URL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_is_told_who_holds_it(state, holder):
    with pytest.raises(Locked, match=f"process {holder.pid} on "), writer(state):
        pass


def test_the_lock_of_a_dead_process_of_this_machine_is_free_at_once(state, holder):
    holder.kill()
    holder.wait()
    with writer(state):
        assert json.loads(state.read("lock"))["pid"] == os.getpid()
    assert state.read("lock") is None


def test_one_waits_for_another(state):
    notes, order = [], []
    inside = threading.Event()

    def first():
        with writer(state):
            inside.set()
            time.sleep(1)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with writer(state, wait=30, note=notes.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert "waiting for" in notes[0]


def test_a_lock_from_elsewhere_is_free_when_its_lease_is_over(state, monkeypatch):
    owner = {"user": "a", "pid": 1, "host": "elsewhere", "started": "yesterday", "machine": "elsewhere"}
    object_s3.put(state.system, state.path("lock"), json.dumps(owner).encode(), "")
    with pytest.raises(Locked, match="process 1 on elsewhere, since yesterday"), writer(state):
        pass
    monkeypatch.setattr(object_lock, "LEASE", -1)
    with writer(state):
        assert json.loads(state.read("lock"))["pid"] == os.getpid()


def test_an_owner_shows_that_it_lives_and_sees_when_it_lost(state, monkeypatch):
    monkeypatch.setattr(object_lock, "_BEAT", 0.1)
    with pytest.raises(Locked, match="took the lock over"), writer(state):  # noqa: PT012 - the block's end raises
        first = object_s3.head(state.system, state.path("lock"))["LastModified"]
        deadline = time.monotonic() + 20
        while object_s3.head(state.system, state.path("lock"))["LastModified"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        state.write("lock", b"somebody else's")
        time.sleep(1)
    assert state.read("lock") == b"somebody else's"


def test_a_store_without_conditions_is_used_with_a_warning():
    notes = []
    state = connected("memory://bucket/.repogen/models")
    with writer(state, note=notes.append):
        pass
    assert "no second run" in notes[0]
