"""Kill a publishing process from outside at every system call that matters, and let every such call fail.

    python benchmarks/crash_matrix.py [--every N] [--json]

A process that is about to publish stops itself; strace attaches, lets it run, and at the K-th call of one kind
sends SIGKILL or answers with an error (`inject=CALL:signal=KILL:when=K`). Then each model's folder must be byte
for byte the old or the new one, nothing but models may stand in the root, and the next run must end well with
nothing left over. Prints kill_points, torn, unrecovered, faults_injected, faults_mishandled.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repogen.errors import RepogenError
from repogen.files import model_file
from repogen.generations import all_kept, history, state_folder
from repogen.lock import writer
from repogen.model import DynamicBatching, Instances, ServedModel, ServedTensor
from repogen.plan import make_plan
from repogen.publish import publish
from repogen.repository import read_repository
from repogen.rolling_back import roll_back, steps_back
from repogen.staging import needs_recovery, recover

CALLS = (
    *("openat", "mkdir", "write", "pwrite64", "fsync", "rename", "renameat2", "unlink", "unlinkat", "rmdir"),
    *("fchmod", "chmod", "ftruncate", "flock"),
)
FAULTY = ("openat", "mkdir", "write", "pwrite64", "fsync", "rename", "renameat2", "fchmod", "ftruncate")
MUST_FAIL = ("write", "fsync", "rename", "renameat2")  # an error of these may never end as a success
ERRORS = ("ENOSPC", "EIO", "EACCES", "EXDEV")
REFUSED = 2

Models = tuple[ServedModel, ...]
Tree = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A kind of change: the repository before (a folder to copy), and what is to be done to it."""

    name: str
    before: Path
    wanted: Models = ()
    back: bool = False  # a rollback instead of a sync

    def act(self, root: Path) -> None:
        with writer(state_folder(root)):
            recover(root)
            if self.back:
                target, steps = steps_back(root, 1)
                if steps:
                    roll_back(root, target, steps)
            else:
                publish(make_plan(self.wanted, read_repository(root), root, prune=True))


@dataclass
class Findings:
    kill_points: int = 0
    torn: int = 0
    unrecovered: int = 0
    faults_injected: int = 0
    faults_mishandled: int = 0
    problems: list[str] = field(default_factory=list)


def served(folder: Path, name: str, content: bytes, **changes: object) -> ServedModel:
    source = folder / f"{name}-{len(content)}.py"
    source.write_bytes(content)
    tensor = ServedTensor("x", "TYPE_FP32", (-1,), labels=("x.1",))
    model = ServedModel(
        name=name,
        backend="python",
        source=source.name,
        max_batch_size=4,
        inputs=(tensor,),
        outputs=(replace(tensor, name="y"),),
        instances=(Instances("cpu", 1),),
        dynamic_batching=DynamicBatching(),
        files=(model_file("model.py", source),),
    )
    return replace(model, **changes)  # type: ignore[arg-type]


def cases(scratch: Path) -> Iterator[Case]:
    """Yield the kinds of change, each with the repository that it begins from."""
    sources = scratch / "sources"
    sources.mkdir()
    one, other = served(sources, "one", b"# 1\n"), served(sources, "other", b"# a\n")
    newer = served(sources, "one", b"# 1 again\n")
    tuned = replace(one, dynamic_batching=DynamicBatching(max_queue_delay=500))
    second = replace(newer, version=2)
    yield Case("create", _before(scratch, "create", [(other,)]), (one, other))
    yield Case("rewrite", _before(scratch, "rewrite", [(one, other)]), (newer, other))
    yield Case("config", _before(scratch, "config", [(one, other)]), (tuned, other))
    yield Case("version", _before(scratch, "version", [(one, other), (tuned, other)]), (second, other))
    yield Case("remove", _before(scratch, "remove", [(one, other)]), (other,))
    yield Case("several", _before(scratch, "several", [(one, other)]), (newer, served(sources, "third", b"# 3\n")))
    yield Case("rollback", _before(scratch, "rollback", [(one, other), (newer, other)]), back=True)


def _before(scratch: Path, name: str, states: Sequence[Models]) -> Path:
    folder = scratch / "before" / name
    root = folder / "models"
    for models in states:
        publish(make_plan(models, read_repository(root), root))
    return folder


def tree(folder: Path) -> Tree:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def trees(root: Path) -> dict[str, Tree]:
    return {entry.name: tree(entry) for entry in sorted(root.iterdir())}


def fresh(case: Case, scratch: Path) -> Path:
    work = scratch / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(case.before, work)
    return work / "models"


def stopped(act: Callable[[], None]) -> int:
    """Return the process id of a child that does `act` once it is let go on."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.kill(os.getpid(), signal.SIGSTOP)
            act()
            code = 0
        except RepogenError:
            code = REFUSED
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def traced(act: Callable[[], None], scratch: Path, inject: str = "") -> tuple[int, str]:
    """Return how a child under strace ended (-9 where it was killed), and what strace wrote."""
    pid = stopped(act)
    log = scratch / "strace.log"
    log.unlink(missing_ok=True)
    options = ["-e", f"inject={inject}"] if inject else []
    command = ["strace", "-f", "-y", "-o", str(log), "-e", f"trace={','.join(CALLS)}", *options, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        assert "attached" in said, said
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        tracer.wait(10)
    return os.waitstatus_to_exitcode(status), log.read_text()


def counted(log: str) -> Counter[str]:
    """Return how often each call was made, the one that stopped the child left out."""
    names = [line.split()[1].partition("(")[0] for line in log.splitlines() if "(" in line]
    return Counter(name for name in names if name in CALLS)


def torn(root: Path, old: dict[str, Tree], new: dict[str, Tree]) -> str:
    """Return what is neither old nor new, "" where nothing is."""
    now = trees(root)
    for name in now.keys() | old.keys() | new.keys():
        if now.get(name) not in (old.get(name), new.get(name)):
            return f"{name} is neither the old nor the new one: {sorted(now.get(name, {}))}"
    return ""


def left_over(root: Path) -> list[str]:
    """Return what lies in the state folder and does not belong there."""
    state = state_folder(root)
    known = {*(state / "generations").glob("??????.json"), *(folder for _, _, folder in all_kept(state))}
    known |= {folder.parent for folder in known} | {state / "lock", state / "kept", state / "generations"}
    found = [path for path in state.rglob("*") if not any(path == one or folder_of(one, path) for one in known)]
    counts = Counter(name for name, _, _ in all_kept(state))
    return [str(path) for path in found] + [
        f"{name} is kept {count} times" for name, count in counts.items() if count > 1
    ]


def folder_of(kept: Path, path: Path) -> bool:
    return kept.parent.parent.name == "kept" and kept in path.parents


def unrecovered(case: Case, root: Path, new: dict[str, Tree]) -> str:
    """Let the next run do its work; return what is wrong after it, "" where nothing is."""
    try:
        case.act(root)
    except Exception as error:
        return f"the next run fails: {error!r}"
    if trees(root) != new:
        return "the next run does not finish the change"
    if needs_recovery(root) or (orphans := left_over(root)):
        return f"left over: {orphans}"
    if any(generation.state != "done" for generation in history(state_folder(root))):
        return "a generation is not closed"
    return ""


def kill(case: Case, call: str, number: int, scratch: Path, new: dict[str, Tree], found: Findings) -> None:
    root = fresh(case, scratch)
    old = trees(root)
    code, _ = traced(lambda: case.act(root), scratch, f"{call}:signal=KILL:when={number}")
    found.kill_points += 1
    where = f"{case.name}: killed at {call} {number}"
    if code != -signal.SIGKILL:
        found.problems.append(f"{where}: it ended with {code}")
    if problem := torn(root, old, new):
        found.torn += 1
        found.problems.append(f"{where}: {problem}")
    if problem := unrecovered(case, root, new):
        found.unrecovered += 1
        found.problems.append(f"{where}: {problem}")


def fail(case: Case, call: str, number: int, error: str, scratch: Path, new: dict[str, Tree], found: Findings) -> None:
    root = fresh(case, scratch)
    old = trees(root)
    code, log = traced(lambda: case.act(root), scratch, f"{call}:error={error}:when={number}")
    found.faults_injected += 1
    problem = torn(root, old, new)
    if code not in (0, REFUSED):
        problem = problem or f"it ended with {code}"
    if code == 0 and call in MUST_FAIL and "(INJECTED)" in log:
        problem = problem or "it took the error for a success"
    problem = problem or unrecovered(case, root, new)
    if problem:
        found.faults_mishandled += 1
        found.problems.append(f"{case.name}: {error} at {call} {number}: {problem}")


def run(scratch: Path, *, every: int = 1, offset: int = 0, note: Callable[[str], None] = lambda _: None) -> Findings:
    """Go through the whole matrix, or through each `every`-th point of it."""
    found = Findings()
    place = offset
    for case in cases(scratch):
        case.act(fresh(case, scratch))  # so that renderings are remembered, then and in every run after it
        root = fresh(case, scratch)
        code, log = traced(lambda case=case, root=root: case.act(root), scratch)  # type: ignore[misc]
        assert code == 0, log
        new = trees(root)
        calls = counted(log)
        points = [(call, number, "") for call in CALLS for number in range(1, calls[call] + 1)]
        points += [(call, number, error) for call in FAULTY for number in range(1, calls[call] + 1) for error in ERRORS]
        for call, number, error in points:
            place += 1
            if place % every:
                continue
            if error:
                fail(case, call, number, error, scratch, new, found)
            else:
                kill(case, call, number, scratch, new, found)
        so_far = f"{found.kill_points} kills and {found.faults_injected} faults so far"
        note(f"{case.name}: {sum(calls.values())} calls; {so_far}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only each N-th point")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repogen-crash-") as scratch:
        os.environ.setdefault("REPOGEN_CACHE", f"{scratch}/cache")
        found = run(
            Path(scratch), every=options.every, offset=options.offset, note=lambda text: print(text, file=sys.stderr)
        )
    document = {**found.__dict__, "seconds": round(time.monotonic() - begun, 1)}
    print("\n".join([*found.problems, *(f"{key}: {value}" for key, value in document.items() if key != "problems")]))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
