"""Lowering as commands ask for it: in a child, remembered by content, with the real parser of TensorRT-RTX."""

import importlib.util
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from benchmarks.precision_models import encoder, images, resnet, sentences
from repogen import cache
from repogen.errors import ConversionError, ManifestError
from repogen.files import sha256
from repogen.model import Tensor
from repogen.precision import lowering
from repogen.precision.lowering import Calibration, Source, lower

CNN = {"blocks": (1, 1), "width": 8, "size": 32, "classes": 10}
IMAGE = (Tensor("image", "TYPE_FP32", ("N", 3, 32, 32)),)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    path = resnet(tmp_path / "cnn.onnx", **CNN)
    np.savez(tmp_path / "calib.npz", **images(4, 32, 1))
    return Source(path, sha256(path), IMAGE, batched=True, size=path.stat().st_size)


@pytest.fixture
def data(tmp_path):
    return Calibration((tmp_path / "calib.npz",))


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the child, which still answers."""
    found = []
    real = lowering.ask

    def ask(module, question, **options):
        found.append(question["task"])
        return real(module, question, **options)

    monkeypatch.setattr(lowering, "ask", ask)
    return found


def test_remembered_by_content(source, data, asked, tmp_path):
    first = lower(source, "int8", calibration=data)
    assert asked == ["measure", "lower"]
    assert (first.quantised, first.ratio < 0.5, first.half) == (10, True, 0)
    assert lower(source, "int8", calibration=data) == first
    assert asked == ["measure", "lower"]
    copied = tmp_path / "elsewhere.npz"
    copied.write_bytes(data.files[0].read_bytes())
    assert lower(source, "int8", calibration=Calibration((copied,))).files == first.files
    assert len(asked) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda s, d: (replace(s, digest="0" * 64), d, {}),
        lambda s, d: (s, replace(d, method="minmax"), {}),
        lambda s, d: (s, replace(d, percentile=99.0), {}),
        lambda s, d: (s, replace(d, samples=2), {}),
        lambda s, d: (s, d, {"keep": ["Gemm"]}),
    ],
    ids=["model", "method", "percentile", "samples", "keep"],
)
def test_whatever_decides_it_makes_it_anew(source, data, asked, change):
    lower(source, "int8", calibration=data)
    other, given, options = change(source, data)
    lower(other, "int8", calibration=given, **options)
    assert asked == ["measure", "lower"] * 2


def test_other_samples_make_it_anew(source, data, asked):
    lower(source, "int8", calibration=data)
    np.savez(data.files[0], **images(4, 32, 9))
    lower(source, "int8", calibration=data)
    assert asked == ["measure", "lower"] * 2


def test_a_damaged_file_is_made_again(source, asked):
    first = lower(source, "fp16")
    file = first.files[0].source
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert lower(source, "fp16").files[0].sha256 == first.files[0].sha256 == sha256(file)
    assert asked == ["measure", "lower", "lower"]


def test_nothing_unfinished_is_left(source):
    lower(source, "fp16")
    assert [entry.name for entry in (cache.cache_folder() / "lowered").iterdir() if entry.name.startswith(".")] == []


def test_refusals(source, data, tmp_path):
    with pytest.raises(ManifestError, match="int8 needs calibration data"):
        lower(source, "int8")
    with pytest.raises(ConversionError, match="keep_fp32 names 'Cnov'"):
        lower(source, "fp16", keep=["Cnov"])
    spoiled = images(4, 32, 1)
    spoiled["image"][3, 1, 2, 2] = np.nan
    np.savez(data.files[0], **spoiled)
    with pytest.raises(ManifestError, match="calib.npz: 'image' has NaN at sample 3") as caught:
        lower(source, "int8", calibration=data, where="repogen.yaml:7")
    assert str(caught.value).startswith("repogen.yaml:7")


def test_a_child_without_memory_is_said(tmp_path, monkeypatch):
    from tests.precision.kit import graph_of

    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "wide.onnx"
    constants = {"w": np.zeros((2048, 4096), np.float32)}
    onnx.save(
        graph_of([("MatMul", "x w", "y")], [("x", "FLOAT", ["N", 2048])], [("y", "FLOAT", ["N", 4096])], constants),
        path,
    )
    wide = Source(path, sha256(path), (Tensor("x", "TYPE_FP32", ("N", 2048)),), batched=True, size=1)
    with pytest.raises(ConversionError, match="could not be lowered to fp16: it needs more than"):
        lower(wide, "fp16", memory=20 * 2**20)


def test_ranges_on_made_up_inputs_keep_what_overflows(tmp_path, monkeypatch):
    """No constant is large, and no calibration data are given: running it shows that h leaves half."""
    from tests.precision.kit import graph_of

    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    nodes = [("MatMul", "x w", "h"), ("MatMul", "h w", "k"), ("Mul", "k s", "t"), ("MatMul", "t v", "y")]
    constants = {"w": np.full((8, 8), 200, np.float32), "s": np.float32(1e-4), "v": np.eye(8, dtype=np.float32)}
    path = tmp_path / "m.onnx"
    onnx.save(graph_of(nodes, [("x", "FLOAT", ["N", 8])], [("y", "FLOAT", ["N", 8])], constants), path)
    source = Source(path, sha256(path), (Tensor("x", "TYPE_FP32", ("N", 8)),), batched=True, size=path.stat().st_size)
    assert "n1_MatMul" in lower(source, "fp16").kept


def parse(path) -> str:
    """Ask TensorRT-RTX's own ONNX parser, in a process of its own; return its errors."""
    code = (
        "import sys, tensorrt_rtx_libs, tensorrt_rtx_bindings as trt\n"
        "log = trt.Logger(trt.Logger.ERROR)\n"
        "builder = trt.Builder(log)\n"
        "network = builder.create_network(0)\n"
        "parser = trt.OnnxParser(network, log)\n"
        "parser.parse_from_file(sys.argv[1])\n"
        "print([parser.get_error(n).desc() for n in range(parser.num_errors)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None,
    reason="TensorRT-RTX is not installed (pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings)",
)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_the_real_parser_takes_it(precision, source, data, tmp_path):
    assert parse(lower(source, precision, calibration=data if precision == "int8" else None).files[0].source) == "[]"
    path = encoder(tmp_path / "enc.onnx", layers=1, hidden=32, heads=2, words=50, sequence=8)
    np.savez(tmp_path / "enc.npz", **sentences(4, 8, 50, 1))
    inputs = tuple(Tensor(name, "TYPE_INT64", ("N", 8)) for name in ("input_ids", "attention_mask"))
    text = Source(path, sha256(path), inputs, batched=True, size=path.stat().st_size)
    calibration = Calibration((tmp_path / "enc.npz",)) if precision == "int8" else None
    assert parse(lower(text, precision, calibration=calibration).files[0].source) == "[]"
