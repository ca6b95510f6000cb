import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_the_wheel_holds_templates_and_load_tests_and_works(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    for name in ("_templates/config.pbtxt.j2", "_templates/embedded/model.py", "_loadtests/locustfile.py", "py.typed"):
        assert f"repogen/{name}" in names
    site = str(tmp_path / "site")
    code = (
        f"import repogen.assets as a, repogen; assert str(a.TEMPLATES).startswith({site!r}), a.TEMPLATES;"
        "assert (a.TEMPLATES / 'config.pbtxt.j2').is_file() and (a.LOADTESTS / 'locustfile.py').is_file()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": site})
