"""Each precision of a ResNet-50, a BERT-base and the PP-OCR recogniser, on this CPU: size, error, latency, memory.

python benchmarks/precision.py [--small] [--json results.json]
Weights of the first two are random (they say nothing of a task's accuracy); ratios are of the fp32 file, for int8 of
the encoder without its embedding table, which stays in fp32. bf16 is emulated here, so it has no latency.
"""

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from repogen.files import sha256
from repogen.model import Gate, Tensor
from repogen.precision.lowering import Calibration, Source
from repogen.precisions import Compared, side_by_side

sys.path.insert(0, str(Path(__file__).parent))
from precision_models import encoder, images, lines, resnet, sentences

SIZES = {
    False: ({}, {}, 224, 128, 30522, 768),
    True: (
        {"blocks": (1, 1, 1, 1), "width": 16, "size": 64, "classes": 100},
        {"layers": 2, "hidden": 128, "heads": 4, "words": 500, "sequence": 32},
        64, 32, 500, 128,
    ),
}  # fmt: skip
RECOGNISER = Path(__file__).parents[1] / "examples" / "models" / "text_rec.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the same shapes, small")
    parser.add_argument("--samples", type=int, default=8, help="for calibration, and others for the comparison")
    parser.add_argument("--json", type=Path, help="where to write everything, raw latencies included")
    arguments = parser.parse_args()
    document = {"machine": _machine(), "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, make in (("resnet50", _resnet), ("bert-base", _bert), ("pp-ocr rec", _recogniser)):
            source, calibration, gate, table = make(Path(scratch), arguments.small, arguments.samples)
            rows = side_by_side(source, gate, calibration=calibration)
            _show(name, rows, table)
            document["models"][name] = {"table": table, "rows": [asdict(row) for row in rows]}
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1, default=str))


def _machine() -> dict[str, str]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].partition(": ")[2] if model else platform.processor(),
        "onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__, "python": platform.python_version(),
    }  # fmt: skip


Case = tuple[Source, Calibration, Gate]
Arrays = dict[str, np.ndarray]


def _case(path: Path, inputs: tuple[Tensor, ...], calibration: Arrays, validation: Arrays) -> Case:
    files = []
    for part, arrays in (("calib", calibration), ("val", validation)):
        files.append(path.parent / f"{path.stem}_{part}.npz")
        np.savez(files[-1], **arrays)
    source = Source(path, sha256(path), inputs, batched=True, size=path.stat().st_size, sizes={"W": 320})
    gate = Gate(path, source.digest, path, "fp32", inputs, 2, (files[1],), sizes=source.sizes)
    return source, Calibration((files[0],)), gate


def _resnet(folder: Path, small: bool, count: int) -> tuple[Source, Calibration, Gate, int]:
    options, _, size, *_ = SIZES[small]
    inputs = (Tensor("image", "TYPE_FP32", ("N", 3, size, size)),)
    path = resnet(folder / "resnet.onnx", **options)
    return (*_case(path, inputs, images(count, size, 1), images(count, size, 2)), 0)


def _bert(folder: Path, small: bool, count: int) -> tuple[Source, Calibration, Gate, int]:
    _, options, _, length, words, hidden = SIZES[small]
    inputs = tuple(Tensor(name, "TYPE_INT64", ("N", length)) for name in ("input_ids", "attention_mask"))
    path = encoder(folder / "bert.onnx", **options)
    data = (sentences(count, length, words, seed) for seed in (1, 2))
    return (*_case(path, inputs, *data), 4 * words * hidden)


def _recogniser(folder: Path, _small: bool, count: int) -> tuple[Source, Calibration, Gate, int]:
    path = folder / "text_rec.onnx"
    path.write_bytes(RECOGNISER.read_bytes())
    inputs = (Tensor("x", "TYPE_FP32", ("N", 3, 48, "W")),)
    return (*_case(path, inputs, lines(2 * count, 1), lines(2 * count, 2)), 0)


_HEADER = ("MB", "ratio", "ms", "MB used", "cosine", "rel. L2", "top-1")


def _show(name: str, rows: tuple[Compared, ...], table: int) -> None:
    print(f"\n{name}\n{'':6} " + " ".join(f"{title:>9}" for title in _HEADER))
    for row in rows:
        if row.missing:
            print(f"{row.precision:6} {row.missing}")
            continue
        left = table if row.precision == "int8" else 0
        ratio = (row.size - left) / (rows[0].size - left)
        time = f"{row.latency:9.2f} {row.memory / 1e6:9.0f}" if row.milliseconds else f"{'-':>9} {'-':>9}"
        text = f"{row.precision:6} {row.size / 1e6:9.1f} {ratio:9.3f} {time}"
        if row.verdict:
            worst = max(row.verdict.rows, key=lambda one: one.relative_l2)
            agree = min(one.top1 for one in row.verdict.rows)
            text += f" {worst.cosine:9.6f} {worst.relative_l2:9.5f} {agree:9.4f}"
            text += f"  {'passed' if row.verdict.passed else 'FAILED'}"
        print(text, flush=True)


if __name__ == "__main__":
    main()
