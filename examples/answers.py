"""Asks the five served models real questions, prints their answers, and checks them.

    python examples/answers.py --url 127.0.0.1:8001

Exit 0: every answer is right; 1: one is wrong; 2: a file is missing; 4: the server does not answer.
"""

import argparse
import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import filetypes
import ocr
import speech
from ocr import Array, Infer
from PIL import Image

HERE = Path(__file__).resolve().parent
INPUTS = HERE / "inputs"
MODELS = HERE / "models"

SIGN = (
    "Platform 9 to Rotterdam",
    "Departs 14:35 on Monday",
    "Ticket price 27.50 euro",
    "Please mind the gap",
)
TURNED = "Ticket price 27.50 euro"
SPOKEN = (1.00, 5.35)  # seconds
SENTENCES = 2  # with a pause between them
SLACK_S = 0.3  # a detector hears a little early and late
TYPES = {
    "answers.py": "python",
    "README.md": "markdown",
    "inputs/sign.png": "png",
    "inputs/speech.wav": "wav",
    "models/magika.json": "json",
    "models/text_cls.onnx": "onnx",
    "a ZIP made just now": "zip",
}


def ask(infer: Infer, models: Path = MODELS) -> list[str]:
    """Put every question to `infer`, print the answers, and return what is wrong with them."""
    return [*ask_sign(infer, models), *ask_sound(infer), *ask_files(infer, models)]


def ask_sign(infer: Infer, models: Path) -> list[str]:
    alphabet = ocr.load_alphabet(models / "text_rec.onnx")
    with Image.open(INPUTS / "sign.png") as picture:
        lines = ocr.read_text(picture, infer, alphabet)
    print("text in inputs/sign.png (text_det, text_cls, text_rec)")
    for line in lines:
        print(f"  {line.text}  ({line.confidence:.3f}{', stood upside down' if line.turned else ''})")
    read = tuple(line.text for line in lines)
    turned = [line.text for line in lines if line.turned]
    wrong = [] if read == SIGN else [f"sign.png: read {list(read)}, it says {list(SIGN)}"]
    return wrong if turned == [TURNED] else [*wrong, f"sign.png: upside down {turned}, it is {[TURNED]}"]


def ask_sound(infer: Infer) -> list[str]:
    found = speech.find_speech(speech.load_sound(INPUTS / "speech.wav"), infer)
    print("speech in inputs/speech.wav (silero_vad)")
    for start, end in found:
        print(f"  {start:.2f} s to {end:.2f} s")
    begin, finish = SPOKEN
    wrong = [] if len(found) == SENTENCES else [f"speech.wav: heard {len(found)} sentences, it has {SENTENCES}"]
    return wrong + [
        f"speech.wav: {start:.2f} s to {end:.2f} s is not within the spoken {begin:.2f} s to {finish:.2f} s"
        for start, end in found
        if start < begin - SLACK_S or end > finish + SLACK_S
    ]


def ask_files(infer: Infer, models: Path) -> list[str]:
    contents = [_content(name, models) for name in TYPES]
    guesses = filetypes.name_types(contents, infer, filetypes.load_config(models / "magika.json"))
    print("types of files (magika)")
    wrong = []
    for (name, expected), guess in zip(TYPES.items(), guesses, strict=True):
        print(f"  {name}: {guess.label}  ({guess.confidence:.3f})")
        if guess.label != expected:
            wrong.append(f"{name}: taken for {guess.label}, it is {expected}")
    return wrong


def grpc_infer(url: str, timeout_s: float = 30) -> Infer:
    """Return the question put to a Triton over gRPC: model name and input arrays in, output arrays out."""
    import tritonclient.grpc as triton
    from tritonclient.utils import np_to_triton_dtype

    client = triton.InferenceServerClient(url)

    def infer(model: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        tensors = []
        for name, value in inputs.items():
            tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        result = client.infer(model, tensors, client_timeout=timeout_s)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    return infer


def main(arguments: list[str] | None = None) -> int:
    from tritonclient.utils import InferenceServerException

    parser = argparse.ArgumentParser(description="Ask the five served example models, and check their answers.")
    parser.add_argument("--url", default="127.0.0.1:8001", help="Triton's gRPC address (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        wrong = ask(grpc_infer(options.url))
    except InferenceServerException as error:
        print(f"{options.url}: {' '.join(str(error.message()).split())}", file=sys.stderr)
        return 4
    except FileNotFoundError as error:
        print(f"{error.filename}: not found (python examples/fetch_models.py)", file=sys.stderr)
        return 2
    for sentence in wrong:
        print(f"wrong: {sentence}", file=sys.stderr)
    if not wrong:
        print("every answer is right")
    return 1 if wrong else 0


def _content(name: str, models: Path) -> bytes:
    if name == "a ZIP made just now":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(HERE.glob("*.py")):
                archive.write(path, path.name)
        return buffer.getvalue()
    folder, _, rest = name.partition("/")
    return (models / rest if folder == "models" else HERE / name).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
