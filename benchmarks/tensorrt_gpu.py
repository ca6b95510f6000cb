"""Real TensorRT plans through repogen's own path against eager PyTorch, on one GPU: one table, raw samples kept.

    python benchmarks/tensorrt_gpu.py --work OUT --torch-python PYTHON --json results.json

Runs in the Python that has TensorRT and repogen; PYTHON is one with torch, transformers and torchvision. The stages
`make`, `build`, `warm`, `measure` and `serve` leave everything in --work, so that each may be a command of its own.
`--rehearse` tries all of it without a GPU: small models, TensorRT-RTX builds, ONNX Runtime in the plans' place.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
STAGES = ("make", "build", "warm", "measure", "serve")
BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "fp16", "int8")
FILES = {"bert": ("input_ids", "cls"), "resnet": ("images", "logits")}
RUNS = {1: 60, 8: 40, 32: 20}
SPREAD = 50
"""Classes over which the answers on the validation set must spread for top-1 agreement to mean anything."""


@dataclass
class Run:
    """One whole run: where it works, what it may take, what it has found."""

    work: Path
    torch_python: str
    rehearse: bool
    repetitions: int
    deadline: float
    precisions: tuple[str, ...]
    models: tuple[str, ...]
    found: dict = field(default_factory=dict)

    def runs(self, batch: int) -> int:
        return 2 if self.rehearse else RUNS[batch]

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def save(self) -> None:
        path = self.work / "found.json"
        path.with_suffix(".part").write_text(json.dumps(self.found, indent=1))
        path.with_suffix(".part").replace(path)

    def torch(self, *arguments: str) -> list[str]:
        small = ["--small"] if self.rehearse else []
        return [self.torch_python, str(HERE / "gpu_torch.py"), *arguments, "--work", str(self.work), *small]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def clean_environment() -> dict[str, str]:
    """The environment without what points this Python at its own libraries: another Python starts in it."""
    return {
        key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")
    }


def call(command: list[str], run: Run, **more: object) -> subprocess.CompletedProcess:
    return subprocess.run(command, check=True, timeout=max(run.left(), 1), text=True, **more)


# --- make ---------------------------------------------------------------------------------------------------------


def make(run: Run) -> None:
    done = call(
        run.torch("make", "--models", ",".join(run.models)), run, env=clean_environment(), stdout=subprocess.PIPE
    )
    facts = json.loads(done.stdout.splitlines()[-1])
    say(f"models made: {facts}")
    run.found["made"] = facts


# --- build --------------------------------------------------------------------------------------------------------


def manifest(run: Run, without: tuple[str, ...] = ()) -> Path:
    """Write the manifest of every plan; the profile of fp16 BERT is in two parts, each best at one end."""
    target = "tensorrt: rtx" if run.rehearse else f'tensorrt: "{tensorrt_version()}"'
    lines = ['triton: "24.01"', target, "repository: repository", "defaults:", "  backend: tensorrt",
             "  max_batch_size: 32", "  workspace: 8GiB", "  optimization: {cuda_graphs: true}",
             "  instances: [{kind: gpu, count: 2}]", "models:"]  # fmt: skip
    for name in (name for name in names(run) if name not in without):
        source, precision = name.split("_")
        lines += [f"  {name}:", f"    source: {source}.onnx", f"    precision: {precision}"]
        if precision == "int8":
            lines.append(f"    calibration: {{data: {source}.calib.npz}}")
        if source == "bert":
            lines += ["    inputs:", "      input_ids: {range: [0, 30522]}", "      attention_mask: {values: [1]}"]
        if name == "bert_fp16":
            lines += ["    profiles:", "      - {batch: {min: 1, opt: 1, max: 8}}",
                      "      - {batch: {min: 1, opt: 32, max: 32}}"]  # fmt: skip
    path = run.work / "repogen.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def names(run: Run) -> list[str]:
    return [f"{name}_{precision}" for precision in run.precisions for name in run.models]


def tensorrt_version() -> str:
    from importlib import metadata

    return metadata.version("tensorrt")


def environment(run: Run, cache: str = "cache") -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    more = {"REPOGEN_PUBLISH_RTX": "1"} if run.rehearse else {}
    return {**os.environ, "PYTHONPATH": path, "REPOGEN_CACHE": str(run.work / cache), **more}


def build(run: Run) -> None:
    """Build each plan, publish them by `repogen sync`, see that a second one builds nothing, build with warm caches."""
    path = manifest(run)
    failed = {}
    for name in names(run):
        begin = time.monotonic()
        try:
            seconds = one(run, name, "cache")
        except subprocess.CalledProcessError as error:
            failed[name] = error.stderr[-3000:]
            say(f"{name} FAILED: {failed[name]}")
            continue
        say(f"{name}: built in {seconds:.1f} s, {time.monotonic() - begin:.1f} s with everything")
    run.found["failed"] = failed
    if len(failed) == len(names(run)):
        sys.exit("no plan was built")
    path = manifest(run, tuple(failed))
    sync = [sys.executable, "-m", "repogen", "sync", "-f", str(path), "-v"]
    spent = []
    before = entries(run)
    for _ in range(2):
        begin = time.monotonic()
        call(sync, run, env=environment(run), stdout=subprocess.DEVNULL)
        spent.append(time.monotonic() - begin)
    plans = entries(run)
    unchanged = {name: facts["built"] for name, facts in plans.items()} == {
        name: facts["built"] for name, facts in before.items()
    }
    say(f"sync {spent[0]:.1f} s, again {spent[1]:.1f} s, {'nothing built' if unchanged else 'BUILT AGAIN'}")
    run.found["sync"] = {"first_s": spent[0], "second_s": spent[1], "second_built_nothing": unchanged}
    run.found["plans"] = plans
    run.save()


_ONE = """
import json, sys
from pathlib import Path
from repogen.build_cache import find
from repogen.build_key import build_key
from repogen.builds import build_pending
from repogen.desired import chosen
from repogen.errors import RepogenError
try:
    model, = build_pending(chosen(Path(sys.argv[1]), sys.argv[2:])[1])
except RepogenError as error:
    sys.exit(f"{type(error).__name__}: {error}")
json.dump(find(build_key(model.build))[0].facts["seconds"], sys.stdout)
"""


def one(run: Run, name: str, cache: str) -> float:
    """Build the plan of one model, and return the seconds that TensorRT took."""
    command = [sys.executable, "-c", _ONE, str(run.work / "repogen.yaml"), name]
    done = call(command, run, env=environment(run, cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(done.stdout)


def entries(run: Run) -> dict[str, dict]:
    """Return what the build cache says of each model's plan, and where plan and graph lie."""
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom repogen.desired import desired_models\n"
        "from repogen.build_key import build_key\nfrom repogen.build_cache import find\nfound = {}\n"
        "for model in desired_models(Path(sys.argv[1])):\n"
        "    entry = find(build_key(model.build))[0]\n"
        "    if entry: found[model.name] = {'plan': str(entry.plan.source), 'size': entry.plan.size,"
        " 'graph': str(model.build.onnx[0].source), 'graph_size': sum(f.size for f in model.build.onnx),"
        " 'key': build_key(model.build), **{key: entry.facts[key] for key in"
        " ('seconds', 'version', 'gpu', 'built', 'workspace', 'warnings')}}\n"
        "json.dump(found, sys.stdout)\n"
    )
    command = [sys.executable, "-c", code, str(run.work / "repogen.yaml")]
    return json.loads(call(command, run, env=environment(run), stdout=subprocess.PIPE).stdout)


def warm(run: Run) -> None:
    """Build every plan once more, in a cache that knows the tactics' times and no plan."""
    cache = run.work / "warm"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    for name in ("timing", "graphs", "proofs", "lowered"):
        if (run.work / "cache" / name).is_dir():
            shutil.copytree(run.work / "cache" / name, cache / name)
    for name in names(run):
        if name in run.found["failed"] or run.left() < 90:
            say(f"{name} is not built with a warm timing cache")
            continue
        seconds = one(run, name, "warm")
        run.found.setdefault("warm_seconds", {})[name] = seconds
        say(f"{name} with the timing cache: {seconds:.1f} s")
    shutil.rmtree(cache, ignore_errors=True)


# --- measure ------------------------------------------------------------------------------------------------------


class Worker:
    """A process that holds one model and measures when it is asked."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._answer()

    def ask(self, op: str, **arguments: object) -> dict:
        self.child.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        while line := self.child.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"a worker ended with {self.child.wait()}: its output is above")

    def resident(self) -> float:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def gpu_memory() -> float:
    """MiB in use on the GPU, everybody's: a process's own is what it adds."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def commands(run: Run, name: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return how each engine of one model is started: eager PyTorch first."""
    torch = run.torch("worker", "--model", name)
    found = {"pytorch-fp32": (torch, clean_environment())}
    if not run.rehearse:
        found["pytorch-fp16"] = ([*torch, "--half"], clean_environment())
    plans = run.found["plans"]
    for precision in run.precisions:
        row = plans.get(f"{name}_{precision}")
        if row is None:
            continue
        data = ["--data", str(run.work / f"{name}.val.npz")]
        file = ["--file", row["graph"], "--rehearse"] if run.rehearse else ["--file", row["plan"]]
        command = [sys.executable, str(HERE / "gpu_plan.py"), *file, *data]
        found[f"plan-{precision}"] = ([*command, "--cuda-graphs"], environment(run))
        if precision == "fp16" and not run.rehearse:
            found["plan-fp16-no-graphs"] = (command, environment(run))
    return found


def measure(run: Run) -> None:
    for name in run.models:
        say(f"measuring {name}")
        with contextlib.ExitStack() as stack:
            workers, memory = {}, {}
            for engine, (command, env) in commands(run, name).items():
                before = 0.0 if run.rehearse else gpu_memory()
                worker = Worker(command, env)
                stack.callback(worker.close)
                for batch in BATCHES:
                    worker.ask("warm", batch=batch, runs=2 if run.rehearse else 20)
                    used = worker.resident() if run.rehearse else gpu_memory() - before
                    memory[engine, batch] = used
                workers[engine] = worker
            answers = {engine: agreement(run, name, engine, worker) for engine, worker in workers.items()}
            samples = interleaved(run, workers)
        rows = [
            row_of(run, name, engine, batch, samples[engine, batch], memory[engine, batch], answers[engine])
            for engine in workers
            for batch in BATCHES
        ]
        run.found.setdefault("rows", {})[name] = rows
        run.found.setdefault("samples", {})[name] = {f"{key[0]} {key[1]}": value for key, value in samples.items()}
        run.save()


def interleaved(run: Run, workers: dict[str, Worker]) -> dict:
    """Measure every engine in turn, as often as asked: what disturbs the machine disturbs all of them."""
    samples = {}
    for repetition in range(run.repetitions):
        if repetition and run.left() < 60:
            say(f"no time left for repetition {repetition + 1}")
            break
        for batch in BATCHES:
            for engine, worker in workers.items():
                row = samples.setdefault((engine, batch), {"latency_ms": [], "per_second": [], "with_copies_ms": []})
                row["latency_ms"].append(worker.ask("latency", batch=batch, runs=run.runs(batch))["samples_ms"])
                row["per_second"].append(worker.ask("throughput", batch=batch, runs=run.runs(batch))["per_second"])
                if engine.startswith("plan"):
                    copied = worker.ask("latency", batch=batch, runs=run.runs(batch), copies=True)
                    row["with_copies_ms"].append(copied["samples_ms"])
        say(f"repetition {repetition + 1} of {run.repetitions}")
    return samples


def agreement(run: Run, name: str, engine: str, worker: Worker) -> dict:
    """Compare an engine's answers on the whole validation set with eager fp32 PyTorch's."""
    import numpy as np

    path = run.work / f"{name}.{engine}.answers.npz"
    worker.ask("answers", path=str(path))
    answer = np.load(path)["answer"].astype(np.float64)
    reference = np.load(run.work / f"{name}.reference.npz")[FILES[name][1]].astype(np.float64)
    away = np.linalg.norm(answer - reference, axis=1) / np.linalg.norm(reference, axis=1)
    cosine = (answer * reference).sum(1) / (np.linalg.norm(answer, axis=1) * np.linalg.norm(reference, axis=1))
    top = float((answer.argmax(1) == reference.argmax(1)).mean())
    classes = len(set(reference.argmax(1).tolist()))
    found = {
        "relative_l2_median": float(np.median(away)),
        "relative_l2_max": float(away.max()),
        "cosine_min": float(cosine.min()),
        "not_finite": int((~np.isfinite(answer)).sum()),
    }
    if name == "resnet":
        found |= {"top1": top, "classes": classes, "void": classes < SPREAD}
    found["agreement"] = top if name == "resnet" else float(cosine.mean())
    return found


def row_of(run: Run, name: str, engine: str, batch: int, samples: dict, memory: float, answers: dict) -> dict:
    latencies = [statistics.median(part) for part in samples["latency_ms"]]
    copies = [statistics.median(part) for part in samples["with_copies_ms"]]
    plan_name = f"{name}_{engine.removeprefix('plan-').removesuffix('-no-graphs')}"
    plan = run.found["plans"].get(plan_name, {})
    return {
        "model": name,
        "engine": engine,
        "batch": batch,
        "latency_ms": statistics.median(latencies),
        "throughput": statistics.median(samples["per_second"]),
        "gpu_memory_mb": memory,
        "agreement": answers["agreement"],
        "with_copies_ms": statistics.median(copies) if copies else None,
        "answers": answers,
        "file_mb": plan["size"] / 1e6 if engine.startswith("plan") else None,
        "build_s": plan["seconds"] if engine.startswith("plan") else None,
        "build_warm_s": run.found.get("warm_seconds", {}).get(plan_name) if engine.startswith("plan") else None,
    }


# --- serve --------------------------------------------------------------------------------------------------------


def serve(run: Run) -> None:
    """Load the embedded server, two instances of BERT's plan, and compare with the plan alone."""
    precision = "fp16" if "fp16" in run.precisions else run.precisions[0]
    model = f"bert_{precision}"
    answers = run.work / "load.json"
    # The rehearsal's stand-in is a graph with INT64 inputs: what a plan of TensorRT 8 takes as INT32.
    load = [sys.executable, str(HERE / "gpu_load.py"), "--model", model, "--json", str(answers)]
    load += ["--inputs", str(inputs_for(run)), "--reference", str(run.work / "bert.reference.npz")]
    if run.rehearse:
        load += ["--concurrency", "8", "--processes", "2", "--seconds", "2", "--tolerance", "0.2"]
    command = [sys.executable, "-m", "repogen", "serve", "-f", str(run.work / "repogen.yaml"), "-m", model, "--", *load]
    rounds = []
    for _ in range(1 if run.rehearse else 3):
        call(command, run, env=environment(run))
        rounds.append(json.loads(answers.read_text()))
    best = statistics.median(row["per_second"] for row in rounds)
    alone = next(
        (
            row["throughput"]
            for row in run.found["rows"]["bert"]
            if (row["engine"], row["batch"]) == (f"plan-{precision}", 32)
        ),
        None,
    )
    run.found["served"] = {"rounds": rounds, "per_second": best, "in_process": alone, "ratio": best / alone}
    say(f"embedded, two instances: {best:.0f}/s, {best / alone:.0%} of the plan alone")
    run.save()


def inputs_for(run: Run) -> Path:
    """Return the inputs as clients must send them."""
    if not run.rehearse:
        return run.work / "bert.val.npz"
    import numpy as np

    data = np.load(run.work / "bert.val.npz")
    path = run.work / "bert.val64.npz"
    np.savez(path, **{name: data[name].astype(np.int64) for name in data.files})
    return path


# --- report -------------------------------------------------------------------------------------------------------


def ratios(run: Run) -> dict[str, float]:
    """Return the figures that the goals speak of, from one run."""
    rows = {(r["model"], r["engine"], r["batch"]): r for part in run.found.get("rows", {}).values() for r in part}
    found = {}

    def ratio(name: str, field_name: str, over: tuple, under: tuple) -> None:
        if over in rows and under in rows and rows[under][field_name]:
            found[name] = rows[over][field_name] / rows[under][field_name]

    for model in run.models:
        eager = "pytorch-fp32"
        for batch in BATCHES:
            ratio(
                f"{model} fp16 latency / eager fp32, batch {batch}",
                "latency_ms",
                (model, "plan-fp16", batch),
                (model, eager, batch),
            )
        ratio(
            f"{model} fp16 throughput / eager fp32, batch 32",
            "throughput",
            (model, "plan-fp16", 32),
            (model, eager, 32),
        )
        ratio(
            f"{model} fp16 memory / eager fp32, batch 32", "gpu_memory_mb", (model, "plan-fp16", 32), (model, eager, 32)
        )
        ratio(
            f"{model} int8 throughput / fp16 plan, batch 32",
            "throughput",
            (model, "plan-int8", 32),
            (model, "plan-fp16", 32),
        )
        ratio(
            f"{model} int8 throughput / eager fp32, batch 32",
            "throughput",
            (model, "plan-int8", 32),
            (model, eager, 32),
        )
    if "served" in run.found:
        found["embedded, two instances / plan alone"] = run.found["served"]["ratio"]
    return found


def report(run: Run, path: Path | None) -> None:
    rows = [row for part in run.found.get("rows", {}).values() for row in part]
    columns = ("model", "engine", "batch", "latency_ms", "with_copies_ms", "throughput", "gpu_memory_mb", "file_mb",
               "build_s", "build_warm_s", "agreement")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n|" + "--|" * len(columns))
    for row in rows:
        print("| " + " | ".join(shown(row[column]) for column in columns) + " |")
    found = ratios(run)
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    void = [row["engine"] for row in rows if row["answers"].get("void")]
    if void:
        print(f"top-1 agreement is void: the answers spread over fewer than {SPREAD} classes")
    if path:
        document = {"machine": machine(run), "rows": rows, "ratios": found, "rehearsal": run.rehearse, **run.found}
        document["rows"] = rows
        path.write_text(json.dumps(document, indent=1))


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)


def machine(run: Run) -> dict[str, str]:
    from repogen.gpu import gpus

    gpu = gpus()[0] if gpus() else None
    versions = "import torch, transformers; print(torch.__version__, transformers.__version__)"
    torch = subprocess.run(
        [run.torch_python, "-c", versions], env=clean_environment(), capture_output=True, text=True, check=False
    )
    return {
        "gpu": gpu.name if gpu else "none",
        "driver": gpu.driver if gpu else "",
        "cpus": str(os.cpu_count()),
        "torch, transformers": torch.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--torch-python", default="python3")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--models", default="bert,resnet")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds for all stages of this call")
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    before = json.loads((work / "found.json").read_text()) if (work / "found.json").exists() else {}
    run = Run(work, asked.torch_python, asked.rehearse, asked.repetitions, time.monotonic() + asked.limit,
              tuple(asked.precisions.split(",")), tuple(asked.models.split(",")), before)  # fmt: skip
    for stage in asked.stages.split(","):
        begin = time.monotonic()
        {"make": make, "build": build, "warm": warm, "measure": measure, "serve": serve}[stage](run)
        run.found.setdefault("stage_seconds", {})[stage] = time.monotonic() - begin
        run.save()
        say(f"{stage}: {time.monotonic() - begin:.1f} s, {run.left():.0f} s left")
    report(run, asked.json)


if __name__ == "__main__":
    main()
