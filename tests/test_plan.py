import json
import os
from dataclasses import replace
from pathlib import Path

from repogen.desired import desired_models
from repogen.model import PendingBuild
from repogen.plan import in_order, make_plan
from repogen.publish import publish
from repogen.repository import State, read_repository


def planned(project: Path, **options):
    root = project / "served" / "models"
    return make_plan(desired_models(project / "repogen.yaml"), read_repository(root), root, **options)


def one(project: Path, **options):
    (change,) = planned(project, **options).changes
    return change


def test_a_new_model_is_created(project):
    plan = planned(project)
    assert plan.counts() == {"create": 1}
    assert plan.bytes_to_write == (project / "add.onnx").stat().st_size


def test_what_was_published_is_kept(project):
    publish(planned(project))
    assert one(project).action == "keep"
    assert planned(project).writes == ()


def test_a_changed_setting_is_rewritten_with_its_reason_and_diff(project):
    publish(planned(project))
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("max_batch_size: 4", "max_batch_size: 2"))
    change = one(project)
    assert (change.action, change.reason) == ("rewrite", "config: max_batch_size")
    assert "-max_batch_size: 4" in change.diff
    assert "+max_batch_size: 2" in change.diff


def test_a_changed_model_is_rewritten(project):
    publish(planned(project))
    import onnx

    model = onnx.load(project / "add.onnx")
    model.producer_name = "someone else"
    onnx.save(model, project / "add.onnx")
    change = one(project)
    assert (change.action, change.reason) == ("rewrite", "1/model.onnx changed")


def test_an_edited_config_is_drift_and_only_overwritten_when_asked(project):
    publish(planned(project))
    config = project / "served/models/add/config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 4", "max_batch_size: 3"))
    plan = planned(project)
    assert [change.action for change in plan.blocked] == ["drifted"]
    assert plan.writes == ()
    assert one(project, overwrite=True).action == "rewrite"


def test_an_edited_model_file_is_drift(project):
    publish(planned(project))
    with (project / "served/models/add/1/model.onnx").open("ab") as file:
        file.write(b"x")
    assert one(project).action == "drifted"


def test_a_strangers_folder_is_never_overwritten_unasked(project):
    folder = project / "served/models/add"
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "add"\n')
    assert one(project).action == "foreign"
    assert planned(project).blocked
    assert one(project, overwrite=True).action == "rewrite"


def test_a_config_without_its_weights_is_completed(project):
    publish(planned(project))
    (project / "served/models/add/1/model.onnx").unlink()
    assert read_repository(project / "served/models")["add"].state is State.PARTIAL
    assert one(project).action == "create"


def test_what_left_the_manifest_is_kept_and_reported(project):
    publish(planned(project))
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("  add:", "  plus:"))
    assert {change.name: change.action for change in planned(project).changes} == {"add": "remove", "plus": "create"}


def test_a_pycache_is_no_drift(project):
    publish(planned(project))
    cache = project / "served/models/add/1/__pycache__"
    cache.mkdir()
    (cache / "model.pyc").write_bytes(b"x")
    assert one(project).action == "keep"


def rename(project, before, after):
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace(before, after))


def test_pruning_is_asked_for_and_much_of_it_twice(project, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    rename(project, "  add:", "  plus:")
    assert "kept (--prune removes it)" in invoke("sync", "-f", project / "repogen.yaml").stdout
    assert (project / "served/models/add").exists()
    refused = invoke("sync", "--prune", "-f", project / "repogen.yaml", code=1).stderr
    assert "1 of 2 models would be removed" in refused
    assert "--yes" in refused
    assert (project / "served/models/add").exists()
    result = invoke("plan", "--prune", "--exit-code", "-f", project / "repogen.yaml", code=1)
    assert "- add" in result.stdout
    assert "removed 1" in invoke("sync", "--prune", "--yes", "-f", project / "repogen.yaml").stdout
    assert sorted(path.name for path in (project / "served/models").iterdir()) == ["plus"]


def test_the_last_line_of_a_plan_says_what_is_there(project, invoke):
    manifest = project / "repogen.yaml"
    invoke("sync", "-f", manifest)
    config = project / "served/models/add/config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    shown = invoke("plan", "-f", manifest, code=1).stdout
    assert "config.pbtxt, in what Triton does not read" in shown
    assert shown.splitlines()[-1].endswith("served/models: 1 drifted")
    assert "nothing to do" not in shown
    invoke("sync", "--overwrite", "-f", manifest)
    rename(project, "  add:", "  plus:")
    invoke("sync", "-f", manifest)
    assert "1 to keep, 1 no longer in the manifest" in invoke("plan", "-f", manifest).stdout
    assert "1 to keep, 1 to remove" in invoke("plan", "--prune", "-f", manifest).stdout
    assert "removed 1 of 2 models" in invoke("sync", "--prune", "--yes", "-f", manifest).stdout


def test_a_hand_edited_left_over_is_not_pruned_unasked(project, invoke):
    invoke("sync", "-f", project / "repogen.yaml")
    (project / "served/models/add/1/model.onnx").write_bytes(b"mine")
    rename(project, "  add:", "  plus:")
    invoke("sync", "--prune", "--yes", "-f", project / "repogen.yaml")
    assert (project / "served/models/add").exists()
    invoke("sync", "--prune", "--yes", "--overwrite", "-f", project / "repogen.yaml")
    assert not (project / "served/models/add").exists()


def test_drift_says_what_was_edited(project):
    publish(planned(project))
    (project / "served/models/add/notes.txt").write_text("mine")
    (project / "served/models/add/1/model.onnx").write_bytes(b"mine")
    assert "1/model.onnx changed; notes.txt gone" in one(project).reason
    assert one(project).reason.startswith("edited by hand")


def test_a_new_version_stands_beside_the_old_one(project):
    publish(planned(project))
    old = (project / "served/models/add/1/model.onnx").read_bytes()
    (project / "add.onnx").write_bytes(old + b"\x72\x00")  # a doc string: other bytes, the same model
    rename(project, "    max_batch_size: 4\n", "    max_batch_size: 4\n    version: 2\n")
    publish(planned(project))
    folder = project / "served/models/add"
    assert (folder / "1/model.onnx").read_bytes() == old
    assert (folder / "2/model.onnx").read_bytes() != old
    assert read_repository(project / "served/models")["add"].state is State.WHOLE
    assert one(project).action == "keep"


def test_retention_is_by_count_and_never_takes_what_is_served(project):
    manifest = project / "repogen.yaml"
    text = manifest.read_text()
    folder = project / "served/models/add"

    def versions(number, more=""):
        manifest.write_text(text + f"    version: {number}\n{more}")
        publish(planned(project))
        assert one(project).action == "keep"
        return sorted(int(path.name) for path in folder.iterdir() if path.is_dir())

    assert versions(1) == [1]
    assert versions(2) == [1, 2]
    assert versions(3) == [2, 3]
    assert versions(4, "    keep_versions: 3\n") == [2, 3, 4]
    assert versions(5, "    versions: {specific: [2, 5]}\n") == [2, 4, 5]
    assert versions(6, "    versions: {latest: 4}\n") == [2, 4, 5, 6]
    assert versions(7, "    keep_versions: 1\n") == [7]
    assert versions(3) == [3]


def test_the_order_is_stable_and_ensembles_come_after_their_members(project):
    (change,) = planned(project).changes
    model = change.model

    def named(name, *members):
        steps = {"step": [{"model_name": member} for member in members]}
        config = {"ensemble_scheduling": steps} if members else {}
        return replace(change, name=name, model=replace(model, name=name, config=config))

    changes = [named("all", "b", "whole"), named("b"), named("whole", "z"), named("z"), named("loop", "loop")]
    assert [found.name for found in in_order(changes)] == ["b", "z", "whole", "all", "loop"]


def test_a_pending_build_is_a_rebuild_or_a_creation_with_its_reason(project):
    publish(planned(project))
    root = project / "served/models"
    (model,) = desired_models(project / "repogen.yaml")
    pending = replace(model, files=(), pending=(PendingBuild("model.plan", "k", "TensorRT 10, sm_90", "never built"),))
    plan = make_plan([pending], read_repository(root), root)
    (change,) = plan.changes
    assert (change.action, plan.pending) == ("rebuild", True)
    assert change.reason == "builds model.plan (TensorRT 10, sm_90): never built"
    assert make_plan([pending], {}, root).changes[0].action == "create"


def test_the_space_it_needs_stands_in_the_plan_and_is_checked_first(project, invoke, monkeypatch):
    found = json.loads(invoke("plan", "-f", project / "repogen.yaml", "--json").stdout)
    assert found["space"]["needed"] > found["bytes"] > 0
    assert found["space"]["free"] > found["space"]["needed"]
    real = os.statvfs

    class Full:
        f_frsize, f_bavail = 4096, 1

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    refused = invoke("sync", "-f", project / "repogen.yaml", code=1).stderr
    assert "needs 69.6 KB, and 4.1 KB are free" in refused
    assert not (project / "served").exists()
    monkeypatch.setattr(os, "statvfs", real)
    invoke("sync", "-f", project / "repogen.yaml")
