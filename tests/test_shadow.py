"""A new version that must answer, under another name, before the old one is exchanged: on the real server."""

import json
import signal
import subprocess
import sys
import threading

import pytest

from repogen import server
from repogen.errors import ServerError
from repogen.triton import Client
from tests.conftest import tree
from tests.serverkit import needs_server, wait_until
from tests.test_live import answer, put


def real(test):
    for mark in needs_server:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def triton(tmp_path_factory):
    """One server for all of them; each test begins with version 1 of a and b."""
    from click.testing import CliRunner

    from repogen.cli import main

    folder = tmp_path_factory.mktemp("shadow")
    done = CliRunner().invoke(main, ["sync", "-f", str(put(folder, "a", "b"))])
    assert done.exit_code == 0, done.output
    with server.start(folder / "served/models") as triton:
        yield folder, triton


@pytest.fixture
def served(triton, invoke):
    folder, running = triton
    options = ["-f", folder / "repogen.yaml", "--url", running.grpc]
    put(folder, "a", "b")
    invoke("sync", *options)
    with Client(running.grpc) as client:
        yield folder, client, options
        assert sorted(path.name for path in (folder / "served/models").iterdir()) == ["a", "b"]
        assert not [row for row in client.models() if row[0] == "a-shadow" and row[2] != "UNAVAILABLE"]
        assert not list((folder / "served").rglob("staging"))


@real
def test_the_old_one_serves_until_the_new_one_has_answered(served, invoke, tmp_path):
    folder, client, options = served
    asked = tmp_path / "asked"
    put(
        folder, "a", "b", number=2,
        start="self.name = args['model_name']",
        run=f"open({str(asked)!r}, 'a').write(self.name + '\\n')",
    )  # fmt: skip
    seen, over = [], threading.Event()

    def probe():
        with Client(client.url) as own:
            while not over.is_set():
                seen.append(answer(own, "b") + answer(own, "a"))

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        said = invoke("sync", *options, "--shadow", "a").stderr
    finally:
        over.set()
        prober.join()
    assert "a-shadow on 127.0.0.1" in said
    assert "batch 1 " in said
    names = asked.read_text().split()
    assert names[:17] == ["a-shadow"] * 17  # the smoke request, and then sixteen at least
    assert "a-shadow" not in names[names.index("a") :] if "a" in names else True
    firsts = [row[1] for row in seen]
    assert firsts == sorted(firsts)  # the old one's answers, then the new one's, none missing
    assert answer(client, "a") == [2.0]
    history = json.loads(invoke("history", *options[:2], "--json").stdout)["generations"]
    assert "a-shadow" not in json.dumps(history)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ({"start": "raise RuntimeError('no weights')"}, "no weights"),
        (
            {"start": "self.count = 0", "run": "self.count += 1; assert self.count < 5, 'out of memory'"},
            "out of memory",
        ),
        ({"number": "float('nan')"}, "the new version of a answers NaN or infinity in y, the old one does not"),
    ],
    ids=["at load", "at its fifth request", "not a number"],
)
@real
def test_what_does_not_hold_touches_nothing(served, invoke, new, told):
    folder, client, options = served
    before = tree(folder / "served/models")
    number = json.loads(invoke("history", *options[:2], "--json").stdout)["generations"][-1]["number"]
    put(folder, "a", "b", **{"number": 3, **new})
    said = invoke("sync", *options, "--shadow", "a", code=4).stderr
    assert told in said
    assert "a was not touched" in said
    assert tree(folder / "served/models") == before
    assert (answer(client, "a"), answer(client, "b")) == ([1.0], [1.0])
    after = json.loads(invoke("history", *options[:2], "--json").stdout)["generations"][-1]["number"]
    assert after == number


@real
def test_a_run_that_is_killed_beside_its_shadow_is_brought_to_its_end(served, invoke):
    folder, client, options = served
    put(folder, "a", "b", number=7, start="import time; time.sleep(0.7)")
    command = [sys.executable, "-m", "repogen", "sync", *map(str, options), "--shadow", "a"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        wait_until((folder / "served/models/a-shadow").exists, 20)
        process.send_signal(signal.SIGKILL)
    assert (folder / "served/models/a-shadow").exists()
    assert answer(client, "a") == [1.0]
    (left,) = (line for line in invoke("plan", *options[:2]).stdout.splitlines() if "a-shadow" in line)
    assert "--prune removes it" in left
    invoke("sync", *options, "--shadow", "a")
    assert answer(client, "a") == [7.0]


@real
def test_a_model_that_has_the_name_already_is_left_alone(served, invoke):
    folder, client, options = served
    (folder / "served/models/a-shadow").mkdir()
    (folder / "served/models/a-shadow/config.pbtxt").write_text('name: "a-shadow"')
    put(folder, "a", "b", number=3)
    try:
        assert "a-shadow: is a model of its own" in invoke("sync", *options, "--shadow", "a", code=1).stderr
        assert (folder / "served/models/a-shadow/config.pbtxt").read_text() == 'name: "a-shadow"'
        assert answer(client, "a") == [1.0]
    finally:
        (folder / "served/models/a-shadow/config.pbtxt").unlink()
        (folder / "served/models/a-shadow").rmdir()


@real
def test_without_a_shadow_the_fifth_request_would_have_met_the_broken_one(served, invoke):
    """What the tests above are worth: one request is not enough to find it."""
    folder, client, options = served
    put(folder, "a", "b", number=3, start="self.count = 0", run="self.count += 1; assert self.count < 5")
    invoke("sync", *options)
    assert [answer(client, "a") for _ in range(3)] == [[3.0]] * 3  # the first was the smoke request
    with pytest.raises(ServerError):
        answer(client, "a")


def test_a_shadow_that_cannot_be_had_is_refused_before_anything_is_written(tmp_path, invoke):
    manifest = put(tmp_path, "a")
    said = invoke("sync", "-f", manifest, "--shadow", "a", code=1).stderr
    assert "--url HOST:PORT" in said
    assert "there is no model 'c'" in invoke("sync", "-f", manifest, "--shadow", "c", code=1).stderr
    assert not (tmp_path / "served").exists()


@real
def test_a_server_that_polls_is_refused(tmp_path, invoke):
    manifest = put(tmp_path, "a")
    invoke("sync", "-f", manifest)
    with server.start(tmp_path / "served/models", control="poll") as triton:
        put(tmp_path, "a", number=2)
        said = invoke("sync", "-f", manifest, "--url", triton.grpc, "--shadow", "a", code=1).stderr
    assert "looks at the repository by itself" in said
