"""Ask a question in a process of its own, with limits on memory and time: what it reads may be hostile or huge.

The child is `python -m repogen.child MODULE BYTES SECONDS`; it reads a JSON question on stdin, calls
`MODULE.answer(question)` and writes the answer with the most memory that it had.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from repogen.units import size_text

MEMORY = 4 * 2**30
"""Bytes that a child may address, unless told otherwise."""


class ChildFailed(Exception):  # noqa: N818 - said by the one who asked, in its own words
    """The child gave no answer; the message is a clause such as "it was ended by SIGSEGV"."""


def ask(module: str, question: Mapping[str, Any], *, memory: int = MEMORY, seconds: float = 120) -> dict[str, Any]:
    """Return `repogen.MODULE.answer(question)`, with `peak`, the most memory it had. Raises ChildFailed."""
    command = [sys.executable, "-m", "repogen.child", f"repogen.{module}", str(memory), str(int(seconds))]
    try:
        child = subprocess.run(
            command,
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
            # Two threads do for us, and an arena for each would eat the memory that it may address.
            env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"it did not finish within {seconds:.0f} s") from None
    if child.returncode == 0:
        answer: dict[str, Any] = json.loads(child.stdout)
        if "out_of_memory" not in answer:
            return answer
    raise ChildFailed(_how_it_ended(child, memory, seconds))


def _how_it_ended(child: "subprocess.CompletedProcess[bytes]", memory: int, seconds: float) -> str:
    said = child.stderr.decode(errors="replace")
    if child.returncode == 0 or "MemoryError" in said or "bad_alloc" in said:
        return f"it needs more than {size_text(memory)} of memory"
    if child.returncode == -signal.SIGXCPU:
        return f"it did not finish within {2 * seconds:.0f} s of computing"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
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


def main() -> None:
    module, memory, seconds = sys.argv[1:]
    limit(int(memory), int(seconds))
    question = json.load(sys.stdin)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is not the answer
    try:
        answer = dict(import_module(module).answer(question))
    except MemoryError:
        answer = {"out_of_memory": True}
    json.dump(answer | {"peak": peak_memory()}, answers)


if __name__ == "__main__":
    main()
