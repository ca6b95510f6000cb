import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from repogen.errors import Refused, ServerError
from repogen.pbtxt import parse
from repogen.tune.journal import Journal
from repogen.tune.override import (
    all_borrowed,
    as_json,
    borrowed,
    give_back_left,
    put,
    setting_of,
    setting_of_step,
    with_setting,
    with_setting_of_step,
)
from repogen.tune.setting import QueuePolicy, Setting

CONFIG = """
name: "ocr" backend: "python" max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
instance_group [{ kind: KIND_CPU count: 2 }]
dynamic_batching {
  max_queue_delay_microseconds: 3000 preferred_batch_size: [4] preserve_ordering: true
  default_queue_policy { default_timeout_microseconds: 9000 max_queue_size: 7 }
}
"""


class FakeServer:
    """Runs what it was loaded with; `stubborn` ignores overrides, as POLL mode would."""

    url = "127.0.0.1:8001"

    def __init__(self, text=CONFIG, *, stubborn=False):
        self.running, self.loads, self.stubborn = parse(text), 0, stubborn

    def config(self, model):
        assert model == self.running.name
        return self.running

    def load(self, name, config_json=None):
        from google.protobuf.json_format import Parse

        assert config_json is not None, "a plain load restores nothing"
        self.loads += 1
        if not self.stubborn:
            self.running = Parse(config_json, type(self.running)())


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "ocr.jsonl")


def test_the_setting_of_a_config():
    policy = QueuePolicy(9000, "reject", 7)
    assert setting_of(parse(CONFIG)) == Setting(8, 2, 3000, (4,), preserve_ordering=True, free_axes=True, policy=policy)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(("max_batch_size: 8", "max_batch_size: 0"), "never merged", id="unbatched"),
        pytest.param(
            ("instance_group [", "instance_group [{ kind: KIND_CPU count: 1 }, "), "2 instance groups", id="groups"
        ),
        pytest.param(("dynamic_batching {", "sequence_batching {} #"), "another scheduler", id="sequences"),
    ],
)
def test_what_cannot_be_tuned_is_refused(edit, words):
    text = (
        CONFIG.replace(*edit)
        if "sequence" not in edit[1]
        else CONFIG.split("dynamic_batching", maxsplit=1)[0] + "sequence_batching {}"
    )
    with pytest.raises(Refused, match=words):
        setting_of(parse(text))


def test_a_setting_is_put_into_a_copy_and_the_rest_stays():
    config = parse(CONFIG)
    changed = with_setting(config, Setting(4, 3, 500, (2,)))
    assert (changed.max_batch_size, changed.instance_group[0].count) == (4, 3)
    assert changed.dynamic_batching.max_queue_delay_microseconds == 500
    assert list(changed.dynamic_batching.preferred_batch_size) == [2]
    assert changed.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert config == parse(CONFIG)
    assert not with_setting(config, Setting(8, batching=False)).HasField("dynamic_batching")
    assert with_setting(with_setting(config, Setting(8, batching=False)), Setting(8)).HasField("dynamic_batching")


@pytest.mark.parametrize(("instances", "threads"), [(1, "6"), (2, "3"), (4, "1")])
def test_all_instances_of_a_stand_in_have_as_many_threads_together(instances, threads):
    config = parse(CONFIG)
    config.instance_group[0].count = 3
    config.parameters["intra_op_threads"].string_value = "2"
    changed = with_setting(config, replace(setting_of(config), instances=instances))
    assert changed.parameters["intra_op_threads"].string_value == threads
    assert "intra_op_threads" not in with_setting(parse(CONFIG), setting_of(parse(CONFIG))).parameters


def test_instances_are_counted_over_the_gpus_of_a_group():
    text = CONFIG.replace("kind: KIND_CPU count: 2", "kind: KIND_GPU count: 1 gpus: [0, 1]")
    assert setting_of(parse(text)).instances == 2
    assert with_setting(parse(text), Setting(8, 4)).instance_group[0].count == 2


def test_a_server_that_ignores_overrides_is_found_out():
    server = FakeServer(stubborn=True)
    with pytest.raises(ServerError, match="does not run the config that it was loaded with"):
        put(server, with_setting(server.running, Setting(8, 1, 100)))


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt])
def test_the_config_is_back_however_the_block_ends(journal, end):
    server = FakeServer()
    try:
        with borrowed(server, "ocr", journal) as original:
            put(server, with_setting(original, Setting(8, 1, 100)))
            assert journal.borrowed() is not None
            if end:
                raise end
    except (ValueError, KeyboardInterrupt):
        pass
    assert server.running == parse(CONFIG)
    assert journal.borrowed() is None


def test_nothing_is_loaded_where_nothing_was_changed(journal):
    server = FakeServer()
    with borrowed(server, "ocr", journal):
        pass
    assert server.loads == 0


@pytest.mark.parametrize("setting", [Setting(8, 1, 100), Setting(4, 3), Setting(8, 1, batching=False)])
def test_the_next_run_puts_back_what_a_killed_one_left(journal, setting):
    server = FakeServer()
    block = borrowed(server, "ocr", journal)
    original = block.__enter__()  # and never left: as after kill -9
    put(server, with_setting(original, setting))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    assert give_back_left(server, journal)
    assert server.running == parse(CONFIG)
    assert not give_back_left(server, journal)


def test_what_was_left_on_another_server_is_said(journal):
    journal.add("borrowed", url="elsewhere:8001", model="ocr", config={})
    with pytest.raises(Refused, match="left ocr at elsewhere:8001"):
        give_back_left(FakeServer(), journal, live=lambda _url: True)
    assert not give_back_left(FakeServer(), journal, live=lambda _url: False)
    assert journal.borrowed() is None


def test_a_server_where_nobody_answers_is_gone(journal):
    journal.add("borrowed", url="127.0.0.1:9", model="ocr", config={})
    assert not give_back_left(FakeServer(), journal)
    assert journal.borrowed() is None


def test_a_model_that_was_published_anew_keeps_its_new_config(journal):
    server = FakeServer()
    block = borrowed(server, "ocr", journal)
    block.__enter__()
    server.running = parse(CONFIG + 'parameters { key: "repogen_fingerprint" value { string_value: "new" } }')
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    assert not give_back_left(server, journal)
    assert server.loads == 0


def test_a_config_that_does_not_come_back_is_an_error_and_stays_on_record(journal):
    server = FakeServer()

    def trial():
        with borrowed(server, "ocr", journal) as original:
            put(server, with_setting(original, Setting(8, 1, 100)))
            server.stubborn = True

    with pytest.raises(ServerError, match="does not run its own config again"):
        trial()
    assert journal.borrowed() is not None


SCRIPT = """
import sys, time
from pathlib import Path
from tests.tune.test_override import FakeServer
from repogen.tune.journal import Journal
from repogen.tune.override import borrowed, put, with_setting
from repogen.tune.setting import Setting

class Slow(FakeServer):
    def load(self, name, config_json=None):
        super().load(name, config_json)
        if self.loads > 1:
            print("restoring", flush=True)
            time.sleep(float(sys.argv[2]))

server = Slow()
with borrowed(server, "ocr", Journal(Path(sys.argv[1]))) as original:
    put(server, with_setting(original, Setting(8, 1, 100)))
    print("trial", flush=True)
    time.sleep(30)
"""


def child(journal, pause):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(journal.path), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_trial_and_the_config_comes_back(journal, number):
    with child(journal, 0) as process:
        assert process.stdout.readline() == "trial\n"
        process.send_signal(number)
        assert process.stdout.readline() == "restoring\n"
        assert process.wait(20) != 0
    assert journal.borrowed() is None


def test_a_second_signal_ends_the_process_at_once(journal):
    with child(journal, 30) as process:
        assert process.stdout.readline() == "trial\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "restoring\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert journal.borrowed() is not None


class Servers:
    """Several models of one server; what is `stuck` keeps the config that it has."""

    url = "127.0.0.1:8001"

    def __init__(self, *names, stuck=()):
        self.each = {name: FakeServer(CONFIG.replace('"ocr"', f'"{name}"')) for name in names}
        self.stuck = stuck

    def config(self, model):
        return self.each[model].config(model)

    def load(self, name, config_json=None):
        self.each[name].stubborn = name in self.stuck
        self.each[name].load(name, config_json)


def with_short_delays(server, journals, names, then):
    with all_borrowed(server, journals) as originals:
        for name in names:
            put(server, with_setting(originals[name], replace(setting_of(originals[name]), delay=1)))
        then()


def test_every_step_of_a_pipeline_is_put_back(tmp_path):
    server = Servers("a", "b", "c")
    journals = {name: Journal(tmp_path / f"{name}.jsonl") for name in "abc"}
    with pytest.raises(ZeroDivisionError):
        with_short_delays(server, journals, "ab", lambda: 1 / 0)
    assert all(setting_of(server.config(name)).delay == 3000 for name in "abc")
    assert all(journal.borrowed() is None for journal in journals.values())


def test_one_that_stays_keeps_no_other(tmp_path):
    server = Servers("a", "b", "c")
    journals = {name: Journal(tmp_path / f"{name}.jsonl") for name in "abc"}
    with pytest.raises(ServerError, match="b does not run its own config"):
        with_short_delays(server, journals, "abc", lambda: setattr(server, "stuck", ("b",)))
    assert [setting_of(server.config(name)).delay for name in "abc"] == [3000, 1, 3000]
    assert [journal.borrowed() is None for journal in journals.values()] == [True, False, True]
    server.stuck = ()
    assert give_back_left(server, journals["b"])
    assert setting_of(server.config("b")).delay == 3000


def test_a_step_that_merges_nothing_has_its_instances(tmp_path):
    plain = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").split("dynamic_batching")[0]
    server, journal = FakeServer(plain), Journal(tmp_path / "ocr.jsonl")
    assert setting_of_step(server.config("ocr")) == Setting(1, 2, batching=False)
    with all_borrowed(server, {"ocr": journal}) as originals:
        put(server, with_setting_of_step(originals["ocr"], Setting(1, 3, batching=False)))
        assert server.config("ocr").instance_group[0].count == 3
    assert server.config("ocr") == parse(plain)
    changed = with_setting_of_step(parse(plain), Setting(1, 3, batching=False))
    journal.add("borrowed", url=server.url, model="ocr", config=json.loads(as_json(parse(plain))))
    server.running = changed  # as a run that was killed leaves it
    assert give_back_left(server, journal)
    assert server.config("ocr") == parse(plain)
