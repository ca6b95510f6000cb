"""The example clients: their arithmetic by itself, then every answer from the real models, in process."""

from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the example clients need Pillow")

import answers
import filetypes
import ocr
import speech
from PIL import Image

MODELS = Path(answers.HERE) / "models"
NAMES = ("text_det", "text_rec", "text_cls", "silero_vad", "magika")


class InProcess:
    """`infer` by ONNX Runtime; keeps the shapes it was asked with."""

    def __init__(self):
        import onnxruntime

        self.shapes = {name: [] for name in NAMES}
        self.sessions = {name: onnxruntime.InferenceSession(str(MODELS / f"{name}.onnx")) for name in NAMES}

    def __call__(self, model, inputs):
        session = self.sessions[model]
        self.shapes[model].append({name: value.shape for name, value in inputs.items()})
        scalars = {node.name for node in session.get_inputs() if node.shape == []}
        feed = {name: value.reshape(()) if name in scalars else value for name, value in inputs.items()}
        return dict(zip([node.name for node in session.get_outputs()], session.run(None, feed), strict=True))


@pytest.fixture(scope="module")
def infer():
    missing = [name for name in NAMES if not (MODELS / f"{name}.onnx").is_file()]
    if missing:
        pytest.skip(f"no {missing} in examples/models: python examples/fetch_models.py")
    pytest.importorskip("onnxruntime")
    return InProcess()


@pytest.mark.models
def test_every_answer_is_right(infer, capsys):
    assert answers.ask(infer) == []
    said = capsys.readouterr().out
    assert all(line in said for line in answers.SIGN)
    assert [shapes[0]["x"][0] for name, shapes in infer.shapes.items() if name.startswith("text_")] == [
        1,
        4,
        4,
    ]
    assert infer.shapes["silero_vad"][0] == {"input": (1, 576), "state": (2, 1, 128), "sr": (1,)}


@pytest.mark.models
def test_wrong_answers_are_found(infer, capsys):
    def liar(model, inputs):
        outputs = infer(model, inputs)
        if model == "silero_vad":
            return {"output": np.zeros((1, 1), np.float32), "stateN": outputs["stateN"]}
        return {name: np.roll(value, 1, axis=-1) if model != "text_det" else value for name, value in outputs.items()}

    wrong = answers.ask(liar)
    assert [sentence.partition(":")[0] for sentence in wrong[:3]] == ["sign.png", "sign.png", "speech.wav"]
    assert len(wrong) == 3 + len(answers.TYPES)
    capsys.readouterr()


@pytest.mark.models
def test_a_blank_picture_holds_no_text(infer):
    assert ocr.read_text(Image.new("RGB", (320, 160), "white"), infer, []) == []


@pytest.mark.models
def test_the_alphabet_fits_the_scores(infer):
    alphabet = ocr.load_alphabet(MODELS / "text_rec.onnx")
    assert len(alphabet) == infer.sessions["text_rec"].get_outputs()[0].shape[2] == 6625
    assert (alphabet[0], alphabet[-1]) == ("", " ")


@pytest.mark.models
def test_noise_is_not_speech(infer):
    noise = np.random.default_rng(1).normal(0, 0.05, 16_000)
    assert speech.find_speech(noise, infer) == []


@pytest.mark.parametrize(
    ("drawing", "boxes"),
    [
        pytest.param(["...", "..."], [], id="nothing"),
        pytest.param(["##.", "##.", "..#"], [(0, 0, 3, 3)], id="corners touch"),
        pytest.param(["#.#", "#.#", "###"], [(0, 0, 3, 3)], id="two arms meet below"),
        pytest.param(["##..", "....", "..##"], [(0, 0, 2, 1), (2, 2, 4, 3)], id="apart"),
        pytest.param(["#.#.#", "#####"], [(0, 0, 5, 2)], id="comb"),
        pytest.param(["###", "#..", "#.#", "###"], [(0, 0, 3, 4)], id="hook"),
    ],
)
def test_connected_boxes(drawing, boxes):
    mask = np.array([[mark == "#" for mark in row] for row in drawing])
    assert sorted(ocr.connected_boxes(mask)) == boxes


def test_connected_boxes_agree_with_flood_fill():
    rng = np.random.default_rng(3)
    for _ in range(50):
        mask = rng.random((12, 15)) < 0.35
        assert sorted(ocr.connected_boxes(mask)) == sorted(flood_boxes(mask))


def flood_boxes(mask):
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(mask), strict=True)}
    while left:
        patch, edge = set(), {left.pop()}
        while edge:
            patch |= edge
            near = {(r + i, c + j) for r, c in edge for i in (-1, 0, 1) for j in (-1, 0, 1)}
            edge = near & left
            left -= edge
        rows, columns = zip(*patch, strict=True)
        yield min(columns), min(rows), max(columns) + 1, max(rows) + 1


@pytest.mark.parametrize(
    ("likely", "found"),
    [
        pytest.param([0.1] * 20, [], id="silence"),
        pytest.param([0.1] * 5 + [0.9] * 10 + [0.1] * 5, [(0.5, 1.5)], id="one"),
        pytest.param([0.9] * 10, [(0.0, 1.0)], id="to the very end"),
        pytest.param([0.9] * 2 + [0.1] * 8, [], id="too short"),
        pytest.param([0.9] * 5 + [0.4] * 5 + [0.9] * 5, [(0.0, 1.5)], id="between the thresholds goes on"),
        pytest.param([0.9] * 5 + [0.1] * 5 + [0.9] * 5, [(0.0, 0.5), (1.0, 1.5)], id="two"),
    ],
)
def test_segments(likely, found):
    assert speech.segments(likely, 0.1) == [pytest.approx(pair) for pair in found]


def test_the_ends_of_a_file():
    config = {"block_size": 16, "beg_size": 4, "end_size": 4, "padding_token": 256}
    assert filetypes.ends(b"  ab\n", config).tolist() == [97, 98, 10, 256, 32, 32, 97, 98]
    assert filetypes.ends(b"0123456789" * 4 + b"\n", config).tolist() == [*b"0123", *b"6789"]
    assert filetypes.ends(b"", config).tolist() == [256] * 8


def test_sound_of_another_rate_is_refused(tmp_path):
    import wave

    with wave.open(str(tmp_path / "fast.wav"), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(b"\0\0")
    with pytest.raises(ValueError, match="16 kHz 16-bit mono"):
        speech.load_sound(tmp_path / "fast.wav")


@pytest.fixture
def echo_server():
    """A real gRPC server speaking Triton's protocol that answers every request with its own inputs."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelInfer(self, request, _context):  # noqa: N802
            outputs = [
                service_pb2.ModelInferResponse.InferOutputTensor(
                    name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
                )
                for tensor in request.inputs
            ]
            return service_pb2.ModelInferResponse(
                model_name=request.model_name, outputs=outputs, raw_output_contents=request.raw_input_contents
            )

    server = grpc.server(futures.ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_arrays_travel_over_grpc_unchanged(echo_server):
    inputs = {
        "window": np.arange(6, dtype=np.float32).reshape(2, 3),
        "sr": np.array([16_000], np.int64),
        "bytes": np.full((1, 4), 256, np.int32),
    }
    outputs = answers.grpc_infer(echo_server)("any", inputs)
    assert set(outputs) == set(inputs)
    for name, value in inputs.items():
        assert outputs[name].dtype == value.dtype
        np.testing.assert_array_equal(outputs[name], value)


@pytest.mark.models
def test_no_server_is_one_line_and_exit_4(infer, capsys):
    assert answers.main(["--url", "127.0.0.1:1"]) == 4
    said = capsys.readouterr()
    assert said.err.startswith("127.0.0.1:1: ")
    assert (said.out, said.err.count("\n")) == ("", 1)
