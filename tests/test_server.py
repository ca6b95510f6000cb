"""The real server with tiny models: one server for the whole module, where a test does not need its own."""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from repogen import server
from repogen.dtypes import BY_TRITON
from repogen.errors import ServerError
from repogen.server import Ports
from tests.serverkit import add_double, add_model, left_over, needs_server, onnx_file

TYPES = ["FP16", "FP32", "FP64", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
pytestmark = needs_server


def add_types(repository: Path) -> None:
    """One identity for each type, batched, and one for strings."""
    names = [*TYPES, "STRING"]
    specs = [(name, BY_TRITON[f"TYPE_{name}"].onnx, ["n", "w"]) for name in names]
    config = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 100000 }\n" + "".join(
        f'input [{{ name: "{name}" data_type: TYPE_{name} dims: [-1] }}]\n'
        f'output [{{ name: "{name}_out" data_type: TYPE_{name} dims: [-1] }}]\n'
        for name in names
    )

    def make(path):
        onnx_file(
            path,
            [("Identity", [name], [f"{name}_out"], {}) for name in names],
            specs,
            [(f"{name}_out", kind, dims) for name, kind, dims in specs],
        )

    add_model(repository, "types", config, make)


def add_lookup(repository: Path) -> None:
    """y = table[i] * s: an index out of the table fails the whole run; `s` has rank 0."""

    def make(path):
        onnx_file(
            path,
            [("Gather", ["table", "i"], ["row"], {}), ("Mul", ["row", "s"], ["y"], {})],
            [("i", "INT64", ["n", 1]), ("s", "FLOAT", [])],
            [("y", "FLOAT", ["n", 1])],
            {"table": np.array([10, 20, 30], np.float32)},
        )

    config = (
        "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 200000 }\n"
        'input [{ name: "i" data_type: TYPE_INT64 dims: [1] }, { name: "s" data_type: TYPE_FP32 dims: [1] }]\n'
        'output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]\n'
        'parameters { key: "scalars" value { string_value: "[\\"s\\"]" } }\n'
        'parameters { key: "intra_op_threads" value { string_value: "1" } }\n'
    )
    add_model(repository, "lookup", config, make)


def add_total(repository: Path) -> None:
    """Not batched: a sum of rank 0, and one over the batch axis, which a batching config must not serve."""

    def make(path):
        onnx_file(
            path,
            [("ReduceSum", ["x"], ["total"], {"keepdims": 0}), ("ReduceSum", ["x", "axis"], ["sum"], {})],
            [("x", "FLOAT", ["n", 2])],
            [("total", "FLOAT", []), ("sum", "FLOAT", [1, 2])],
            {"axis": np.array([0], np.int64)},
        )

    tensors = 'input [{{ name: "x" data_type: TYPE_FP32 dims: [{0}] }}]\n'
    add_model(
        repository,
        "total",
        "max_batch_size: 0\n" + tensors.format("-1, 2") + 'output [{ name: "total" data_type: TYPE_FP32 dims: [1] }]\n',
        make,
    )
    add_model(
        repository,
        "wrong_rows",
        "max_batch_size: 8\n" + tensors.format("2") + 'output [{ name: "sum" data_type: TYPE_FP32 dims: [2] }]\n',
        make,
    )


def add_flat(repository: Path) -> None:
    """The graph has [n] where Triton needs one more axis: a reshape bridges it."""

    def make(path):
        onnx_file(path, [("Neg", ["x"], ["y"], {})], [("x", "FLOAT", ["n"])], [("y", "FLOAT", ["n"])])

    shape = "data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }]\n"
    add_model(
        repository,
        "flat",
        f'max_batch_size: 8\ninput [{{ name: "x" {shape}output [{{ name: "y" {shape}',
        make,
    )


@pytest.fixture(scope="module")
def triton(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    add_double(repository, delay=200000)
    for add in (add_types, add_lookup, add_total, add_flat):
        add(repository)
    with server.start(repository) as running:
        yield running


@pytest.fixture(scope="module")
def ask(triton):
    """Send one request over gRPC and return its outputs by name."""
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import np_to_triton_dtype

    client = grpcclient.InferenceServerClient(triton.grpc)

    def send(model, arrays, outputs=None):
        inputs = []
        for name, array in arrays.items():
            inputs.append(grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        wanted = [grpcclient.InferRequestedOutput(name) for name in outputs] if outputs else None
        result = client.infer(model, inputs, outputs=wanted, client_timeout=20)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    yield send
    client.close()


def statistics(triton, model):
    with urllib.request.urlopen(f"http://{triton.http}/v2/models/{model}/stats", timeout=5) as answer:
        entry = json.load(answer)["model_stats"][0]
    return entry["inference_count"], entry["execution_count"]


def together(calls):
    """Make all calls at once; return each one's answer, or its error."""
    barrier = threading.Barrier(len(calls))

    def one(call):
        barrier.wait()
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def full_types(rows, width):
    rng = np.random.default_rng(rows)
    arrays = {name: rng.integers(0, 2, (rows, width)).astype(BY_TRITON[f"TYPE_{name}"].numpy) for name in TYPES}
    return {**arrays, "STRING": rng.choice(np.array(["", "é", "long " * 50], object), (rows, width))}


def test_its_addresses_are_loopback_and_its_name_is_ours(triton):
    with urllib.request.urlopen(f"http://{triton.http}/v2", timeout=5) as answer:
        assert json.load(answer)["name"] == triton.server_id
    with urllib.request.urlopen(f"http://{triton.metrics}/metrics", timeout=5) as answer:
        assert b"nv_inference" in answer.read()
    assert triton.poll() is None
    assert any("successfully loaded 'double'" in line for line in triton.log_lines())


def test_requests_are_merged_and_each_gets_its_own_answer(triton, ask):
    before = statistics(triton, "double")
    arrays = [np.full((1 + index % 2, 3), index, np.float32) for index in range(6)]
    answers = together([lambda x=x: ask("double", {"x": x}) for x in arrays])
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], array * 2)
    inferences, executions = (now - then for now, then in zip(statistics(triton, "double"), before, strict=True))
    assert inferences == 9
    assert executions < 6


def test_other_shapes_in_the_same_moment(ask):
    arrays = [np.full((1, width), width, np.float32) for width in (1, 2, 2, 3)]
    answers = together([lambda x=x: ask("double", {"x": x}) for x in arrays])
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], array * 2)


def test_every_type_comes_back_as_it_went(ask):
    requests = [full_types(rows, 3) for rows in (1, 2)]
    answers = together([lambda feeds=feeds: ask("types", feeds) for feeds in requests])
    for feeds, answer in zip(requests, answers, strict=True):
        for name in TYPES:
            assert answer[f"{name}_out"].dtype == feeds[name].dtype
            np.testing.assert_array_equal(answer[f"{name}_out"], feeds[name])
        assert [text.decode() for text in answer["STRING_out"].flat] == list(feeds["STRING"].flat)


def test_empty_tensors(ask):
    answer = ask("types", full_types(2, 0))
    assert {name: value.shape for name, value in answer.items()} == {
        f"{name}_out": (2, 0) for name in [*TYPES, "STRING"]
    }


def test_only_the_outputs_asked_for(ask):
    assert list(ask("types", full_types(1, 1), ["INT8_out"])) == ["INT8_out"]


def test_bytes_that_are_not_text_fail_their_own_request(ask):
    bad, good = full_types(1, 2), full_types(2, 2)
    bad["STRING"] = np.array([[b"\xff", b"a"]], object)
    refused, answer = together([lambda: ask("types", bad), lambda: ask("types", good)])
    assert "types: input STRING is not UTF-8" in str(refused)
    np.testing.assert_array_equal(answer["INT32_out"], good["INT32"])


def test_only_the_guilty_request_fails(triton, ask):
    def call(index, factor=1):
        return lambda: ask("lookup", {"i": np.array([[index]], np.int64), "s": np.array([[factor]], np.float32)})

    first, refused, third, scaled = together([call(0), call(7), call(2), call(1, factor=3)])
    assert (first["y"].item(), third["y"].item(), scaled["y"].item()) == (10, 30, 60)
    assert "lookup: " in str(refused)
    assert "indices element out of data bounds" in str(refused)


def test_a_scalar_has_one_value(ask):
    indices = np.array([[0], [1]], np.int64)
    np.testing.assert_array_equal(
        ask("lookup", {"i": indices, "s": np.array([[2], [2]], np.float32)})["y"], [[20], [40]]
    )
    with pytest.raises(Exception, match="input s is a scalar"):
        ask("lookup", {"i": indices, "s": np.array([[2], [3]], np.float32)})


def test_an_output_of_rank_0(ask):
    np.testing.assert_array_equal(ask("total", {"x": np.ones((3, 2), np.float32)})["total"], [6])


def test_an_output_that_does_not_follow_the_batch(ask):
    with pytest.raises(Exception, match="output sum has 1 rows for a batch of 2"):
        ask("wrong_rows", {"x": np.ones((2, 2), np.float32)})


def test_a_graph_with_only_the_batch_axis(ask):
    np.testing.assert_array_equal(ask("flat", {"x": np.array([[1], [2]], np.float32)})["y"], [[-1], [-2]])


def test_a_busy_port(triton, tmp_path):
    with (
        pytest.raises(ServerError, match=f"http port {triton.ports.http} .*'{triton.server_id}'"),
        server.start(tmp_path, ports=Ports(http=triton.ports.http)),
    ):
        pass
    with (
        pytest.raises(ServerError, match=f"grpc port {triton.ports.grpc} cannot be used: Address already in"),
        server.start(tmp_path, ports=Ports(grpc=triton.ports.grpc)),
    ):
        pass


def test_a_lost_race_for_a_port_is_run_again(triton, tmp_path, monkeypatch):
    answers = iter([replace_port(triton), Ports()])
    fill = server._fill
    monkeypatch.setattr(server, "_fill", lambda asked: fill(next(answers)))
    add_double(tmp_path)
    with server.start(tmp_path) as second:
        assert second.ports.http != triton.ports.http


def replace_port(triton):
    return Ports(grpc=triton.ports.grpc)


def test_no_repository(tmp_path):
    with pytest.raises(ServerError, match="there is no model repository"), server.start(tmp_path / "no"):
        pass


def test_broken_models_are_named_with_their_reasons(tmp_path):
    repository = tmp_path / "repository"
    add_double(repository)
    tensors = (
        'input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]\noutput [{ name: "y" data_type: TYPE_FP32 dims: [1] }]\n'
    )
    add_model(repository, "typo", "max_batchsize: 8\n" + tensors, lambda path: path.touch())
    add_model(repository, "empty", "max_batch_size: 8\n" + tensors, lambda path: path.touch())
    add_model(repository, "no_version", "max_batch_size: 8\n" + tensors)
    bf16 = tensors.replace("FP32", "BF16")
    add_model(repository, "half", "max_batch_size: 8\n" + bf16, lambda path: path.touch())
    log = tmp_path / "triton.log"
    with pytest.raises(ServerError) as caught, server.start(repository, log=log):
        pass
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        'typo: config.pbtxt:3:14: Message type "inference.ModelConfig" has no field named "max_batchsize".',
        "empty: ",
        "No graph was found in the protobuf",
        "no_version: at least one version must be available",
        "half: ",
        "x is BF16",
        str(log),
    ):
        assert part in message
    assert log.stat().st_size > 0


def test_models_that_never_load_are_named(tmp_path):
    add_double(tmp_path)
    folder = add_double(tmp_path, "slow")
    (folder / "1" / "model.py").write_text("import time\ntime.sleep(60)\n")
    begun = time.monotonic()
    with (
        pytest.raises(ServerError, match="not ready in time: still loading: slow") as caught,
        server.start(tmp_path, timeout=4),
    ):
        pass
    assert time.monotonic() - begun < 10
    log = Path(caught.value.hint.split()[-1])
    assert left_over(log.stem) == [str(log)]
    log.unlink()


def test_chosen_models_and_polling(tmp_path):
    add_double(tmp_path)
    add_double(tmp_path, "other")
    with server.start(tmp_path, models=["other"], extra_args=["--log-verbose=0"]) as running:
        assert running.poll() is None
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{running.http}/v2/models/double/ready", timeout=5)
        with server.start(tmp_path, control="poll") as polling:
            os.kill(polling.pid, 0)
            urllib.request.urlopen(f"http://{polling.http}/v2/models/double/ready", timeout=5).close()
    assert left_over(running.server_id) == left_over(polling.server_id) == []
