"""`repogen export` for people and for programs."""

import json

import pytest

from tests.conftest import tree


@pytest.fixture
def cluster(project):
    text = (project / "repogen.yaml").read_text().replace("add.onnx", "nets/add.onnx")
    (project / "nets").mkdir()
    (project / "add.onnx").rename(project / "nets/add.onnx")
    (project / "repogen.yaml").write_text(f"{text}deploy: {{sources_claim: nets}}\n")
    return project


@pytest.mark.parametrize(
    "what",
    ["compose", "k8s", "monitoring"],
)
def test_written_then_unchanged_then_rewritten(cluster, what, invoke, tmp_path):
    arguments = ["export", what, "-f", cluster / "repogen.yaml", "-o", tmp_path / "out"]
    said = invoke(*arguments).stdout.splitlines()
    files = tree(tmp_path / "out")
    assert files
    assert sorted(line.split()[0] for line in said) == ["written"] * len(files)
    assert {line.split()[0] for line in invoke(*arguments).stdout.splitlines()} == {"unchanged"}
    assert tree(tmp_path / "out") == files
    first = tmp_path / "out" / min(files)
    first.write_text("edited")
    told = json.loads(invoke(*arguments, "--json").stdout)
    assert told["what"] == what
    assert sorted(told["files"]) == sorted(files)
    assert [name for name, state in told["files"].items() if state == "rewritten"] == [min(files)]
    assert tree(tmp_path / "out") == files


def test_what_is_not_ours_stays(cluster, invoke, tmp_path):
    (tmp_path / "out/base").mkdir(parents=True)
    (tmp_path / "out/base/overlay.yaml").write_text("mine")
    invoke("export", "k8s", "-f", cluster / "repogen.yaml", "-o", tmp_path / "out")
    assert (tmp_path / "out/base/overlay.yaml").read_text() == "mine"


def test_a_folder_that_cannot_be_written(cluster, invoke, tmp_path):
    (tmp_path / "out").write_text("a file")
    said = invoke("export", "compose", "-f", cluster / "repogen.yaml", "-o", tmp_path / "out", code=2).stderr
    assert "out/docker-compose.yml: cannot be written" in said


def test_ones_own_template_stands_in_for_ours(cluster, invoke, tmp_path):
    (cluster / "ours/compose").mkdir(parents=True)
    (cluster / "ours/compose/docker-compose.yml.j2").write_text("name: {{ settings.name }}\n")
    (cluster / "ours/config.pbtxt.j2").write_text("")
    with (cluster / "repogen.yaml").open("a") as file:
        file.write("templates: ours\n")
    invoke("export", "compose", "-f", cluster / "repogen.yaml", "-o", tmp_path)
    assert (tmp_path / "docker-compose.yml").read_text() == "name: repogen\n"


@pytest.mark.parametrize(
    ("deploy", "said"),
    [
        ("{replicas: {min: 3, max: 2}}", "deploy.replicas: min 3 is above max 2"),
        ("{digest: latest}", "deploy.digest"),
        ("{image: 'triton; rm -rf /'}", "deploy.image"),
        ("{schedule: 'every night'}", "deploy.schedule"),
        ("{name: Not_A_Label}", "deploy.name"),
        ("{secret: '{{ 7 * 7 }}'}", "deploy.secret"),
        ("{gpu: 1}", "unknown key 'gpu'"),
    ],
)
def test_a_deploy_section_that_cannot_be(project, deploy, said, invoke):
    with (project / "repogen.yaml").open("a") as file:
        file.write(f"deploy: {deploy}\n")
    told = invoke("export", "compose", "-f", project / "repogen.yaml", "-o", project, code=2).stderr
    assert said in told
    assert "repogen.yaml:9" in told


def test_a_gpu_product_is_text_and_stays_text(cluster, invoke, tmp_path):
    import yaml

    text = (cluster / "repogen.yaml").read_text().replace("{kind: cpu}", "{kind: gpu}")
    odd = 'x" {{ 7 * 7 }} # : y'
    (cluster / "repogen.yaml").write_text(text.replace("{sources_claim", f"{{gpu_product: '{odd}', sources_claim"))
    invoke("export", "k8s", "-f", cluster / "repogen.yaml", "-o", tmp_path)
    server = yaml.safe_load((tmp_path / "base/deployment.yaml").read_text())
    assert server["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == odd
