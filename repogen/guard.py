"""Watch over one tritonserver, so that nothing of it is left behind however its owner ends.

Run as `python -I -S guard.py SCRATCH SHM_PREFIX LOG COMMAND...` in a session of its own: stdin is a pipe
whose write end only the owner holds, stdout tells the owner the server's pid, stderr is the server's log.
The standard library only: this file runs as a script, without repogen on the path.

The server is asked to stop on SIGTERM, or when the pipe closes: the owner is gone, by kill -9 perhaps.
Whatever survives it, or outlives a server that died by itself, is killed; SCRATCH and the shared-memory
files that start with SHM_PREFIX are removed. LOG is removed only when the owner is gone: nobody is left to
read it.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE = 3.5
"""Seconds that the server has to stop by itself."""
_KILL_WAIT = 1.5
_SHM = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_ASKED, _ORPHANED = "asked", "orphaned"


def main(scratch: str, shm_prefix: str, log: str, *command: str) -> int:
    """Run `command` until it ends or must end, clear up after it, and return its exit status."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # stubs whose server died become our children, not init's
    owner, wake = os.getppid(), _signals()
    server = _spawn(command)
    with contextlib.suppress(OSError):  # the owner may be gone already
        os.write(1, b"%d\n" % server)
    status = _watch(server, owner, wake)
    if isinstance(status, str):
        reason, status = status, _stop(server)
    else:
        reason = ""
    kill_session(os.getsid(0), strays=True)
    sweep(Path(scratch), shm_prefix)
    if reason == _ORPHANED:
        Path(log).unlink(missing_ok=True)
    return 128 - status if status < 0 else status


def sweep(scratch: Path, shm_prefix: str) -> None:
    """Remove the scratch folder and the shared-memory files of one server."""
    for entry in _SHM.glob(f"{shm_prefix}*"):
        entry.unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)


def kill_session(session: int, *, strays: bool = False) -> None:
    """Kill what runs in `session` until nothing is left, or a second has passed.

    `strays`: our children too, whatever their session. That is for the guard, which has adopted them.
    """
    me = os.getpid()
    deadline = time.monotonic() + _KILL_WAIT
    while time.monotonic() < deadline:
        left = [pid for pid, parent, of in _processes() if pid != me and (of == session or (strays and parent == me))]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if strays:
            _reap(0)
        time.sleep(0.02)


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield (pid, parent, session) of each process that is not just a zombie waiting for its parent."""
    me = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything: what follows the last bracket is well-formed.
                state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if state != "Z" or int(parent) == me:
                    yield int(entry.name), int(parent), int(session)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _signals() -> int:
    """Turn the signals that concern us into bytes on a pipe, whose read end is returned."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    return read


def _spawn(command: tuple[str, ...]) -> int:
    guard = os.getpid()
    # Blocked until the child has its default handlers: a SIGTERM that comes in between must not be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)  # noqa: S606 - a list, no shell
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    os._exit(127)


def _watch(server: int, owner: int, wake: int) -> int | str:
    """Return the server's exit status, or why it has to stop."""
    while True:
        ready, _, _ = select.select([0, wake], [], [], 0.5)
        signals = os.read(wake, 1024) if wake in ready else b""
        status = _reap(server)
        if status is not None:
            return status
        # A process forked from the owner may hold the pipe open after it: its pid tells too.
        if (0 in ready and not os.read(0, 1024)) or os.getppid() != owner:
            return _ORPHANED
        if signal.SIGTERM in signals:
            return _ASKED


def _stop(server: int) -> int:
    """Ask the server to stop, wait a little, kill it; return its exit status."""
    # It alone is asked: the stubs ignore SIGTERM and end when the server tells them.
    os.kill(server, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while (status := _reap(server)) is None:
        if time.monotonic() > deadline:
            os.kill(server, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)
    return status


def _reap(server: int) -> int | None:
    """Collect every child that has ended; return the server's exit status if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == server:
                found = os.waitstatus_to_exitcode(status)
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
