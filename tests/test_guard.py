"""Whatever ends, and however: nothing of a server stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repogen import guard, server
from tests.serverkit import add_double, add_model, left_over, needs_server, processes, wait_until

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", sys.argv[1]]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
time.sleep(60)
"""


class Guarded:
    """A guard over `command`, with the folder and the shared-memory file that it must remove."""

    def __init__(self, tmp_path: Path, command: list[str]) -> None:
        self.prefix = f"repogen-test-{os.getpid()}-{time.monotonic_ns()}"
        self.shm = Path("/dev/shm", f"{self.prefix}-region")
        self.shm.write_bytes(b"x")
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        self.log = tmp_path / "log"
        self.log.touch()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                guard.__file__,
                str(self.scratch),
                self.prefix,
                str(self.log),
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = int(self.process.stdout.readline())

    def gone(self) -> bool:
        left = [self.scratch.exists(), self.shm.exists(), bool(processes(self.prefix))]
        return self.process.poll() is not None and not any(left)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
        self.shm.unlink(missing_ok=True)


@pytest.fixture
def guarded(tmp_path):
    started = []

    def start(command):
        started.append(Guarded(tmp_path, command))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_the_pipe_closes(guarded):
    one = guarded(SLEEPER)
    one.process.stdin.close()
    wait_until(one.gone, 2)
    assert one.process.returncode == 128 + signal.SIGTERM
    assert not one.log.exists()


def test_asked_to_stop(guarded):
    one = guarded(SLEEPER)
    one.process.terminate()
    wait_until(one.gone, 2)
    assert one.log.exists()  # its owner reads it


def test_a_server_that_ends_by_itself(guarded):
    one = guarded([sys.executable, "-I", "-S", "-c", "raise SystemExit(7)"])
    wait_until(one.gone, 2)
    assert one.process.returncode == 7


def test_a_server_that_is_killed(guarded):
    one = guarded(SLEEPER)
    os.kill(one.pid, signal.SIGKILL)
    wait_until(one.gone, 2)
    assert one.process.returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_there(guarded):
    one = guarded(["/nowhere/tritonserver"])
    wait_until(one.gone, 2)
    assert one.process.returncode == 127


def test_a_stubborn_server_and_its_children(guarded):
    mark = f"stray-{time.monotonic_ns()}"
    one = guarded([sys.executable, "-I", "-S", "-c", STUBBORN, mark])
    wait_until(lambda: len([line for line in processes(mark).values() if "import os" not in line]) == 2, 5)
    one.process.stdin.close()
    assert wait_until(lambda: one.gone() and not processes(mark), 5) > guard.GRACE - 0.5


def test_the_guard_is_killed(guarded):
    one = guarded(SLEEPER)
    one.process.kill()
    one.process.wait()
    wait_until(lambda: not Path("/proc", str(one.pid)).exists() or is_zombie(one.pid), 2)
    guard.sweep(one.scratch, one.prefix)
    assert one.gone()


def is_zombie(pid: int) -> bool:
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"


OWNER = """
import sys, time
from pathlib import Path
from repogen import server
with server.start(Path(sys.argv[1])) as triton:
    print(triton.server_id, triton.pid, flush=True)
    time.sleep(60)
"""


def owner(repository: Path) -> subprocess.Popen:
    root = Path(guard.__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(repository)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def slow_model(repository: Path) -> None:
    folder = add_model(
        repository,
        "slow",
        "max_batch_size: 0\n"
        'input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]\n'
        'output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]\n',
    )
    (folder / "1").mkdir()
    (folder / "1" / "model.py").write_text("import time\ntime.sleep(60)\n")


class TestServer:
    pytestmark = needs_server

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
    def test_the_owner_ends(self, tmp_path, number):
        add_double(tmp_path)
        process = owner(tmp_path)
        try:
            server_id = process.stdout.readline().split()[0]
            assert any("stub" in line for line in left_over(server_id))
            process.send_signal(number)
            wait_until(lambda: not left_over(server_id), 5)
        finally:
            end(process)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
    def test_the_owner_ends_while_models_load(self, tmp_path, number):
        slow_model(tmp_path)
        process = owner(tmp_path)
        stub = f"stub {tmp_path}/slow"
        try:
            wait_until(lambda: bool(processes(stub)), 20)
            server_id = next(iter(processes(stub).values())).split()[2][: len("repogen-00000000")]
            process.send_signal(number)
            wait_until(lambda: not left_over(server_id), 5)
        finally:
            end(process)

    def test_the_server_is_killed_and_started_again(self, tmp_path):
        add_double(tmp_path)
        with server.start(tmp_path) as triton:
            os.kill(triton.pid, signal.SIGKILL)
            wait_until(lambda: triton.poll() is not None, 2)
            assert triton.poll() == 128 + signal.SIGKILL
            assert left_over(triton.server_id) == [str(triton.log)]
            ports = triton.ports
        assert left_over(triton.server_id) == []
        with server.start(tmp_path, ports=ports, models=["double"]) as again:
            assert again.ports == ports
            os.kill(again.guard.pid, signal.SIGKILL)
            # Nobody watches now: the server dies with its guard, and its stubs notice.
            wait_until(lambda: not processes(again.server_id), 5)
        assert left_over(again.server_id) == []
