import socket
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient import grpc as tritonclient
from tritonclient.grpc import service_pb2

from repogen.errors import RepogenError, ServerError
from repogen.triton import (
    BatchStatistics,
    Client,
    NoAnswer,
    Rejected,
    Statistics,
    address,
    decode,
    encode,
    from_wire,
    to_wire,
)
from tests.fake_triton import FakeModel, FakeTriton, Refusal, identity_config

ARRAYS = {
    "FP32": np.array([[1.5, -2.0], [np.inf, 0.0]], dtype=np.float32),
    "FP64": np.array([1e300], dtype=np.float64),
    "FP16": np.array([[0.5, 65504.0]], dtype=np.float16),
    "BF16": np.array([[1.0, -3.0]], dtype=ml_dtypes.bfloat16),
    "BOOL": np.array([[True, False, True]]),
    "INT8": np.array([-128, 127], dtype=np.int8),
    "INT16": np.array([-5, 5], dtype=np.int16),
    "INT32": np.array(7, dtype=np.int32),
    "INT64": np.array([[2**62]], dtype=np.int64),
    "UINT8": np.zeros((0, 3), dtype=np.uint8),
    "UINT16": np.array([65535], dtype=np.uint16),
    "UINT32": np.array([2**32 - 1], dtype=np.uint32),
    "UINT64": np.array([2**64 - 1], dtype=np.uint64),
    "BYTES": np.array([[b"a", b""], [b"\x00\xff\x00", "ж".encode()]], dtype=object),
}


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist()


def answer_of(request_bytes):
    """The response that echoes a request."""
    request = service_pb2.ModelInferRequest.FromString(request_bytes)
    response = service_pb2.ModelInferResponse(model_name=request.model_name)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.extend(request.raw_input_contents)
    return response


@pytest.fixture
def server():
    with FakeTriton(FakeModel(identity_config("echo"))) as fake:
        yield fake


@pytest.fixture
def client(server):
    with Client(server.url) as it:
        yield it


@pytest.mark.parametrize("datatype", ARRAYS)
def test_round_trip(datatype):
    array = ARRAYS[datatype]
    assert to_wire(array)[0] == datatype
    assert same(decode(answer_of(encode("m", {"x": array})))["x"], array)
    assert same(decode(answer_of(encode("m", {"x": array})).SerializeToString())["x"], array)


@pytest.mark.parametrize("datatype", ARRAYS)
def test_encoding_is_that_of_tritonclient(datatype):
    array = ARRAYS[datatype]
    tensor = tritonclient.InferInput("x", array.shape, datatype)
    if array.size:  # tritonclient drops the contents of an empty tensor
        tensor.set_data_from_numpy(array)
        mine = service_pb2.ModelInferRequest.FromString(encode("m", {"x": array}, ["y"]))
        assert mine.inputs[0] == tensor._get_tensor()
        assert mine.raw_input_contents[0] == tensor._get_content()
        assert [output.name for output in mine.outputs] == ["y"]


def test_tritonclient_reads_what_we_would_answer():
    result = tritonclient.InferResult(answer_of(encode("m", ARRAYS)))
    for name, array in ARRAYS.items():
        assert same(result.as_numpy(name), array)


def test_text_becomes_utf8_and_foreign_byte_order_is_turned():
    assert from_wire("BYTES", (2,), to_wire(np.array(["ж", "b"]))[1]).tolist() == ["ж".encode(), b"b"]
    assert from_wire("BYTES", (1,), to_wire(np.array([b"ab"]))[1]).tolist() == [b"ab"]
    big = np.array([1, 2], dtype=">i4")
    assert to_wire(big) == ("INT32", np.array([1, 2], dtype="<i4").tobytes())
    assert to_wire(np.arange(6, dtype=np.int8).reshape(2, 3).T)[1] == bytes([0, 3, 1, 4, 2, 5])


def test_an_array_that_triton_has_no_type_for():
    with pytest.raises(RepogenError, match="complex128"):
        to_wire(np.array([1j]))


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_any_bytes_survive(items):
    array = np.empty(len(items), dtype=object)
    array[:] = items
    assert from_wire("BYTES", (len(items),), to_wire(array)[1]).tolist() == items


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        pytest.param("FP32", [2], b"", id="empty answer"),
        pytest.param("FP32", [2], bytes(12), id="too long"),
        pytest.param("BYTES", [2], b"\x01\x00\x00\x00a", id="one string of two"),
        pytest.param("BYTES", [1], b"\x09\x00\x00\x00a", id="string cut"),
        pytest.param("BYTES", [1], b"\x01\x00\x00\x00abc", id="rest"),
        pytest.param("FP13", [1], b"", id="unknown type"),
    ],
)
def test_a_broken_answer_is_an_error(datatype, shape, raw):
    response = service_pb2.ModelInferResponse(model_name="ocr", raw_output_contents=[raw])
    response.outputs.add(name="y", datatype=datatype, shape=shape)
    with pytest.raises(ServerError, match=r"ocr\.y: the server's answer is broken"):
        decode(response)


def test_an_answer_without_contents_is_an_error():
    response = service_pb2.ModelInferResponse(model_name="ocr")
    response.outputs.add(name="y", datatype="FP32", shape=[1])
    with pytest.raises(ServerError, match="1 outputs with the contents of 0"):
        decode(response)


@pytest.mark.parametrize("url", ["h:1", "grpc://h:1", "http://h:1/", " h:1 "])
def test_address(url):
    assert address(url) == "h:1"


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(RepogenError, match="gRPC port"):
        address("https://h:1")


def test_client_calls(server, client):
    x = np.ones((2, 4), dtype=np.float32)
    assert client.live()
    assert (client.server_id(), client.server_version()) == ("fake", "2.51.0")
    assert client.ready("echo")
    assert not client.ready("other")
    assert client.config("echo").max_batch_size == 8
    assert client.models() == (("echo", "1", "READY", ""),)
    assert same(client.infer("echo", {"x": x}, ["x"])["x"], x)
    client.unload("echo")
    assert not client.ready("echo")
    assert client.models() == (("echo", "1", "UNAVAILABLE", "unloaded"),)
    client.load("echo", '{"max_batch_size": 4}')
    assert client.ready("echo")
    name, request = server.calls[-2]
    assert name == "RepositoryModelLoad"
    assert request.parameters["config"].string_param == '{"max_batch_size": 4}'


def test_statistics_and_their_difference(client):
    x = np.ones((2, 4), dtype=np.float32)
    client.infer("echo", {"x": x})
    before = client.statistics("echo")
    for _ in range(3):
        client.infer("echo", {"x": x})
    client.infer("echo", {"x": x[:1]})
    spent = client.statistics("echo") - before
    assert (spent.requests, spent.failures, spent.executions, spent.inferences) == (4, 0, 4, 7)
    assert (spent.queue_ns, spent.compute_infer_ns) == (400_000, 2_400_000)
    assert [(b.size, b.count, b.compute_infer_ns) for b in spent.batches] == [(1, 1, 600_000), (2, 3, 1_800_000)]


def test_statistics_that_started_over_give_no_difference():
    zero = Statistics("m", 0, 0, 0, 0, 0, 0, 0, 0)
    some = Statistics("m", 1, 0, 1, 1, 5, 5, 5, 5, (BatchStatistics(1, 1, 5, 5, 5),))
    assert some - some == zero
    with pytest.raises(ServerError, match="started over"):
        zero - some


def test_the_words_of_triton_are_kept(server, client):
    def refuse(_):
        raise Refusal("INVALID_ARGUMENT", "unexpected shape for input 'x'")

    server.models["echo"].infer = refuse
    with pytest.raises(Rejected, match="unexpected shape for input 'x'") as caught:
        client.infer("echo", {"x": np.ones((1, 4), dtype=np.float32)})
    assert (caught.value.status, caught.value.exit_code) == ("INVALID_ARGUMENT", 4)
    with pytest.raises(Rejected, match="unknown model"):
        client.statistics("other")


def test_nobody_there():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{closed.getsockname()[1]}"
        with Client(url) as client:
            assert not client.live()
            with pytest.raises(NoAnswer, match=f"no Triton answers at {url}"):
                client.ready("m")


def test_a_server_that_does_not_answer_meets_the_deadline(server):
    free = threading.Event()
    server.models["echo"].infer = lambda _: free.wait(5)
    with Client(server.url) as client:
        start = time.monotonic()
        with pytest.raises(NoAnswer, match=r"within 0\.2 s"):
            client.infer("echo", {"x": np.ones((1, 4), dtype=np.float32)}, deadline=0.2)
        assert time.monotonic() - start < 2
    free.set()


def test_a_large_tensor_passes(client):
    x = np.ones((8, 300_000), dtype=np.float32)  # beyond gRPC's 4 MiB
    assert client.infer("echo", {"x": x})["x"].shape == x.shape


def test_a_client_right_after_the_server_came_up_is_not_turned_away():
    with FakeTriton() as first:
        url = first.url
    with Client(url) as early:
        assert not early.live()
        with FakeTriton() as late, Client(late.url) as client:
            assert client.live()
