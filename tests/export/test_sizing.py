"""GPUs counted twice: what the manifest says a server has, and what its instance groups want."""

import pytest

from repogen.desired import models_of
from repogen.errors import ManifestError
from repogen.export.settings import Settings
from repogen.export.sizing import gpus_needed, load_seconds
from repogen.manifest import load_manifest


@pytest.fixture
def sized(project):
    """Give `(models, settings)` of the project with other instances, and a deploy section."""

    def make(instances, deploy="{}", own=""):
        text = (project / "repogen.yaml").read_text().replace("[{kind: cpu}]", instances)
        (project / "repogen.yaml").write_text(f"{text}{own}deploy: {deploy}\n")
        manifest = load_manifest(project / "repogen.yaml")
        return models_of(manifest), Settings(manifest, project)

    return make


@pytest.mark.parametrize(
    ("instances", "deploy", "needed"),
    [
        ("[{kind: cpu}]", "{}", 0),
        ("[{kind: gpu}]", "{}", 1),
        ("[{kind: gpu, gpus: [0, 2]}]", "{}", 3),
        ("[{kind: gpu, gpus: [1]}, {kind: cpu}]", "{gpus: 2}", 2),
        ("[{kind: gpu}]", "{gpus: 4}", 4),  # an instance on each
        ("[{kind: auto}]", "{gpus: 2}", 2),
        ("[{kind: cpu}]", "{gpus: 0}", 0),
    ],
)
def test_gpus(sized, instances, deploy, needed):
    assert gpus_needed(*sized(instances, deploy)) == needed


@pytest.mark.parametrize(
    ("instances", "deploy", "said"),
    [
        (
            "[{kind: gpu, gpus: [0, 3]}]",
            "{gpus: 2}",
            r"yaml:4 defaults.instances\[0\]: add wants GPU 3, .* GPUs 0 to 1 ",
        ),
        ("[{kind: cpu}, {kind: gpu, gpus: [1]}]", "{gpus: 1}", r"yaml:4 defaults.instances\[1\]: .*has GPU 0 only"),
        ("[{kind: gpu}]", "{gpus: 0}", r"add wants a GPU, but each server has none \(.*repogen.yaml:9 deploy.gpus\)"),
        ("[{kind: gpu, gpus: [0]}]", "{gpus: 2}", r"yaml:9 deploy.gpus: 2 GPUs for each server, but instances use 1"),
        ("[{kind: cpu}]", "{gpus: 1}", r"yaml:9 deploy.gpus: 1 GPUs for each server, but no instance uses one"),
    ],
)
def test_both_numbers_must_agree(sized, instances, deploy, said):
    with pytest.raises(ManifestError, match=said):
        gpus_needed(*sized(instances, deploy))


def test_the_group_of_the_model_itself_is_named(sized):
    own = "    instances: [{kind: gpu, gpus: [5]}]\n"
    with pytest.raises(
        ManifestError, match=r"yaml:9 models.add.instances\[0\]: add wants GPU 5, but .*yaml:10 deploy.gpus"
    ):
        gpus_needed(*sized("[{kind: cpu}]", "{gpus: 1}", own))


def test_a_start_takes_as_long_as_the_files_are_large(sized):
    from dataclasses import replace

    models, settings = sized("[{kind: cpu, count: 2}]")
    assert load_seconds(models, settings) == 300
    (model,) = models
    large = replace(model, files=tuple(replace(file, size=20 * 10**9) for file in model.files))
    assert load_seconds([large], settings) == 3 * (60 + 200 + 6)


def test_a_start_may_be_said(sized):
    assert load_seconds(*sized("[{kind: cpu}]", "{load_time: 20m}")) == 1200
