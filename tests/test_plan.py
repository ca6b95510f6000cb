from pathlib import Path

from repogen.desired import desired_models
from repogen.plan import make_plan
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
