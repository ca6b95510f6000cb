"""First requests with and without warm-up, on the real server: measured, shown, and put back as it was."""

import json
import subprocess
import sys

import pytest

from repogen import server
from repogen.desired import desired_models
from repogen.first_request import first_requests
from repogen.triton import Client
from tests.serverkit import needs_server

pytestmark = needs_server

# What a lazy backend does: the first execution of each batch size takes its time.
LAZY = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.ready = False

    def execute(self, requests):
        if not self.ready:
            time.sleep(0.3)
            self.ready = True
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(one, "x").as_numpy())])
            for one in requests
        ]
"""
MANIFEST = """\
triton: "26.08"
repository: served/models
defaults: {instances: [{kind: cpu}]}
models:
  warmed: {source: lazy.py, max_batch_size: 2, warmup: auto, inputs: {x: {dtype: FP32, dims: [4]}}, outputs: {y: {dtype: FP32, dims: [4]}}}
  bare: {source: lazy.py, max_batch_size: 2, inputs: {x: {dtype: FP32, dims: [4]}}, outputs: {y: {dtype: FP32, dims: [4]}}}
"""


@pytest.fixture
def lazy(tmp_path):
    (tmp_path / "lazy.py").write_text(LAZY)
    (tmp_path / "repogen.yaml").write_text(MANIFEST)
    return tmp_path / "repogen.yaml"


def test_warm_up_takes_the_first_requests_cost(lazy, invoke):
    invoke("sync", "-f", lazy)
    with server.start(lazy.parent / "served/models") as triton, Client(triton.grpc) as client:
        warmed, bare = first_requests(client, desired_models(lazy))
        assert warmed.cold > 0.3
        assert warmed.warm < 0.2
        assert bare.cold > 0.3
        assert bare.warm is None
        assert max(warmed.settled, bare.settled) < 0.1
        assert len(client.config("warmed").model_warmup) == 2  # it serves with its warm-up again
        assert client.ready("warmed")


def test_serve_shows_it(lazy):
    command = [sys.executable, "-m", "repogen", "serve", "-f", str(lazy), "-m", "warmed", "--cold-start", "--json"]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, timeout=60, check=True)
    (warmed,) = json.loads(done.stdout)["first_requests"]
    assert warmed["model"] == "warmed"
    assert warmed["cold"] > 0.3 > warmed["warm"]
    shown = f"first request {1e3 * warmed['cold']:.1f} ms without warm-up, {1e3 * warmed['warm']:.1f} ms with it"
    assert f"warmed: {shown}" in done.stderr
