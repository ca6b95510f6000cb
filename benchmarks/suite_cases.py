"""The models of ONNX's backend suite, and what repogen and ONNX Runtime say of each, in a process of its own."""

import os
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the children are forked: no threads before

import numpy as np
import onnx
import onnxruntime
from onnx.backend.test import loader

from repogen.blame import first_line
from repogen.desired import read_and_prove, served_by_default
from repogen.errors import RepogenError
from repogen.model import ServedModel
from repogen.render import render

_FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")
_SECONDS = 120
DataSet = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """One model of the suite with its data: inputs and expected outputs in the graph's order."""

    name: str
    test: Any = field(repr=False)

    def write(self, folder: Path) -> Path:
        """Write the model and return its path."""
        if self.test.model_dir is not None:
            return Path(self.test.model_dir) / "model.onnx"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "model.onnx"
        path.write_bytes(self.test.model.SerializeToString())
        return path

    def data(self) -> list[DataSet]:
        if self.test.model_dir is None:
            return [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in self.test.data_sets]
        folders = sorted(Path(self.test.model_dir).glob("test_data_set_*"))
        return [(_protos(folder, "input"), _protos(folder, "output")) for folder in folders]


@dataclass(frozen=True)
class Analysed:
    """What was found of a case before it is served; `model` is None where it is not to be."""

    case: Case
    result: str
    reason: str
    ort_right: bool
    model: ServedModel | None


@lru_cache
def suite() -> list[Case]:
    """Return the whole suite in a fixed order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = loader.load_model_tests(kind="node")
        for folder in _FOLDERS:
            tests += loader.load_model_tests(kind=folder)
    return sorted((Case(f"{test.kind}.{test.name}", test) for test in tests), key=lambda case: case.name)


def _arrays(items: Sequence[Any]) -> list[Any]:
    """Return the tensors among the data as arrays: some cases have them as protobuf."""
    return [onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item for item in items]


def _protos(folder: Path, part: str) -> list[Any]:
    files = sorted(folder.glob(f"{part}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    arrays = []
    for file in files:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        arrays.append(onnx.numpy_helper.to_array(tensor))
    return arrays


def analysed(case: Case, folder: Path) -> Analysed:
    """Read, prove and render one model as the command line does; ONNX Runtime is asked in a child that may die."""
    path = case.write(folder)
    problem = _in_a_child(case, path)
    found = Analysed(case, "refused", problem, ort_right=not problem, model=None)
    try:
        graph, proof, files = read_and_prove(path)
        model = served_by_default(path, graph, proof, files)
        render(model)
    except RepogenError as error:
        return replace(found, reason=error.message)
    return found if problem else replace(found, model=model)


def _in_a_child(case: Case, path: Path) -> str:
    """Return `ort_problem`, or how the child that looked for it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_SECONDS)
        with os.fdopen(write, "w") as pipe:
            pipe.write(ort_problem(case, path))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        problem = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
        return f"ONNX Runtime ended with {how}"
    return problem


def ort_problem(case: Case, path: Path) -> str:
    """Say why ONNX Runtime by itself does not give the suite's answers, "" where it does."""
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"ONNX Runtime does not open it: {first_line(error)}"
    names = [argument.name for argument in session.get_inputs()]
    for inputs, expected in case.data():
        if len(inputs) != len(names) or not all(
            isinstance(item, np.ndarray | np.generic) for item in (*inputs, *expected)
        ):
            return "its data are not one tensor for each input and output"
        try:
            got = session.run(None, {name: _as_ort(item) for name, item in zip(names, inputs, strict=True)})
        except Exception as error:
            return f"ONNX Runtime does not run it: {first_line(error)}"
        for name, have, want in zip((output.name for output in session.get_outputs()), got, expected, strict=True):
            if problem := unlike(have, want, case):
                return f"ONNX Runtime itself answers otherwise: output '{name}' {problem}"
    return ""


def _as_ort(item: Any) -> Any:
    array = np.asarray(item)
    if array.dtype.kind in "SU":
        return array.astype(object)
    return array


def unlike(have: Any, want: Any, case: Case) -> str:
    """Say how an answer differs from the expected one beyond the suite's own tolerances, "" where it does not."""
    want = np.asarray(want)
    have = np.asarray(have)
    if want.dtype.kind in "OSU" or have.dtype.kind == "O":
        same = have.shape == want.shape and _texts(have) == _texts(want)
        return "" if same else "has other strings"
    if have.dtype != want.dtype:
        return f"is {have.dtype}, not {want.dtype}"
    if have.shape != want.shape:
        return f"has the shape {list(have.shape)}, not {list(want.shape)}"
    try:
        if want.dtype.kind in "fc":
            np.testing.assert_allclose(have, want, rtol=case.test.rtol, atol=case.test.atol)
        else:
            np.testing.assert_array_equal(have, want)
    except AssertionError as error:
        return next((line for line in str(error).splitlines() if "Mismatched" in line), "has other values")
    return ""


def _texts(array: Any) -> Sequence[str]:
    return [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
