import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repogen import child
from repogen.child import ChildFailed
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("nurseries")


@pytest.fixture
def nurseries(monkeypatch):
    """Nurseries of this test alone; their children come from tests/nursery_kids.py."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    mine = child._Nurseries()
    monkeypatch.setattr(child, "_NURSERIES", mine)
    yield mine
    mine.close()


def ask(do, **limits):
    return child.ask("nursery_kids", {"do": do}, **limits)


@pytest.fixture(autouse=True)
def _kids(monkeypatch):
    """Let the questions go to tests.nursery_kids: `ask` itself knows only modules of repogen."""
    dumps = child.json.dumps

    class Json:
        loads = staticmethod(child.json.loads)

        @staticmethod
        def dumps(value):
            if "module" in value:
                value = value | {"module": "tests.nursery_kids"}
            return dumps(value)

    monkeypatch.setattr(child, "json", Json)


def test_each_question_has_a_process_of_its_own_from_one_nursery():
    first, second = ask("tell"), ask("tell")
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"] != os.getpid()
    assert 0 < first["peak"] < child.MEMORY


@pytest.mark.parametrize(
    ("do", "limits", "told"),
    [
        ("die", {}, "ended by SIGSEGV"),
        ("eat", {}, "needs more than 4.3 GB of memory"),
        ("sleep", {"seconds": 1}, "did not finish within 1 s"),
        ("fail", {}, "ValueError: as asked"),
    ],
)
def test_what_happens_to_a_child_reaches_nobody_else(do, limits, told):
    parent = ask("tell")["parent"]
    with pytest.raises(ChildFailed, match=told):
        ask(do, **limits)
    assert ask("tell")["parent"] == parent


def test_what_a_child_prints_is_not_its_answer_and_it_has_no_stdin():
    assert ask("print")["stdin"] == ""


def test_it_works_where_we_are(tmp_path, monkeypatch):
    ask("tell")
    monkeypatch.chdir(tmp_path)
    assert ask("tell")["folder"] == str(tmp_path)


def test_a_nursery_that_has_ended_is_replaced(nurseries):
    parent = ask("tell")["parent"]
    os.kill(parent, 9)
    time.sleep(0.1)
    assert ask("tell")["parent"] != parent


def test_two_at_a_time_have_a_nursery_each_and_none_is_left(nurseries):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, ["tell"] * 6))
    pids = [one.pid for one in nurseries._idle]
    assert 1 <= len(pids) <= 2
    nurseries.close()
    assert [pid for pid in pids if Path("/proc", str(pid)).exists()] == []
