import re

import pytest

from repogen.cli import main
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = sorted(main.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme_and_has_help_with_an_example(name, invoke):
    assert f"`repogen {name}" in README
    text = invoke(name, "--help").output
    assert re.search(r"Examples?: repogen", text)
    assert "--json" in text


def test_the_readme_names_no_command_that_does_not_exist():
    named = set(re.findall(r"(?:`|\$ |-- )repogen ([a-z]+)", README))
    assert named <= set(COMMANDS)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_with_one_function_of_its_name(name):
    from importlib import import_module

    assert callable(getattr(import_module(f"repogen.commands.{name}"), name))


def test_the_readmes_smallest_manifest_gives_the_config_shown(tmp_path):
    from repogen.desired import desired_models
    from repogen.render import render
    from tests.serverkit import onnx_file

    manifest, config = re.search(
        r"## The smallest manifest\n```yaml\n(.*?)```.*?```text\n(.*?)```", README, re.DOTALL
    ).groups()
    (tmp_path / "models").mkdir()
    (tmp_path / "repogen.yaml").write_text(manifest)
    onnx_file(
        tmp_path / "models" / "rec.onnx",
        [("Relu", ["x"], ["y"], {})],
        [("x", "FLOAT", ["N", 3, 48, "W"])],
        [("y", "FLOAT", ["N", 3, 48, "W"])],
    )
    (model,) = desired_models(tmp_path / "repogen.yaml")
    text = render(model)
    for part in config.split("…\n"):
        assert part in text


def test_the_makefile_has_what_the_readme_says():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", README)):
        assert f"\n{target}:" in makefile
