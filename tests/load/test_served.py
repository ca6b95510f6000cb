from dataclasses import replace

import pytest

from repogen.load.observe import Batching, Gauge, Observation, from_json, summarise
from repogen.load.served import serve
from repogen.triton import BatchStatistics, Statistics

BATCHING = Batching(max_batch_size=8, dynamic=True, delay=0, preferred=(8,), instances=1)


def counters(**changes):
    return replace(Statistics("ocr", 0, 0, 0, 0, 0, 0, 0, 0), **changes)


def served(statistics, batching=BATCHING, **load):
    plain = {"arrivals": "closed", "users": 4, "rate": 100.0, "shapes": 1, **load}
    return serve(Observation(statistics, batching), **plain)


def test_served():
    spent = counters(
        requests=10, inferences=10, executions=4, queue_ns=20_000_000, compute_infer_ns=5_000_000,
        batches=(BatchStatistics(2, 3, 0, 0, 0), BatchStatistics(4, 1, 0, 0, 0)),
    )  # fmt: skip
    did = served(spent)
    assert (did.queue, did.compute_infer, did.mean_batch) == (2.0, 0.5, 2.5)
    assert (did.batches, did.note) == (((2, 3), (4, 1)), "")


@pytest.mark.parametrize(
    ("changes", "load", "batch", "words"),
    [
        pytest.param({"max_batch_size": 0}, {}, 1, "max_batch_size is 0", id="unbatched"),
        pytest.param({}, {}, 5, "two requests of batch 5 exceed max_batch_size 8", id="too large"),
        pytest.param({"dynamic": False}, {}, 1, "dynamic_batching is off", id="off"),
        pytest.param({"ragged": False}, {"shapes": 9}, 1, "9 different shapes", id="shapes"),
        pytest.param({}, {"users": 1}, 1, "one user", id="alone"),
        pytest.param({"instances": 4}, {}, 1, "4 users find one of 4", id="idle"),
        pytest.param({"delay": 900}, {}, 1, "4 users never fill the smallest preferred_batch_size, 8", id="preferred"),
        pytest.param(
            {"delay": 900}, {"arrivals": "poisson"}, 1, "900us is too short: at 100 requests/s 0.09", id="delay"
        ),
        pytest.param({}, {"arrivals": "poisson"}, 1, "rarely met in the queue (0.25 ms", id="fast"),
    ],
)
def test_why_no_batches_formed(changes, load, batch, words):
    spent = counters(requests=100, inferences=100 * batch, executions=100, queue_ns=25_000_000)
    did = served(spent, replace(BATCHING, **changes), **load)
    assert did.note.startswith("no batches formed: ")
    assert words in did.note


def test_nothing_ran_and_nothing_is_explained():
    did = served(counters())
    assert (did.mean_batch, did.queue, did.note) == (0.0, 0.0, "")


def test_a_lost_server_is_said():
    did = serve(Observation(problem="the server was lost: x"), arrivals="closed", users=1, rate=1.0, shapes=1)
    assert (did.requests, did.note) == (0, "the server was lost: x")


def test_an_observation_survives_its_json():
    one = Observation(counters(batches=(BatchStatistics(2, 3, 1, 2, 3),)), BATCHING, {"gpu_use": Gauge(0.5, 0.9)})
    assert from_json(one.to_json()) == one
    assert "killed" in from_json({}).problem


def test_gauges_of_two_gpus():
    page = (
        'nv_gpu_utilization{{gpu_uuid="a"}} {0}\nnv_gpu_utilization{{gpu_uuid="b"}} 0.5\n'
        'nv_gpu_memory_used_bytes{{gpu_uuid="a"}} 100\nnv_gpu_memory_used_bytes{{gpu_uuid="b"}} 20\n'
        "nv_cpu_utilization 0.25\n# HELP nv_cpu_utilization x\nnv_other 7\n"
    )
    gauges = summarise([page.format(0.1), "", page.format(0.7)])
    assert gauges["gpu_use"] == Gauge(pytest.approx(0.45), pytest.approx(0.6))
    assert gauges["gpu_memory"] == Gauge(120.0, 120.0)
    assert set(gauges) == {"gpu_use", "gpu_memory", "cpu_use"}
