"""What can be asked of the Locust module runs in a child: importing locust patches its whole process."""

import subprocess
import sys

import pytest

from repogen.load import runner

PRELUDE = """
from repogen.errors import RepogenError
from repogen.load.user import TritonUser, parse_shapes
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + code],
        env=runner._environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_shapes_and_the_user():
    code = """
print(parse_shapes(["x:2,3 input:0:4", "s:"]))
for bad in ("x", ":3", "x:a", "x:2,", "x:-1"):
    try:
        print(bad, parse_shapes([bad]))
    except RepogenError as error:
        print(error)
print(TritonUser.abstract, TritonUser.tasks == [TritonUser.ask])
"""
    shapes, *errors, user = run(code)
    assert shapes == "{'x': (2, 3), 'input:0': (4,), 's': ()}"
    assert len(errors) == 5
    assert all("is no shape (write NAME:2,3)" in line for line in errors)
    assert user == "True True"


@pytest.mark.parametrize("module", ["repogen.commands.bench", "repogen.load.runner", "repogen.report"])
def test_nothing_heavy_comes_with_the_command(module):
    heavy = ["locust", "gevent", "grpc", "numpy", "onnx", "onnxruntime", "tritonclient", "rich"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=runner._environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
