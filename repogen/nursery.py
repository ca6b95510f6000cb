"""A process that has the heavy imports behind it and forks a child for each question: milliseconds, not half a second.

It is `python -m repogen.nursery`. It reads a line of JSON for each question and answers with one: how the
child ended, what it wrote and what it complained of. It never looks at a model itself, so nothing that a hostile
one does to its child reaches the next.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

_PRELOADED = ("numpy", "onnx", "onnx.numpy_helper", "onnxruntime", "repogen.onnx_facts", "repogen.proving")
_PAUSE = 0.001
_LONGEST_PAUSE = 0.02
_PR_SET_PDEATHSIG = 1
_TAIL = 20_000
_IDLE = 10.0  # seconds without a question after which it ends: it holds the memory of its imports


def main() -> None:
    """Answer questions until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not the answer
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)
    with contextlib.suppress(Exception):
        _set_up()
    while select.select([0], [], [], _IDLE)[0] and (line := sys.stdin.readline()):
        answers.write(json.dumps(_answered(json.loads(line))) + "\n")
        answers.flush()


def _set_up() -> None:
    """Use the libraries once, on a graph of our own, so that no child has to register all their operators anew.

    Without threads of ONNX Runtime's: a process that has them had better not fork.
    """
    import onnx
    import onnxruntime

    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _answered(asked: Mapping[str, Any]) -> dict[str, Any]:
    out, err = os.memfd_create("out"), os.memfd_create("err")
    try:
        pid = os.fork()
        if pid == 0:
            _be_the_child(asked, out, err)
        status = _ended(pid, float(asked["seconds"]))
        return {"status": status, "out": _read(out), "err": _read(err)[-_TAIL:]}
    finally:
        os.close(out)
        os.close(err)


def _be_the_child(asked: Mapping[str, Any], out: int, err: int) -> None:
    """Answer one question, and end; the nursery's own stdin and answers are out of reach."""
    from repogen.child import answer_within

    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for place, descriptor in ((0, null), (1, err), (2, err)):
            os.dup2(descriptor, place)
        os.chdir(asked["folder"])
        text = answer_within(asked["module"], asked["question"], int(asked["memory"]), int(asked["seconds"]))
        with os.fdopen(out, "w") as file:
            file.write(text)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _ended(pid: int, seconds: float) -> int | None:
    """Return the exit code, or minus the signal; None where the time was up and the child was ended."""
    deadline = time.monotonic() + seconds
    with _end_of(pid) as end:
        pause = _PAUSE
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            left = deadline - time.monotonic()
            if left <= 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            select.select(end, [], [], left if end else min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[list[int]]:
    """Give a descriptor that is readable once the process has ended; none before Linux 5.3."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read().decode(errors="replace")


if __name__ == "__main__":
    main()
