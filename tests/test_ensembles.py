import subprocess
from pathlib import Path

import numpy as np
import pytest

from repogen import pbtxt
from repogen.desired import chosen, desired_models
from repogen.errors import ManifestError, Refused
from repogen.load.payload import pool
from repogen.places import place_of
from repogen.plan import make_plan, members
from repogen.together import refuse_mixing
from tests.s3server import BUCKET, needs_s3
from tests.serverkit import needs_server

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array + 1)]) for array in arrays]
"""
HEAD = 'triton: "26.08"\nrepository: served/models\ndefaults:\n  instances: [{kind: cpu}]\n  dynamic_batching: {max_queue_delay: 1ms}\nmodels:\n'
MODEL = """  {name}:
    source: add.py
    max_batch_size: {batch}
    inputs: {{x: {{dtype: {x}, dims: {xs}}}}}
    outputs: {{y: {{dtype: {y}, dims: {ys}}}}}
{more}"""
STEPS = """  both:
    backend: ensemble
    steps:
      - {model: b, inputs: {x: mid}, outputs: {y: out}}
      - {model: a, inputs: {x: in}, outputs: {y: mid}}
"""


def member(name, batch=8, x="FP32", xs="[4]", y="FP32", ys="[4]", more=""):
    return MODEL.format(name=name, batch=batch, x=x, xs=xs, y=y, ys=ys, more=more)


def manifest_of(folder: Path, *parts: str) -> Path:
    (folder / "add.py").write_text(CODE)
    path = folder / "repogen.yaml"
    path.write_text(HEAD + "".join(parts))
    return path


def both(folder, *parts):
    return next(model for model in desired_models(manifest_of(folder, *parts)) if model.name == "both")


def test_tensors_and_batching_come_of_the_members(tmp_path):
    model = both(tmp_path, member("a"), member("b", batch=4, xs="[-1]", ys="[-1]"), STEPS)
    assert [(it.name, it.dtype, it.dims) for it in model.inputs] == [("in", "TYPE_FP32", (4,))]
    assert [(it.name, it.dims) for it in model.outputs] == [("out", (-1,))]
    assert model.max_batch_size == 4
    assert "the least of its models, that of b" in model.notes[0]
    config = pbtxt.intended(model, "")
    assert (config.platform, config.backend, config.default_model_filename) == ("ensemble", "", "")
    assert not config.instance_group
    assert not config.HasField("dynamic_batching")
    assert [step.model_version for step in config.ensemble_scheduling.step] == [-1, -1]
    assert members(model) == ("b", "a")


def test_a_member_that_takes_single_requests_makes_the_ensemble_one(tmp_path):
    model = both(tmp_path, member("a", batch=0, xs="[-1, 4]", ys="[-1, 4]"), member("b"), STEPS)
    assert model.max_batch_size == 0
    assert model.inputs[0].dims == (-1, 4)
    asked = STEPS.replace("ensemble\n", "ensemble\n    max_batch_size: 8\n")
    assert both(tmp_path, member("a", batch=0, xs="[-1, 4]", ys="[-1, 4]"), member("b"), asked).inputs[0].dims == (4,)


BROKEN = {
    "types": (
        (member("a"), member("b", x="INT64"), STEPS),
        (
            r"repogen.yaml:20 models.both.steps\[0\].inputs.x: 'mid' has two types: FP32 \[-1, 4\] in a.y "
            r"\(\S+:\d+ models.a.outputs.y, max_batch_size 8\) and INT64 \[-1, 4\] in b.x \(\S+:\d+ models.b.inputs.x"
        ),
    ),
    "shapes": ((member("a"), member("b", xs="[5]"), STEPS), r"'mid' has two shapes: FP32 \[-1, 4\] in a.y .* \[-1, 5\] in b.x"),
    "batching": ((member("a"), member("b", batch=0), STEPS), r"'mid' has a batch axis at one end only: .*in a.y.*in b.x.*max_batch_size 0"),
    "larger batches": (
        (member("a"), member("b", batch=4), STEPS.replace("ensemble\n", "ensemble\n    max_batch_size: 8\n")),
        r"models.both.max_batch_size: 8 is asked, but b takes 4 \(\S+:1\d models.b.inputs.x\).*write 4",
    ),
    "made twice": ((member("a"), member("b"), STEPS.replace("y: out", "y: mid")), r"'mid' is made here and at \S+:20 models.both.steps\[0\]"),
    "circle": ((member("a"), member("b"), STEPS.replace("x: in", "x: out")), r"b waits for 'mid' of a \(\S+:21.*a circle: b -> a"),
    "no such input": ((member("a"), member("b"), STEPS.replace("{x: mid}", "{z: mid}")), r"b has no input 'z'.*there is x"),
    "no such model": ((member("a"), member("bb"), STEPS), r"steps\[0\].model: there is no model 'b'.*did you mean 'bb'"),
    "itself": ((member("a"), member("b"), STEPS.replace("model: b", "model: both")), "calls itself, in the end: both -> both"),
    "instances": ((member("a"), member("b"), STEPS + "    instances: [{kind: cpu}]\n"), "instances: does not go with backend: ensemble.*the models that"),
    "typed": ((member("a"), member("b"), STEPS + "    outputs: {out: {dtype: FP32}}\n"), "outputs.out: is derived from the steps"),
    "nothing makes": ((member("a"), member("b"), STEPS.replace("x: in", "x: i") + "    inputs: {in: {}}\n"), "inputs.in: no step takes 'in'"),
    "misspelt": (
        (member("a"), member("b"), STEPS.replace("x: mid", "x: mida") + "    inputs: {in: {}}\n"),
        r"steps\[0\].inputs.x: nothing makes 'mida', and it is no input.*did you mean 'mid'",
    ),
    "leads nowhere": (
        (member("a"), member("b"), STEPS.replace("x: mid", "x: in") + "    outputs: {out: {}}\n"),
        r"steps\[1\].outputs.y: nothing takes 'mid', and it is no output",
    ),
    "no steps": ((member("a"), "  both:\n    backend: ensemble\n"), "an ensemble needs its steps"),
    "steps of another": ((member("a", more="    steps: [{model: a, inputs: {x: x}, outputs: {y: y}}]\n"),), "goes with backend: ensemble"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_work_is_refused_with_both_ends(name, tmp_path):
    parts, message = BROKEN[name]
    with pytest.raises(ManifestError, match=message):
        desired_models(manifest_of(tmp_path, *parts))


def test_an_input_that_is_given_nothing_is_refused(tmp_path):
    text = member("b").replace(
        "inputs: {x: {dtype: FP32, dims: [4]}}", "inputs: {x: {dtype: FP32, dims: [4]}, w: {dtype: FP32, dims: [1]}}"
    )
    with pytest.raises(ManifestError, match=r"steps\[0\].inputs: the input 'w' of b is given nothing"):
        desired_models(manifest_of(tmp_path, member("a"), text, STEPS))


def test_streams_of_different_lengths_do_not_meet(tmp_path):
    join = STEPS.replace("{x: mid}", "{x: mid, w: in}")
    two = member("b").replace(
        "{x: {dtype: FP32, dims: [4]}}", "{x: {dtype: FP32, dims: [4]}, w: {dtype: FP32, dims: [4]}}"
    )
    with pytest.raises(ManifestError, match="b would have to pair answers of a decoupled model"):
        desired_models(manifest_of(tmp_path, member("a", more="    decoupled: true\n"), two, join))
    model = both(tmp_path, member("a", more="    decoupled: true\n"), member("b"), STEPS)
    assert model.config["model_transaction_policy"] == {"decoupled": True}


def test_a_model_that_keeps_its_former_version_is_named_by_version(tmp_path):
    more = "    version: 3\n    versions: {latest: 2}\n"
    model = both(tmp_path, member("a", more=more), member("b"), STEPS)
    assert [step["model_version"] for step in model.config["ensemble_scheduling"]["step"]] == ["-1", "3"]


def test_choosing_an_ensemble_takes_its_members_where_they_are_needed(tmp_path):
    path = manifest_of(tmp_path, member("a"), member("b"), member("c"), STEPS)
    assert [model.name for model in chosen(path, ["both"])[1]] == ["both"]
    assert [model.name for model in chosen(path, ["both"], members=True)[1]] == ["a", "b", "both"]


def test_an_ensemble_of_an_ensemble(tmp_path):
    outer = "  all:\n    backend: ensemble\n    steps: [{model: both, inputs: {in: x}, outputs: {out: y}}]\n"
    models = desired_models(manifest_of(tmp_path, outer, member("a"), member("b", batch=2), STEPS))
    assert [(model.name, model.max_batch_size) for model in models if model.backend == "ensemble"] == [
        ("all", 2),
        ("both", 2),
    ]


def test_the_version_folder_survives_git(tmp_path, invoke):
    path = manifest_of(tmp_path, member("a"), member("b"), STEPS)
    invoke("sync", "-f", path)
    served = tmp_path / "served"
    for command in (
        ["init", "-q"], ["add", "-A"],
        ["-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "all"], ["clone", "-q", ".", str(tmp_path / "clone")],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=served, check=True)
    assert (tmp_path / "clone" / "models" / "both" / "1" / ".keep").is_file()


@needs_s3
def test_the_version_folder_survives_an_object_store(project, s3, invoke):
    root = f"{BUCKET}/served/pipelines"
    path = manifest_of(project, member("a"), member("b"), STEPS)
    path.write_text(path.read_text().replace("served/models", f"s3://{root}"))
    invoke("sync", "-f", path)
    assert f"{root}/both/1/.keep" in s3.client().find(root)
    assert "nothing to do" in invoke("sync", "-f", path).output


@needs_s3
def test_mixing_is_refused_on_an_object_store_too(project, s3, invoke):
    url = f"s3://{BUCKET}/served/mixing"
    path = manifest_of(project, member("a"), member("b"), STEPS)
    path.write_text(path.read_text().replace("served/models", url))
    invoke("sync", "-f", path)
    (project / "add.py").write_text(CODE.replace("+ 1", "+ 10"))
    plan = make_plan(desired_models(path), place_of(url).read(url), project, url=url, arranged=place_of(url).fitting)
    with pytest.raises(Refused, match="both would mix old and new answers while b, a change one after another"):
        refuse_mixing(plan, lambda: place_of(url).read(url))


def test_samples_of_a_pipeline_are_what_is_sent(tmp_path):
    steps = STEPS.replace("ensemble\n", "ensemble\n    samples: rows.npz\n")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "rows.npz", **{"in": rows})
    batched = pool(both(tmp_path, member("a"), member("b"), steps), batch=2, count=2, seed=0)
    assert [request["in"].tolist() for request in batched] == [rows[[0, 1]].tolist(), rows[[1, 2]].tolist()]
    parts = (member(name, batch=0) for name in "ab")
    single = pool(both(tmp_path, *parts, steps), count=4, seed=1)
    assert [request["in"].tolist() for request in single] == rows[[1, 2, 0, 1]].tolist()
    np.savez(tmp_path / "rows.npz", **{"in": rows[:, :3]})
    with pytest.raises(ManifestError, match=r"the samples of 'in' have the shape \[3, 3\], not \[samples, 4\]"):
        both(tmp_path, member("a"), member("b"), steps)


@pytest.mark.server
@needs_server[1]
def test_the_real_server_runs_it_from_a_clone(tmp_path, invoke):
    from repogen import server
    from repogen.triton import Client

    path = manifest_of(tmp_path, member("a"), member("b", batch=4), STEPS)
    invoke("sync", "-f", path)
    invoke("check", tmp_path / "served" / "models")
    with server.start(tmp_path / "served" / "models") as triton, Client(triton.grpc) as client:
        answer = client.infer("both", {"in": np.ones((3, 4), np.float32)})
        assert answer["out"].tolist() == [[3.0] * 4] * 3
        invoke("sync", "-f", path, "--url", triton.grpc)  # proves that what serves is what was published
        (tmp_path / "add.py").write_text(CODE.replace("+ 1", "+ 10"))
        refused = invoke("sync", "-f", path, "--url", triton.grpc, code=1)
        assert "both would mix old and new answers while b, a change one after another" in refused.stderr
        invoke("sync", "-f", path, "--url", triton.grpc, "--yes")
        assert client.infer("both", {"in": np.ones((1, 4), np.float32)})["out"].tolist() == [[21.0] * 4]
