"""What can be asked of the Locust module runs in a child: importing locust patches its whole process."""

import subprocess
import sys

import pytest

from repogen.load.process import environment


def test_percentiles_of_locust_keep_three_digits():
    code = """
import locust.stats, repogen.load.user as user
class Environment: parsed_options = None; runner = None
user._settle(Environment())
print(locust.stats.bucket_response_time(0.2345), locust.stats.bucket_response_time(1048.9))
print(user.TritonUser.abstract)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.234", "1050.0", "True"]


@pytest.mark.parametrize(
    "module", ["repogen.commands.bench", "repogen.commands.report", "repogen.load.runner", "repogen.report"]
)
def test_nothing_heavy_comes_with_the_command(module):
    heavy = ["locust", "gevent", "grpc", "numpy", "onnx", "onnxruntime", "tritonclient", "rich"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
