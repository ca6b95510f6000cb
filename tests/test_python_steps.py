import hashlib
import sys
from pathlib import Path

import pytest

from repogen.desired import desired_models
from repogen.errors import ManifestError, ServerError
from repogen.python_steps import BASE, check_installed

STEP = "from repogen_step import Step\n\n\nclass TritonPythonModel(Step):\n    def run(self, x):\n        return {'y': x + 1}\n"
MODEL = """models:
  step:
    source: step.py
    inputs: {x: {dtype: FP32, dims: [2]}}
    outputs: {y: {dtype: FP32, dims: [2]}}
"""


def project(folder: Path, more: str = "", head: str = "", code: str = STEP) -> Path:
    (folder / "step.py").write_text(code)
    path = folder / "repogen.yaml"
    path.write_text(f'triton: "26.08"\nrepository: served/models\n{head}{MODEL}{more}')
    return path


def step(folder, *arguments, **options):
    (model,) = desired_models(project(folder, *arguments, **options))
    return model


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_base_lies_beside_code_that_imports_it(tmp_path):
    assert [file.name for file in step(tmp_path).files] == ["model.py", BASE.name]
    assert [file.name for file in step(tmp_path, code="x = 1\n").files] == ["model.py"]
    assert [file.name for file in step(tmp_path, code="class :\n").files] == ["model.py"]


def test_files_lie_beside_the_code(tmp_path):
    (tmp_path / "words.txt").write_text("a\n")
    model = step(tmp_path, "    files: [words.txt]\n")
    assert "words.txt" in [file.name for file in model.files]
    with pytest.raises(ManifestError, match=r"files\[0\]: there is no file no.txt"):
        step(tmp_path, "    files: [no.txt]\n")
    with pytest.raises(ManifestError, match=r"files\[1\]: words.txt is there already"):
        step(tmp_path, "    files: [words.txt, words.txt]\n")
    with pytest.raises(ManifestError, match=r"words.txt has sha256 .*out of date"):
        step(tmp_path, f"    files: [{{source: words.txt, sha256: {'0' * 64}}}]\n")


def test_that_code_runs_is_said(tmp_path):
    assert any("runs code" in note and "step.py" in note for note in step(tmp_path).notes)
    pin = f"    sha256: {sha256(tmp_path / 'step.py')}\n"
    assert not any("runs code" in note for note in step(tmp_path, pin).notes)


def test_only_named_code_runs_where_code_is_pinned(tmp_path):
    head = "pinned_code: true\n"
    (tmp_path / "more.py").write_text("y = 1\n")
    digest = hashlib.sha256(STEP.encode()).hexdigest()
    with pytest.raises(
        ManifestError, match=rf"repogen.yaml:\d+ models.step.sha256: .*step.py is code.*write sha256: {digest}"
    ):
        step(tmp_path, head=head)
    pin = f"    sha256: {digest}\n"
    assert step(tmp_path, pin, head).files[0].sha256 == digest
    with pytest.raises(ManifestError, match=r"more.py is code that Triton would run"):
        step(tmp_path, f"{pin}    files: [more.py]\n", head)
    with pytest.raises(ManifestError, match="Triton runs it as code: read what changed, then write sha256"):
        step(tmp_path, pin, head, code=STEP.replace("+ 1", "+ 2"))


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("numpy>=99", r"models.step.requirements: needs numpy>=99, and \d.* is installed.*pip install 'numpy>=99'"),
        ("no-such-package-of-repogen", "and it is not installed"),
    ],
)
def test_what_the_servers_python_lacks_is_said(tmp_path, requirement, message):
    model = step(tmp_path, f"    requirements: ['{requirement}']\n")
    with pytest.raises(ServerError, match=message):
        check_installed([model], Path(sys.executable), "repogen.yaml")


def test_what_is_there_is_taken(tmp_path):
    model = step(tmp_path, "    requirements: [numpy>=1, 'nothing-at-all; python_version < \"3\"']\n")
    check_installed([model], Path(sys.executable), "repogen.yaml")


def test_a_requirement_is_one(tmp_path):
    with pytest.raises(ManifestError, match=r"requirements\[0\]: 'numpy >> 1' is no requirement"):
        step(tmp_path, "    requirements: ['numpy >> 1']\n")
