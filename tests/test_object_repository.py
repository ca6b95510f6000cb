"""The same verbs as for a folder, against a real S3 server process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from repogen.desired import desired_models
from repogen.errors import ServerError
from repogen.object_repository import fitting, history, publish, read, recover, roll_back, steps_back
from repogen.object_store import connected
from repogen.plan import make_plan
from tests.s3server import BUCKET, free_port, needs_s3
from tests.serverkit import onnx_file

pytestmark = needs_s3
URL = f"s3://{BUCKET}/served/models"
ROOT = f"{BUCKET}/served/models"
STATE = f"{BUCKET}/served/.repogen/models"


def edit(project, before="max_batch_size: 4", after="max_batch_size: 2"):
    manifest = project / "repogen.yaml"
    assert before in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(before, after))


def other_weights(project, op="Mul"):
    onnx_file(
        project / "add.onnx",
        [(op, ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )


def planned(project, **options):
    models = desired_models(project / "repogen.yaml")
    return make_plan(models, read(URL), project, url=URL, arranged=fitting, **options)


def contents(s3, root=ROOT):
    client = s3.client()
    return {path[len(root) + 1 :]: client.cat_file(path) for path in client.find(root)}


def written(s3):
    """What was put into the served prefix, in its order."""
    return [row.split("/models/")[1].split("?")[0] for row in s3.asked("PUT") if f" {ROOT}/" in row]


def test_a_sync_uploads_weights_first_and_the_config_last(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    weights, config = written(s3)
    assert config == "add/config.pbtxt"
    assert weights.startswith("add/1/model-")
    assert contents(s3)[weights] == (remote / "add.onnx").read_bytes()
    assert weights.rpartition("/")[2] in contents(s3)[config].decode()


def test_a_second_sync_uploads_nothing_and_downloads_no_weights(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    s3.forget()
    shown = invoke("sync", "-f", remote / "repogen.yaml").stdout
    assert "nothing to do" in shown
    assert s3.asked("PUT", "POST", "DELETE") == []
    assert [row for row in s3.asked("GET") if ".onnx" in row] == []


def test_a_changed_config_is_all_that_is_uploaded(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    s3.forget()
    edit(remote)
    invoke("sync", "-f", remote / "repogen.yaml")
    assert written(s3) == ["add/config.pbtxt"]


def test_changed_weights_come_beside_the_old_which_go_last(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    old = written(s3)[0]
    s3.forget()
    other_weights(remote)
    invoke("sync", "-f", remote / "repogen.yaml")
    new, config = written(s3)
    assert (new != old, config) == (True, "add/config.pbtxt")
    assert sorted(contents(s3)) == sorted([new, config])
    # Copied aside and deleted only after the config had been replaced.
    rows = s3.asked("PUT", "POST")
    asides = [row for row in rows if "/kept/add/objects/" in row]
    assert len(asides) == 1
    assert rows.index(f"PUT {ROOT}/{config}") < rows.index(asides[0]) < rows.index(f"POST {BUCKET}?delete")


def test_history_and_rollback_byte_for_byte_without_an_upload(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    first = contents(s3)
    other_weights(remote)
    edit(remote)
    invoke("sync", "-f", remote / "repogen.yaml")
    second = contents(s3)
    listed = json.loads(invoke("history", "--json", "-f", remote / "repogen.yaml").stdout)
    assert [row["number"] for row in listed["generations"]] == [1, 2]
    assert listed["kept"] == [{"model": "add", "generation": 1}]
    invoke("rollback", "-f", remote / "repogen.yaml")
    assert contents(s3) == first
    invoke("rollback", "-f", remote / "repogen.yaml")
    assert contents(s3) == second


def test_foreign_and_drifted_objects_are_not_overwritten_unasked(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    client = s3.client()
    client.pipe_file(f"{ROOT}/theirs/config.pbtxt", b'name: "theirs"\n')
    config = f"{ROOT}/add/config.pbtxt"
    client.pipe_file(config, client.cat_file(config).replace(b"max_batch_size: 4", b"max_batch_size: 3"))
    shown = json.loads(invoke("plan", "--json", "-f", remote / "repogen.yaml", code=1).stdout)
    assert shown["counts"] == {"drifted": 1, "foreign": 1}
    s3.forget()
    invoke("sync", "-f", remote / "repogen.yaml", code=1)
    assert s3.asked("PUT", "POST", "DELETE") == []
    invoke("sync", "--overwrite", "-f", remote / "repogen.yaml")
    assert b"max_batch_size: 4" in client.cat_file(config)
    assert client.exists(f"{ROOT}/theirs/config.pbtxt")


def test_weights_that_somebody_replaced_are_seen_by_their_digest(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    weights = written(s3)[0]
    right = contents(s3)[weights]
    s3.client().pipe_file(f"{ROOT}/{weights}", right[::-1])  # of the same size
    assert "drifted" in invoke("plan", "-f", remote / "repogen.yaml", code=1).stdout
    invoke("sync", "--overwrite", "-f", remote / "repogen.yaml")
    assert contents(s3)[weights] == right


def test_what_left_the_manifest_goes_with_prune_and_comes_back(remote, s3, invoke):
    edit(remote, "models:\n", "models:\n  two: {source: add.onnx, max_batch_size: 4}\n")
    invoke("sync", "-f", remote / "repogen.yaml")
    both = contents(s3)
    edit(remote, "  two: {source: add.onnx, max_batch_size: 4}\n", "")
    invoke("sync", "--prune", "--yes", "-f", remote / "repogen.yaml")
    assert {name.split("/")[0] for name in contents(s3)} == {"add"}
    invoke("rollback", "-f", remote / "repogen.yaml")
    assert contents(s3) == both


def test_a_model_with_weights_of_its_own_is_a_folder(remote, s3, invoke):
    import onnx

    model = onnx.load(remote / "add.onnx")
    weights = onnx.numpy_helper.from_array(np.arange(400, dtype=np.float32), "w")
    model.graph.initializer.append(weights)
    model.graph.node[0].input[1] = "w"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 400
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 400
    onnx.save(model, remote / "add.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    invoke("sync", "-f", remote / "repogen.yaml")
    names = sorted(contents(s3))
    folder = names[0].rpartition("/")[0]
    assert names == [f"{folder}/model.onnx", f"{folder}/w.bin", "add/config.pbtxt"]
    assert f'default_model_filename: "{folder.rpartition("/")[2]}"'.encode() in contents(s3)["add/config.pbtxt"]


def test_an_older_version_that_stays_is_found_under_the_new_name(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    first = contents(s3)
    other_weights(remote)
    edit(remote, "source: add.onnx", "source: add.onnx\n    version: 2")
    invoke("sync", "-f", remote / "repogen.yaml")
    one, two, _ = sorted(contents(s3))
    assert (one.split("/")[1], two.split("/")[1]) == ("1", "2")
    assert one.split("/")[2] == two.split("/")[2]
    assert contents(s3)[one] == next(content for name, content in first.items() if name.endswith(".onnx"))


def test_a_label_file_keeps_its_name_and_comes_back(remote, s3, invoke):
    (remote / "labels.txt").write_text("a\nb\n")
    edit(remote, "    max_batch_size: 4\n", "    max_batch_size: 4\n    outputs: {y: {labels: labels.txt}}\n")
    invoke("sync", "-f", remote / "repogen.yaml")
    first = contents(s3)
    assert first["add/labels_0.txt"] == b"a\nb\n"
    (remote / "labels.txt").write_text("c\nd\n")
    s3.forget()
    invoke("sync", "-f", remote / "repogen.yaml")
    assert written(s3) == ["add/labels_0.txt", "add/config.pbtxt"]
    assert contents(s3)["add/labels_0.txt"] == b"c\nd\n"
    invoke("rollback", "-f", remote / "repogen.yaml")
    assert contents(s3) == first


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_any_other_store_does_the_same_without_locks(project, invoke, protocol):
    manifest = project / "repogen.yaml"
    url = f"{protocol}://{project}/store/models"
    edit(project, "served/models", url)
    assert "no second run" in invoke("sync", "-f", manifest).stderr
    first = set(connected(url).entries())
    assert "nothing to do" in invoke("sync", "-f", manifest).stdout
    other_weights(project)
    invoke("sync", "-f", manifest)
    assert len(first & set(connected(url).entries())) == 1
    invoke("rollback", "-f", manifest)
    assert set(connected(url).entries()) == first
    weights = next(name for name in first if name.endswith(".onnx"))
    connected(url).write(weights, b"somebody else's")
    assert "drifted" in invoke("plan", "-f", manifest, code=1).stdout


class Died(BaseException):
    """Nothing of ours runs any more."""


class Dying:
    """A store that is there for `left` more changes, and then for nothing at all."""

    def __init__(self, system, left):
        self._system, self._left, self._dead = system, left, False

    def __getattr__(self, name):
        return getattr(self._system, name)

    def call_s3(self, method, **arguments):
        if method in ("put_object", "copy_object", "delete_objects", "delete_object"):
            self._left -= 1
            self._dead = self._dead or self._left < 0
        return self._alive(self._system.call_s3, method, **arguments)

    def cat_file(self, *arguments, **options):
        return self._alive(self._system.cat_file, *arguments, **options)

    def find(self, *arguments, **options):
        return self._alive(self._system.find, *arguments, **options)

    def _alive(self, call, *arguments, **options):
        if self._dead:
            raise Died
        return call(*arguments, **options)


def change_config(project):
    edit(project)
    return planned(project)


def change_weights(project):
    other_weights(project)
    return planned(project)


def take_out(project):
    edit(project, "  add:\n    source: add.onnx\n    max_batch_size: 4\n", "  new: {source: add.onnx}\n")
    return planned(project, prune=True)


def go_back(_project):
    return None


@pytest.mark.slow
@pytest.mark.parametrize("change", [change_config, change_weights, take_out, go_back], ids=lambda it: it.__name__)
def test_death_at_every_request_leaves_old_or_new_and_the_next_run_ends_it(remote, s3, change):
    publish(planned(remote))
    if change is go_back:
        other_weights(remote, "Sub")
        edit(remote)
        publish(planned(remote))
    before, saved = contents(s3), _saved(s3)
    plan = change(remote)
    after = None
    for left in range(40):
        _restore(s3, saved)
        died = _dies(plan, left)
        _consistent(contents(s3))
        _act(plan)
        after = after or contents(s3)
        assert contents(s3) == after
        if not died:
            break
    assert left > 3, "nothing was interrupted"
    assert after != before


def _saved(s3):
    """Return every object of the bucket, with its metadata."""
    client = s3.client()
    return {path: (client.cat_file(path), client.metadata(path)) for path in client.find(BUCKET)}


def _restore(s3, saved):
    client = s3.client()
    for path in client.find(BUCKET):
        client.rm_file(path)
    for path, (content, metadata) in saved.items():
        key = path.removeprefix(f"{BUCKET}/")
        client.call_s3("put_object", Bucket=BUCKET, Key=key, Body=content, Metadata=metadata)


def _act(plan):
    """Do what was planned, as a sync does it: after what an earlier run left, and from what is there now."""
    recover(URL)
    if plan is None:
        if history(URL)[-1].number < 3:
            roll_back(URL, *steps_back(URL, 1))
        return
    models = [change.model for change in plan.changes if change.model]
    publish(make_plan(models, read(URL), plan.repository, url=URL, prune=plan.prune))


def _dies(plan, left):
    store = connected(URL)
    whole = store.system
    object.__setattr__(store, "system", Dying(whole, left))
    try:
        _act(plan)
    except Died:
        return True
    finally:
        object.__setattr__(store, "system", whole)
    return False


def _consistent(found):
    """Every config's file is there, and has the content that its name says."""
    from repogen import pbtxt

    for name, content in found.items():
        if name.endswith("config.pbtxt"):
            config = pbtxt.parse(content.decode())
            weights = found[f"{name.split('/')[0]}/1/{config.default_model_filename}"]
            said = f"model.onnx\0{hashlib.sha256(weights).hexdigest()}".encode()
            assert hashlib.sha256(said).hexdigest()[:12] in config.default_model_filename


@pytest.mark.slow
def test_a_killed_upload_goes_on_where_it_stopped(remote, s3, invoke):
    invoke("sync", "-f", remote / "repogen.yaml")
    served = contents(s3)
    weights = np.random.default_rng(0).standard_normal((5000, 5000)).astype(np.float32)  # 100 MB: six parts
    onnx_file(
        remote / "add.onnx",
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", "FLOAT", ["N", 5000])],
        [("y", "FLOAT", ["N", 5000])],
        {"w": weights},
    )
    s3.forget()
    command = [sys.executable, "-m", "repogen", "sync", "-f", str(remote / "repogen.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not [row for row in s3.asked("PUT") if "partNumber" in row]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    time.sleep(1)  # what was on its way arrives
    sent = len({row.split("partNumber=")[1].split("&")[0] for row in s3.asked("PUT") if "partNumber" in row})
    assert contents(s3) == served
    s3.forget()
    invoke("sync", "-f", remote / "repogen.yaml")
    again = len([row for row in s3.asked("PUT") if "partNumber" in row])
    assert sent >= 1
    assert sent + again == 6, "a part was sent twice, or none at all"
    name = next(name for name in contents(s3) if name.endswith(".onnx"))
    assert contents(s3)[name] == (remote / "add.onnx").read_bytes()


class Refusing:
    """Servers that refuse what they are brought, but for what was there before; `seen` is what was served then."""

    def __init__(self, s3, accepted):
        self.s3, self.accepted, self.seen = s3, accepted, []

    def bring(self, name, config, model):
        self.seen.append(sorted(contents(self.s3)))
        if config != self.accepted:
            raise ServerError(f"{name} does not load")

    def unload(self, name):
        raise AssertionError(name)


def test_what_a_server_refuses_gives_way_to_the_previous_generation(remote, s3):
    publish(planned(remote))
    before = contents(s3)
    other_weights(remote)
    live = Refusing(s3, before["add/config.pbtxt"].decode())
    with pytest.raises(ServerError, match="does not load; the previous generation is back; nothing of it was publ"):
        publish(planned(remote), live=live)
    assert contents(s3) == before
    assert len(live.seen[0]) == 3, "the old weights go only when the new ones are proved"
    assert live.seen[1] == sorted(before)
    publish(planned(remote))
    assert contents(s3) != before


def test_a_failure_says_what_to_do(remote, s3, invoke, monkeypatch):
    manifest = remote / "repogen.yaml"
    edit(remote, f"s3://{BUCKET}/served", "s3://no-such-bucket/served")
    assert "no such bucket" in invoke("plan", "-f", manifest, code=2).stderr
    edit(remote, "s3://no-such-bucket/served/models", f"s3://{BUCKET}")
    assert f"s3://{BUCKET}/models" in invoke("plan", "-f", manifest, code=2).stderr
    edit(remote, f"s3://{BUCKET}", f"s3://{BUCKET}/served/models")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    connected.cache_clear()
    begun = time.monotonic()
    assert "cannot be reached" in invoke("sync", "-f", manifest, code=4).stderr
    assert time.monotonic() - begun < 30
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    connected.cache_clear()
    assert "no credentials" in invoke("plan", "-f", manifest, code=2).stderr


def test_wrong_credentials_are_refused_and_never_printed(remote, s3, invoke):
    import urllib.request

    def ask_for_keys(count):
        body = str(count).encode()
        kind = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{s3.url}/moto-api/reset-auth", data=body, headers=kind, method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    ask_for_keys(0)
    try:
        result = invoke("sync", "-f", remote / "repogen.yaml", code=2)
    finally:
        ask_for_keys("inf")
    assert "refuses access" in result.stderr
    assert "not-to-be-printed" not in result.stdout + result.stderr
