"""Serve models of the suite with the real embedded Triton, many at a time, and compare their answers."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from suite_cases import Analysed, unlike

from repogen import server
from repogen.embedded import embed
from repogen.errors import ServerError
from repogen.model import Instances, ServedTensor
from repogen.publish import write_model
from repogen.render import render
from repogen.triton import Client, Rejected

Result = tuple[str, str, str]
"""The case, `served`, `refused`, `wrong` or `crashed`, and why."""
_DEAD = ("unhealthy", "Stub process", "stub process")


def served(group: Sequence[Analysed], scratch: Path) -> Iterator[Result]:
    """Serve a group and give what became of each; what brings a server down is found by halving the group."""
    left = list(group)
    done: dict[str, Result] = {}
    try:
        for found in _served_together(left, scratch):
            done[found[0]] = found
            yield found
    except ServerError as error:
        left = [member for member in left if member.case.name not in done]
        if len(left) == 1:
            crashed = "ended with status" in error.message
            yield left[0].case.name, "crashed" if crashed else "refused", f"the server: {error.message}"[:400]
            return
        print(f"again in halves: {error.message[:200]}", file=sys.stderr)
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            yield from served(half, scratch)


def _served_together(group: Sequence[Analysed], scratch: Path) -> Iterator[Result]:
    repository = scratch / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    repository.mkdir()
    members = {}
    for index, member in enumerate(group):
        assert member.model is not None
        model = replace(embed(member.model, cpus=1), name=f"m{index}", instances=(Instances("cpu", 1),))
        write_model(model, render(model), repository / model.name)
        members[model.name] = member
    with server.start(repository, timeout=600) as triton, Client(triton.grpc, deadline=60) as client:
        for name, member in members.items():
            result, reason = _compared(name, member, client)
            if triton.poll() is not None:
                result, reason = "crashed", f"the server ended with status {triton.poll()}: {reason}"
            yield member.case.name, result, reason
            if triton.poll() is not None:
                raise ServerError("the server died under a request")


def _compared(name: str, member: Analysed, client: Client) -> tuple[str, str]:
    assert member.model is not None
    outputs = member.model.outputs
    for inputs, expected in member.case.data():
        feed = {
            tensor.name: _request(tensor, np.asarray(item))
            for tensor, item in zip(member.model.inputs, inputs, strict=True)
        }
        try:
            answers = client.infer(name, feed, [tensor.name for tensor in outputs])
        except Rejected as error:
            crashed = any(word in error.message for word in _DEAD)
            return "crashed" if crashed else "wrong", f"the server: {error.message}"[:400]
        except ServerError as error:
            return "crashed", error.message[:400]
        for tensor, want in zip(outputs, expected, strict=True):
            if problem := unlike(_answer(tensor, answers[tensor.name], np.asarray(want)), want, member.case):
                return "wrong", f"output '{tensor.name}' {problem}"
    return "served", ""


def _request(tensor: ServedTensor, array: Any) -> Any:
    """Return an input as a request carries it: scalars as [1], [N] as [N,1]."""
    if array.dtype.kind in "US":
        array = array.astype(object)
    if tensor.scalar:
        return array.reshape(1)
    return array.reshape(*array.shape, 1) if tensor.reshape == () else array


def _answer(tensor: ServedTensor, array: Any, want: Any) -> Any:
    if tensor.scalar and want.ndim == 0:
        return array.reshape(())
    return array.reshape(array.shape[:1]) if tensor.reshape == () else array
