"""The load shapes: what they ask for over time, and that a real Locust takes the one that is named."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from repogen.assets import LOADTESTS
from repogen.load import samples
from repogen.load.process import environment
from tests.fake_triton import FakeModel, FakeTriton, identity_config
from tests.load.drive import wait_for
from tests.load.test_runner import _marked, slowly  # noqa: F401 - the fixture sees that nothing is left running

TICKS = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("shapes", sys.argv[1])
shapes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shapes)
told = {}
for name in ("Steps", "Spike", "Day"):
    shape = getattr(shapes, name)()
    told[name] = {"abstract": shape.abstract, "ticks": []}
    for second in range(0, 605, 5):
        shape.get_run_time = lambda: second + 0.5
        told[name]["ticks"].append(shape.tick())
print(json.dumps(told))
"""


def told(**variables):
    command = [sys.executable, "-W", "ignore", "-c", TICKS, str(LOADTESTS / "shapes.py")]
    done = subprocess.run(
        command, env=environment() | variables, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_what_the_shapes_ask_for():
    """Seconds 0.5, 5.5, 10.5 and so on."""
    ticks = {name: one["ticks"] for name, one in told().items()}
    users = {name: [tick and tick[0] for tick in of] for name, of in ticks.items()}
    assert users["Steps"] == [count for count in (1, 2, 4, 8, 16, 32, 64) for _ in range(6)] + [None] * (121 - 42)
    assert users["Spike"] == [8] * 8 + [32] * 4 + [8] * 12 + [None] * (121 - 24)
    day = users["Day"]
    assert (day[0], max(day[:120]), day[120]) == (4, 40, None)
    assert day[60] == 40
    assert day[:60] == sorted(day[:60])
    assert day[60:120] == sorted(day[60:120], reverse=True)
    assert all(rate >= users for of in ticks.values() for users, rate in filter(None, of))  # at once, not bit by bit


@pytest.mark.parametrize(("chosen", "name"), [({}, "Steps"), ({"SHAPE": "Spike"}, "Spike"), ({"SHAPE": "Day"}, "Day")])
def test_the_one_that_is_named_is_the_only_one(chosen, name):
    assert [shape for shape, one in told(**chosen).items() if not one["abstract"]] == [name]


@pytest.mark.parametrize(("shape", "users"), [("Spike", 8), ("Steps", 1)])
def test_locust_takes_it(tmp_path, shape, users):
    with FakeTriton(FakeModel(identity_config("echo"), slowly)) as fake:
        files = f"{LOADTESTS / 'locustfile.py'},{LOADTESTS / 'shapes.py'}"
        options = ("--headless", "--host", fake.url, "--model", "echo", "--samples", str(tmp_path), "--warm-up", "0")
        process = subprocess.Popen(
            [sys.executable, "-m", "locust", "-f", files, *options],
            env=environment() | {"SHAPE": shape},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: sum(name == "ModelInfer" for name, _ in fake.calls) > 200, 30)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        wait_for(lambda: list(tmp_path.glob("*.npz")))
    [part] = samples.load_all(tmp_path)
    events = sorted([(t, 1) for t in part.sent] + [(t, -1) for t in part.done])
    assert max(np.cumsum([change for _, change in events])) == users
