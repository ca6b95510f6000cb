"""Ask a question in a process of its own, with limits on memory and time: what it reads may be hostile or huge.

A nursery (`repogen.nursery`) that has imported what it takes forks the child; it calls `MODULE.answer(question)`
and writes the answer with the most memory that it had.
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from repogen.units import size_text

MEMORY = 4 * 2**30
"""Bytes that a child may address, unless told otherwise."""
UNBOUNDED = resource.RLIM_INFINITY
"""For a child that uses a GPU: CUDA reserves far more addresses than it uses memory."""
_OUT_OF_MEMORY = ("memoryerror", "bad_alloc", "failed to map segment", "cannot allocate memory")


class ChildFailed(Exception):
    """The child gave no answer; the message is a clause such as "it was ended by SIGSEGV"."""


def ask(module: str, question: Mapping[str, Any], *, memory: int = MEMORY, seconds: float = 120) -> dict[str, Any]:
    """Return `repogen.MODULE.answer(question)`, with `peak`, the most memory it had. Raises ChildFailed."""
    asked = {"module": f"repogen.{module}", "question": question, "memory": memory, "seconds": seconds}
    asked["folder"] = str(Path.cwd())
    said = _NURSERIES.said(json.dumps(asked))
    if said["status"] is None:
        raise ChildFailed(f"it did not finish within {seconds:.0f} s")
    if said["status"] == 0:
        answer: dict[str, Any] = json.loads(said["out"])
        if "out_of_memory" not in answer:
            return answer
    raise ChildFailed(_how_it_ended(said["status"], said["err"], memory, seconds))


class _Nurseries:
    """The processes that fork our children: one a question at a time, kept for the next; they end by themselves."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[str]] = []
        self._owner = os.getpid()

    def said(self, line: str) -> dict[str, Any]:
        """Return how the child ended and what it wrote. Raises ChildFailed where two nurseries end over it."""
        if self._owner != os.getpid():  # a fork of ours: the pipes are its parent's
            self.__init__()  # type: ignore[misc]
        left = len(self._idle) + 2  # each idle one may just have ended; a new one gets a second try
        for _ in range(left):
            nursery = self._taken()
            try:
                assert nursery.stdin is not None
                assert nursery.stdout is not None
                nursery.stdin.write(line + "\n")
                nursery.stdin.flush()
                if text := nursery.stdout.readline():
                    self._idle.append(nursery)
                    return dict(json.loads(text))
            except OSError:
                pass
            except BaseException:
                nursery.kill()
                raise
            _ended(nursery)
        raise ChildFailed("no process could be started for it")

    def _taken(self) -> "subprocess.Popen[str]":
        try:
            return self._idle.pop()
        except IndexError:
            return subprocess.Popen(
                [sys.executable, "-m", "repogen.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                # Two threads do for us, and an arena for each would eat the memory that a child may address.
                env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )

    def close(self) -> None:
        """End those that wait: nothing is left running."""
        if self._owner == os.getpid():
            for nursery in self._idle:
                _ended(nursery)
            self._idle.clear()


def _ended(nursery: "subprocess.Popen[str]") -> None:
    for pipe in (nursery.stdin, nursery.stdout):
        with suppress(OSError):
            if pipe:
                pipe.close()
    nursery.kill()
    nursery.wait()


_NURSERIES = _Nurseries()
atexit.register(_NURSERIES.close)


def _how_it_ended(code: int, said: str, memory: int, seconds: float) -> str:
    silent = code > 0 and not said.strip()  # not even enough for a traceback
    if code == 0 or silent or any(sign in said.lower() for sign in _OUT_OF_MEMORY):
        return (
            "it needs more memory than there is"
            if memory == UNBOUNDED
            else f"it needs more than {size_text(memory)} of memory"
        )
    if code == -signal.SIGXCPU:
        return f"it did not finish within {2 * seconds:.0f} s of computing"
    if code < 0:
        name = signal.Signals(-code).name
        why = {"SIGFPE": ": a whole number was divided by zero", "SIGKILL": ": the machine ran out of memory"}
        return f"it was ended by {name}{why.get(name, '')}"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "no reason given")
    return f"it ended with {last[:300]}"


def peak_memory() -> int:
    """Return the most memory in bytes that this process has had (getrusage would count its parent's before exec)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit(memory: int, seconds: int) -> None:
    """Bound what this process may take from now on."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer_within(module: str, question: Mapping[str, Any], memory: int, seconds: int) -> str:
    """Return the answer of `module` as JSON, with the most memory that this process had; for the child only."""
    limit(memory, seconds)
    try:
        answer = dict(import_module(module).answer(question))
    except MemoryError:
        answer = {"out_of_memory": True}
    return json.dumps(answer | {"peak": peak_memory()})
