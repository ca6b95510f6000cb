"""What a request costs the client, and how late it leaves: `python benchmarks/loadgen.py [--json FILE]`.

An identity model on the embedded Triton. Rows: `locust -f loadtests/locustfile.py --headless` (what users run), the
bare generator, gRPC's C core driven with the least of Python, a Locust user with tritonclient, a gevent user that sends
ready-made bytes, and perf_analyzer where it is on the PATH. CPU is that of all processes of a client, taken from /proc
over the middle of its run; latencies of the open loop count from the instant at which a request was due.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from repogen import server
from repogen.load import samples
from repogen.load.process import environment
from repogen.load.spec import Spec

ROOT = Path(__file__).parents[1]
RAW = "samples"
TICK = os.sysconf("SC_CLK_TCK")
CONFIG = """
name: "identity" backend: "python" max_batch_size: 32
input [{ name: "x" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ kind: KIND_CPU count: 1 }]
dynamic_batching { }
"""
MODEL = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", array)]) for array in arrays]
"""
# The comparison clients are Locust files of their own, as people write them: each writes its instants at the end.
USERS = '''
import json, os, sys, time
import gevent, grpc, grpc.experimental.gevent, numpy as np
grpc.experimental.gevent.init_gevent()
import tritonclient.grpc as tc
from locust import User, constant, events, task
from repogen.triton import INFER, encode
URL, OUT = os.environ["BENCH_URL"], os.environ["BENCH_OUT"]
ROWS = []  # due, sent, done
ARRAY = np.zeros((1, 16), np.float32)

def ask_tritonclient(client):
    tensor = tc.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(ARRAY)
    client.infer("identity", [tensor])

class Base(User):
    abstract = True
    wait_time = constant(0)
    def timed(self, due, call):
        sent = time.perf_counter_ns()
        call()
        done = time.perf_counter_ns()
        ROWS.append((due or sent, sent, done))
        events.request.fire(request_type="grpc", name="identity", response_time=(done - sent) / 1e6,
                            response_length=0, exception=None, context={})

class Tritonclient(Base):
    def on_start(self): self.client = tc.InferenceServerClient(URL)
    @task
    def ask(self): self.timed(0, lambda: ask_tritonclient(self.client))

class Raw(Base):
    """One user that spawns a greenlet for each request of a schedule: an open loop as gevent keeps it."""
    def on_start(self):
        self.call = grpc.insecure_channel(URL).unary_unary(INFER)
        self.bytes = encode("identity", {"x": ARRAY})
        self.call(self.bytes)
    @task
    def ask(self):
        rate = float(os.environ["BENCH_RATE"])
        start = time.perf_counter_ns()
        for number in range(int(rate * 3600)):
            due = start + int(number * 1e9 / rate)
            left = (due - time.perf_counter_ns()) / 1e9
            if left > 0: gevent.sleep(left)
            gevent.spawn(self.timed, due, lambda: self.call(self.bytes))

@events.test_stop.add_listener
def _(**_): np.save(OUT, np.array(ROWS, dtype=np.int64))
'''

# The least that gRPC's own client can cost from Python: its C core's queue, ready-made bytes, one instant an answer.
FLOOR = """
import os, sys, time
import grpc, numpy as np
from grpc._cython import cygrpc as c
from repogen.triton import INFER, encode
url, out, users, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
body = encode("identity", {"x": np.zeros((1, 16), np.float32)})
channel = grpc.insecure_channel(url, [("grpc.use_local_subchannel_pool", 1)])
grpc.channel_ready_future(channel).result(10)
core, context, done = channel._channel, c.build_census_context(), []
flags, method = c.PropagationConstants.GRPC_PROPAGATE_DEFAULTS, INFER.encode()
close, end = c.SendCloseFromClientOperation(0), time.time() + seconds
def start():
    operations = (
        c.SendInitialMetadataOperation(None, 0), c.SendMessageOperation(body, 0), close,
        c.ReceiveInitialMetadataOperation(0), c.ReceiveMessageOperation(0), c.ReceiveStatusOnClientOperation(0),
    )
    core.integrated_call(flags, method, None, end + 30, None, None, ((operations, 1),), context, None)
for _ in range(users): start()
while time.time() < end:
    core.next_call_event()
    done.append(time.perf_counter_ns())
    start()
np.save(out, np.array([done] * 3, dtype=np.int64))
os._exit(0)
"""


@contextmanager
def triton() -> Iterator[server.Embedded]:
    with tempfile.TemporaryDirectory() as name:
        version = Path(name) / "models" / "identity" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(MODEL)
        with server.start(version.parents[1]) as running:
            yield running


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for one in found:
        path = Path(f"/proc/{one}/task/{one}/children")
        found += [int(child) for child in path.read_text().split()] if path.exists() else []
    return found


def cpu_seconds(pid: int) -> float:
    total = 0.0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


def sampled(process: subprocess.Popen[bytes], ready: Callable[[], bool], seconds: float) -> tuple[int, int, float]:
    """Wait until it sends, then take its CPU over `seconds`: from and to (ns), and how much."""
    limit = time.monotonic() + 60
    while not ready():
        if process.poll() is not None or time.monotonic() > limit:
            raise SystemExit(f"a client did not start: {process.args}")
        time.sleep(0.05)
    time.sleep(1.0)
    begin, before = time.perf_counter_ns(), cpu_seconds(process.pid)
    time.sleep(seconds)
    end, after = time.perf_counter_ns(), cpu_seconds(process.pid)
    return begin, end, after - before


def locust(url: str, folder: Path, seconds: float, *options: str) -> tuple[np.ndarray, tuple[int, int, float]]:
    """Run ours through Locust; return due, sent and done of every answered request, and its CPU."""
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtests/locustfile.py"), "--headless"]
    command += ["--only-summary", "--host", url, "--model", "identity", "--samples", str(folder), *options]
    command += ["--warm-up", "1", "--duration", str(seconds + 3)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = sampled(process, lambda: any(path.stat().st_size > 5000 for path in folder.glob("*.rows")), seconds)
    process.wait(60)
    return columns(samples.load_all(folder)), used


def bare(url: str, folder: Path, seconds: float, **changes: object) -> tuple[np.ndarray, tuple[int, int, float]]:
    """Run the generator alone."""
    spec = Spec(url=url, model="identity", folder=str(folder), name="bare", duration=seconds + 3, **changes)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "repogen.load.generator", spec.to_json()]
    process = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    used = sampled(process, lambda: spec.log.exists() and spec.log.stat().st_size > 5000, seconds)
    process.wait(60)
    return columns([samples.load(spec.path)]), used


def floor(url: str, folder: Path, seconds: float, users: int) -> tuple[np.ndarray, tuple[int, int, float]]:
    """Run gRPC's C core with nothing around it."""
    out = folder / "floor.npy"
    command = [sys.executable, "-c", FLOOR, url, str(out), str(users), str(seconds + 5)]
    process = subprocess.Popen(command, env=environment())
    begun = time.monotonic()
    used = sampled(process, lambda: time.monotonic() - begun > 2, seconds)
    process.wait(60)
    return np.load(out), used


def columns(parts: list[samples.Samples] | tuple[samples.Samples, ...]) -> np.ndarray:
    rows = [np.stack([p.intended, p.sent, p.done])[:, p.measured & (p.status == 0)] for p in parts]
    return np.concatenate(rows, axis=1)


def other(
    user: str, url: str, folder: Path, seconds: float, users: int, rate: float = 0
) -> tuple[np.ndarray, tuple[int, int, float]]:
    """Run one of the comparison users under Locust."""
    (folder / "users.py").write_text(USERS)
    out = folder / f"{user}.npy"
    told = {"BENCH_URL": url, "BENCH_OUT": str(out), "BENCH_RATE": str(rate)}
    command = [sys.executable, "-m", "locust", "-f", "users.py", user, "--headless", "--only-summary"]
    command += ["-u", str(users), "-r", str(users), "--host", url, "--run-time", str(round(seconds + 8))]
    process = subprocess.Popen(
        command, env=environment() | told, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    begun = time.monotonic()
    used = sampled(process, lambda: time.monotonic() - begun > 4, seconds)
    try:
        limit = time.monotonic() + 60
        while not out.exists() and time.monotonic() < limit:
            time.sleep(0.1)
        time.sleep(0.5)
    finally:
        process.kill()  # gRPC under gevent may hang when its process ends
        process.wait()
    return np.load(out).T, used


def cost(name: str, concurrency: int, taken: tuple[np.ndarray, tuple[int, int, float]]) -> dict[str, object]:
    rows, (begin, end, cpu) = taken
    count = int(((rows[2] >= begin) & (rows[2] < end)).sum())
    rps = count / ((end - begin) / 1e9)
    return {
        "name": name,
        "concurrency": concurrency,
        "rps": round(rps, 1),
        "cpu_us_per_request": round(cpu / count * 1e6, 1),
        RAW: {"requests": count, "seconds": (end - begin) / 1e9, "cpu_seconds": cpu},
    }


def timing(name: str, rate: float, taken: tuple[np.ndarray, tuple[int, int, float]]) -> dict[str, object]:
    rows, (begin, end, _) = taken
    due, sent, done = rows[:, (rows[0] >= begin) & (rows[0] < end)] / 1e3
    late, latency = sent - due, done - due
    return {
        "name": name,
        "rate": rate,
        "lateness_p99_us": round(float(np.percentile(late, 99)), 1),
        "p50_us": round(float(np.percentile(latency, 50)), 1),
        "p99_us": round(float(np.percentile(latency, 99)), 1),
        RAW: {"lateness_us": np.round(late, 1).tolist(), "latency_us": np.round(latency, 1).tolist()},
    }


def perf_analyzer(url: str, concurrency: int) -> list[dict[str, object]]:
    program = shutil.which("perf_analyzer")
    if program is None:
        return []
    with tempfile.TemporaryDirectory() as name:
        csv = Path(name) / "pa.csv"
        command = [
            program,
            "-m",
            "identity",
            "-u",
            url,
            "-i",
            "grpc",
            "--async",
            "--concurrency-range",
            str(concurrency),
        ]
        done = subprocess.run([*command, "-f", str(csv), "-s", "50"], capture_output=True, check=False)
        if done.returncode or not csv.exists():
            return []
        rps = float(csv.read_text().splitlines()[1].split(",")[1])
    return [{"name": "perf_analyzer --async", "concurrency": concurrency, "rps": rps, "cpu_us_per_request": None}]


def measure(seconds: float, concurrency: int) -> dict[str, list[dict[str, object]]]:
    clients, timings = [], []
    with triton() as running:
        url = running.grpc

        def fresh() -> Path:
            return Path(tempfile.mkdtemp(dir=scratch))

        with tempfile.TemporaryDirectory() as scratch:
            users = ("-u", str(concurrency), "-r", str(concurrency))
            clients.append(cost("repogen through Locust", concurrency, locust(url, fresh(), seconds, *users)))
            clients.append(
                cost("repogen's generator alone", concurrency, bare(url, fresh(), seconds, users=concurrency))
            )
            clients.append(
                cost("gRPC's C core, and nothing else", concurrency, floor(url, fresh(), seconds, concurrency))
            )
            clients.append(
                cost("Locust with tritonclient", concurrency, other("Tritonclient", url, fresh(), seconds, concurrency))
            )
            clients += perf_analyzer(url, concurrency)
            for rate in (200, 2000):
                paced = ("-u", "1", "--rate", str(rate), "--arrivals", "constant")
                timings.append(timing("repogen through Locust", rate, locust(url, fresh(), seconds, *paced)))
                alone = bare(url, fresh(), seconds, arrivals="constant", rate=float(rate))
                timings.append(timing("repogen's generator alone", rate, alone))
            timings.append(timing("gevent Locust user", 200, other("Raw", url, fresh(), seconds, 1, 200)))
    return {"clients": clients, "open_loop": timings}


def medians(runs: list[dict[str, list[dict[str, object]]]]) -> dict[str, list[dict[str, object]]]:
    """Return the median of each figure over the repetitions."""
    folded: dict[str, list[dict[str, object]]] = {}
    for part in runs[0]:
        folded[part] = []
        for rows in zip(*(run[part] for run in runs), strict=True):
            row = {key: value for key, value in rows[0].items() if key != RAW}
            for key, value in rows[0].items():
                if isinstance(value, float):
                    row[key] = statistics.median(one[key] for one in rows)
            folded[part].append(row)
    return folded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each client that are measured")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=1, help="medians of so many runs")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    runs = [measure(options.seconds, options.concurrency) for _ in range(options.repeat)]
    found = medians(runs)
    print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    for rows in found.values():
        print("  ".join(rows[0]))
        for row in rows:
            print("  ".join(str(value) for value in row.values()))
    if options.json:
        options.json.write_text(json.dumps({**found, "load_average": before, "runs": runs}))


if __name__ == "__main__":
    main()
