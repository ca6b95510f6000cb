"""Lowered models pass their gates and are served by the real embedded Triton, each answering as ONNX Runtime does."""

import importlib.util

import numpy as np
import pytest

from benchmarks.precision_models import encoder, images, lines, resnet, sentences
from tests.conftest import ROOT
from tests.serverkit import needs_server

MODELS = ROOT / "examples" / "models"
FULL = {
    "cnn": {"blocks": (3, 4, 6, 3), "width": 64, "size": 224, "classes": 1000},
    "encoder": {"layers": 12, "hidden": 768, "heads": 12, "words": 30522, "sequence": 128},
}
SMALL = {
    "cnn": {"blocks": (1, 1, 1, 1), "width": 16, "size": 64, "classes": 100},
    "encoder": {"layers": 2, "hidden": 128, "heads": 4, "words": 500, "sequence": 32},
}
MANIFEST = """triton: "26.08"
repository: served
defaults: {instances: [{kind: cpu}], max_batch_size: 2}
models:
"""
ENTRY = """  {name}_{precision}:
    source: {source}
    precision: {precision}
    accuracy: {{data: {name}_val.npz{limits}}}
"""


def write(folder, sizes):
    """Write the models, their data and a manifest that serves each in fp16 and int8; return their names."""
    text, sources = MANIFEST, {}
    cnn, text_model = sizes["cnn"], sizes["encoder"]
    sources["cnn"] = resnet(folder / "cnn.onnx", **cnn)
    sources["encoder"] = encoder(folder / "encoder.onnx", **text_model)
    for part, seed in (("calib", 1), ("val", 2)):
        np.savez(folder / f"cnn_{part}.npz", **images(4, cnn["size"], seed))
        np.savez(folder / f"encoder_{part}.npz", **sentences(4, text_model["sequence"], text_model["words"], seed))
    if (MODELS / "text_rec.onnx").exists() and importlib.util.find_spec("PIL"):
        sources["text_rec"] = MODELS / "text_rec.onnx"
        for part, seed in (("calib", 1), ("val", 2)):
            np.savez(folder / f"text_rec_{part}.npz", **lines(12, seed))
    for name, source in sources.items():
        for precision in ("fp16", "int8"):
            text += ENTRY.format(name=name, precision=precision, source=source, limits="")
            text += f"    calibration: {{data: {name}_calib.npz}}\n" if precision == "int8" else ""
    (folder / "repogen.yaml").write_text(text)
    return {f"{name}_{precision}": sources[name] for name in sources for precision in ("fp16", "int8")}


def served_and_right(folder, sizes, invoke):
    from repogen import server
    from repogen.desired import desired_models
    from repogen.embedded import embed
    from repogen.publish import write_model
    from repogen.render import render
    from repogen.triton import Client
    from repogen.verify import verify_model

    sources = write(folder, sizes)
    done = invoke("sync", "-f", folder / "repogen.yaml")  # runs every gate, or ends with 1
    assert done.stdout.count("answers like fp32 on") == len(sources)
    models = desired_models(folder / "repogen.yaml")
    for model in models:
        stand_in = embed(model, cpus=2)
        write_model(stand_in, render(stand_in), folder / "embedded" / model.name)
    with server.start(folder / "embedded", timeout=240) as triton, Client(triton.grpc) as client:
        for model in models:
            for compared in verify_model(model, client, seed=0):
                assert not compared.problem, compared
    return {model.name: (sum(file.size for file in model.files), sources[model.name]) for model in models}


def table_of(name, sizes):
    """Return the bytes of the embedding table, which stays in fp32 in int8."""
    return 4 * sizes["encoder"]["words"] * sizes["encoder"]["hidden"] if name.startswith("encoder") else 0


def check_sizes(found, sizes):
    for name, (size, source) in found.items():
        table = table_of(name, sizes) if name.endswith("int8") else 0
        ratio = (size - table) / (source.stat().st_size - table)
        assert ratio <= (0.30 if name.endswith("int8") else 0.52), (name, ratio)


@pytest.mark.slow
@pytest.mark.server
@needs_server[1]
def test_small(tmp_path, invoke):
    check_sizes(served_and_right(tmp_path, SMALL, invoke), SMALL)


@pytest.mark.server
@pytest.mark.slow
@needs_server[1]
def test_full_size(tmp_path, invoke):
    """ResNet-50's and BERT-base's own sizes."""
    check_sizes(served_and_right(tmp_path, FULL, invoke), FULL)
