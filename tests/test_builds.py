"""Building: real builds by TensorRT-RTX, and processes that crash, hang, lie or are interrupted."""

import importlib.util
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from repogen import build_cache
from repogen.builder_process import BuilderFailed, ask
from repogen.builds import build_pending, refuse_not_for_triton, resolved, unfit_for
from repogen.desired import desired_models
from repogen.errors import ConversionError, Refused
from repogen.lock_file import lock_path, read_lock, write_lock
from repogen.plan_header import header_bytes, read_header
from tests.serverkit import onnx_file

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None,
    reason="tensorrt-rtx is not installed (pip install 'repogen[tensorrt]')",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPOGEN_PUBLISH_RTX", raising=False)


@pytest.fixture
def manifest(tmp_path):
    onnx_file(
        tmp_path / "net.onnx",
        [("MatMul", ["x", "w"], ["t"], {}), ("Relu", ["t"], ["y"], {})],
        [("x", "FLOAT", ["N", 4])],
        [("y", "FLOAT", ["N", 4])],
        {"w": np.eye(4, dtype=np.float32)},
    )
    path = tmp_path / "repogen.yaml"
    path.write_text(
        'triton: "26.08"\ntensorrt: rtx\nmodels:\n  net:\n    source: net.onnx\n    backend: tensorrt\n'
        "    max_batch_size: 4\n    workspace: 64MiB\n"
    )
    return path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# --- real builds ---


@needs_rtx
def test_a_plan_is_built_once_and_then_found(manifest):
    (pending,) = desired_models(manifest)
    assert [(build.name, build.reason) for build in pending.pending] == [("model.plan", "never built")]
    assert pending.files == ()
    steps = []
    (built,) = build_pending([pending], progress=steps.append)
    assert built.pending == ()
    assert read_header(built.files[0].source).rtx
    assert {step.model for step in steps} == {"net"}
    assert any(step.of > 1 and step.done == step.of for step in steps)
    entry, _ = build_cache.find(pending.pending[0].key)
    assert entry.facts["workspace"] == 64 * 2**20
    assert entry.facts["tensors"][0] == {
        "kind": "input", "name": "x", "dtype": "TYPE_FP32", "dims": [-1, 4], "shape_tensor": False,
    }  # fmt: skip
    assert desired_models(manifest) == (built,)
    again = []
    assert build_pending([built], progress=again.append) == (built,)
    assert again == []


@needs_rtx
def test_a_flipped_byte_in_the_cache_is_a_reason_to_build(manifest):
    (built,) = build_pending(desired_models(manifest))
    plan = built.files[0].source
    content = bytearray(plan.read_bytes())
    content[-1] ^= 1
    plan.write_bytes(content)
    (found,) = desired_models(manifest)
    assert found.pending[0].reason == "the cached one is damaged: model.plan changed"
    (mended,) = build_pending([found])
    assert mended.pending == ()


@needs_rtx
@pytest.mark.parametrize(
    ("old", "new"),
    [("max_batch_size: 4", "max_batch_size: 2"), ("64MiB", "32MiB"), ("64MiB", "64MiB\n    tf32: false")],
)
def test_another_manifest_is_another_plan(manifest, old, new):
    build_pending(desired_models(manifest))
    edit(manifest, old, new)
    assert desired_models(manifest)[0].pending


@needs_rtx
def test_the_lock_file_says_what_was_built(manifest):
    models = build_pending(desired_models(manifest))
    write_lock(manifest, models)
    (entry,) = read_lock(manifest).values()
    assert entry["plan_sha256"] == models[0].files[0].sha256
    assert entry["source_sha256"] == models[0].build.onnx[0].sha256
    assert entry["kind"] == "tensorrt_rtx"
    before = lock_path(manifest).stat().st_mtime_ns
    write_lock(manifest, models)
    assert lock_path(manifest).stat().st_mtime_ns == before


@needs_rtx
def test_an_operator_that_tensorrt_does_not_have_is_named(manifest, tmp_path):
    onnx_file(
        tmp_path / "net.onnx",
        [("Det", ["x"], ["t"], {"name": "determinant"}), ("Relu", ["t"], ["y"], {})],
        [("x", "FLOAT", ["N", 4, 4])],
        [("y", "FLOAT", ["N"])],
    )
    with pytest.raises(ConversionError, match=r"cannot take this graph: Det 'determinant'") as raised:
        build_pending(desired_models(manifest))
    assert raised.value.exit_code == 3
    assert build_cache.size_of_cache() == 0


@needs_rtx
def test_without_a_gpu_the_graph_is_tried_and_no_plan_is_claimed(manifest):
    edit(manifest, "tensorrt: rtx", 'gpu: "9.0"')
    with pytest.raises(ConversionError, match="no plan was built") as raised:
        build_pending(desired_models(manifest))
    assert "passed its pre-flight" in str(raised.value)
    assert "may differ" in str(raised.value)
    assert "sm_90" in str(raised.value)


@needs_rtx
def test_a_plan_that_is_not_what_its_graph_is_fails_the_build(manifest):
    (pending,) = desired_models(manifest)
    lying = replace(pending, outputs=(replace(pending.outputs[0], dtype="TYPE_FP16"),))
    with pytest.raises(ConversionError, match="output 'y' is TYPE_FP32, not TYPE_FP16"):
        build_pending([lying])
    assert build_cache.size_of_cache() == 0


@needs_rtx
def test_a_plan_of_tensorrt_rtx_is_not_published(manifest, monkeypatch):
    models = build_pending(desired_models(manifest))
    with pytest.raises(Refused, match="Triton cannot load"):
        refuse_not_for_triton(models)
    monkeypatch.setenv("REPOGEN_PUBLISH_RTX", "1")
    refuse_not_for_triton(models)


@needs_rtx
def test_sync_refuses_it_and_publishes_nothing(manifest, invoke):
    result = invoke("sync", "-f", manifest, code=1)
    assert "TensorRT-RTX" in result.stderr
    assert not (manifest.parent / "model_repository" / "net").exists()


# --- plans for another target ---


@pytest.mark.parametrize(
    ("version", "facts", "changes", "reason"),
    [
        ((10, 16, 1, 11), {}, {}, ""),
        ((10, 16, 0, 72), {}, {}, ""),
        ((10, 15, 1, 29), {}, {}, "was built by TensorRT 10.15.1.29, and the server has 10.16"),
        (
            (10, 16, 1, 11),
            {"gpu": {"capability": "8.9"}},
            {},
            "compute capability 8.9, and the GPUs that serve have 9.0",
        ),
        ((10, 16, 1, 11), {"gpu": {"capability": "8.9"}}, {"hardware_compatible": "ampere_plus"}, ""),
        ((10, 15, 1, 29), {}, {"version_compatible": True}, ""),
    ],
)
def test_a_plan_for_another_server_or_gpu_is_not_used(manifest, tmp_path, version, facts, changes, reason):
    edit(manifest, "tensorrt: rtx", 'tensorrt: "10.16"\ngpu: "9.0"')
    build = desired_models(manifest)[0].build
    build = replace(build, options=replace(build.options, **changes))
    plan = tmp_path / "a.plan"
    plan.write_bytes(header_bytes(version))
    assert reason in unfit_for(build, plan, facts)
    assert bool(unfit_for(build, plan, facts)) == bool(reason)


def test_a_cached_plan_that_does_not_fit_is_built_again(manifest):
    edit(manifest, "tensorrt: rtx", 'tensorrt: "10.16"\ngpu: "9.0"')
    (pending,) = desired_models(manifest)
    with build_cache.staging() as folder:
        (folder / "model.plan").write_bytes(header_bytes((10, 9, 0, 34)))
        build_cache.add(pending.pending[0].key, folder, {})
    reason = resolved(pending).pending[0].reason
    assert reason == "the cached one was built by TensorRT 10.9.0.34, and the server has 10.16"


# --- the process ---


def child(code):
    return [sys.executable, "-c", f"import json, os, signal, sys, time\nquestion = json.loads(input())\n{code}"]


def test_an_answer_comes_with_its_progress():
    code = "print(json.dumps({'progress': {'phase': 'p'}}))\nprint(json.dumps({'answer': question}))"
    told = []
    assert ask(child(code), {"task": "x"}, seconds=30, tell=told.append) == {"task": "x"}
    assert told == [{"phase": "p"}]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("sys.stderr.write('last words\\n'); sys.stderr.flush(); os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL: the machine ran out of memory"),
        ("sys.exit(7)", "with status 7 and no answer"),
    ],
)
def test_a_process_that_dies_is_an_error_with_its_last_lines(code, how):
    with pytest.raises(BuilderFailed, match=how) as raised:
        ask(child(code), {}, seconds=30)
    if "SEGV" in how:
        assert raised.value.log == ("last words",)


def test_a_process_that_hangs_is_ended():
    begin = time.monotonic()
    with pytest.raises(BuilderFailed, match="did not finish within 1 s"):
        ask(child("print(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(60)"), {}, seconds=1)
    assert time.monotonic() - begin < 15


def test_an_interruption_asks_the_build_to_stop_and_leaves_no_process(tmp_path):
    pid = tmp_path / "pid"
    code = (
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "def stop(*_):\n    print(json.dumps({'answer': {}}), flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "print(json.dumps({'progress': {}}), flush=True)\ntime.sleep(60)"
    )

    def interrupt(_row):
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask(child(code), {}, seconds=60, tell=interrupt)
    assert time.monotonic() - begin < 8
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@needs_rtx
def test_a_real_build_stops_when_asked(manifest):
    (pending,) = desired_models(manifest)

    def interrupt(step):
        if step.phase == "building":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come a little later
        build_pending([pending], progress=interrupt)
        time.sleep(5)
    assert build_cache.size_of_cache() == 0
    (built,) = build_pending([pending])
    assert built.pending == ()
