import sys

import pytest

from repogen.errors import ServerError
from repogen.runtime import _check, find_runtime
from tests.serverkit import needs_server

GOOD = {
    "version": [3, 11],
    "numpy": "1.26.4",
    "onnxruntime": True,
    "pytriton": "/p",
    "venv": True,
    "libpython": "",
}


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        pytest.param({"version": [3, 13]}, "Python 3.13", "3.10 to 3.12", id="too-new"),
        pytest.param({"version": [3, 8]}, "Python 3.8", "3.10 to 3.12", id="too-old"),
        pytest.param({"pytriton": None}, "nvidia-pytriton", "repogen[local]", id="no-pytriton"),
        pytest.param({"onnxruntime": False}, "onnxruntime", "repogen[local]", id="no-onnxruntime"),
        pytest.param({"numpy": "2.1.0"}, "numpy 2.1.0", "numpy<2", id="numpy-2"),
        pytest.param({"numpy": None}, "no numpy", "numpy<2", id="no-numpy"),
        pytest.param({"libpython": None}, "libpython3.11.so", "apt-get install libpython3.11", id="libpython"),
    ],
)
def test_an_interpreter_that_does_not_serve(tmp_path, change, says, hint):
    with pytest.raises(ServerError) as caught:
        _check(tmp_path / "python", {**GOOD, **change})
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_good_interpreter(tmp_path):
    _check(tmp_path / "python", GOOD)


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n"])
def test_no_interpreter(tmp_path, monkeypatch, content):
    python = tmp_path / "python"
    if content:
        python.write_text(content)
        python.chmod(0o755)
    monkeypatch.setenv("REPOGEN_SERVER_PYTHON", str(python))
    with pytest.raises(ServerError, match="cannot be run"):
        find_runtime()


class TestReal:
    pytestmark = needs_server

    def test_every_part_is_there(self):
        runtime = find_runtime()
        assert runtime.version == sys.version_info[:2]
        for part in (runtime.tritonserver, runtime.backend, runtime.stub, runtime.libraries):
            assert part.exists()
