"""A text pipeline on a real GPU: tokeniser, BERT-base as a TensorRT fp16 plan, mean over the tokens; one sentence in.

    python benchmarks/pipeline_gpu.py --work DIR --tokenizer examples/models/tokenizer.json --json results.json

Runs in the Python that has TensorRT, repogen, onnxruntime and tokenizers. The stages `make`, `build` and `serve` leave
everything in --work. BERT has the architecture and the sizes of bert-base-uncased with random weights; the graph is
the one of examples/pipelines/export_minilm.py, whose answers with real weights are those of sentence-transformers.
Clients: one that waits for its answer, and Poisson arrivals, each with the example's 200 sentences of 1 to 320 words.
`--rehearse` tries all of it without a GPU: a small BERT, a TensorRT-RTX build, ONNX Runtime in the plan's place.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from repogen.triton import Client

HERE = Path(__file__).resolve().parent
STEPS = HERE.parent / "examples" / "pipelines" / "steps"
STAGES = ("make", "build", "serve")
SENTENCES = ("example", "short")
"""The 200 sentences of examples/pipelines, and those of them with at most 32 tokens."""
SHORT = 32
GOAL_MS = 10.0
LONGEST = 256
VOCABULARY = 30522
BASE = {"layers": 12, "heads": 12, "width": 768, "wide": 3072}
SMALL = {"layers": 2, "heads": 2, "width": 64, "wide": 128}


@dataclass
class Run:
    """One whole run: where it works, what it may take, what it has found."""

    work: Path
    tokenizer: Path
    rehearse: bool
    seconds: float
    rates: tuple[float, ...]
    deadline: float
    found: dict = field(default_factory=dict)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def save(self) -> None:
        path = self.work / "found.json"
        path.with_suffix(".part").write_text(json.dumps(self.found))
        path.with_suffix(".part").replace(path)

    @property
    def sizes(self) -> dict[str, int]:
        return SMALL if self.rehearse else BASE


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def environment(run: Run) -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    more = {"REPOGEN_PUBLISH_RTX": "1"} if run.rehearse else {}
    return {**os.environ, "PYTHONPATH": path, "REPOGEN_CACHE": str(run.work / "cache"), **more}


def repogen(run: Run, verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "repogen", verb, "-f", str(run.work / "repogen.yaml"), *arguments]
    subprocess.run(command, check=True, timeout=max(run.left(), 1), env=environment(run))


# --- make ---------------------------------------------------------------------------------------------------------


def make(run: Run) -> None:
    """Write BERT's graph with INT32 inputs: TensorRT 8 has no INT64."""
    import onnx

    sys.path.insert(0, str(STEPS.parent))
    from export_minilm import bert

    made = bert(weights(**run.sizes), "bert-base", heads=run.sizes["heads"], whole=onnx.TensorProto.INT32)
    onnx.save(made, run.work / "bert.onnx")
    (run.work / "repogen.yaml").write_text(manifest(run))
    run.found["bert"] = {**run.sizes, "bytes": (run.work / "bert.onnx").stat().st_size}


def weights(layers: int, heads: int, width: int, wide: int) -> dict:
    """Return weights as a BERT is initialised: normal with a deviation of 0.02, biases 0, norms 1."""
    import numpy as np

    assert width % heads == 0
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    found = {}

    def dense(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = normal(rows, columns), np.zeros(rows, np.float32)

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = np.ones(width, np.float32), np.zeros(width, np.float32)

    for name, rows in (("word", VOCABULARY), ("token_type", 2), ("position", 512)):
        found[f"embeddings.{name}_embeddings.weight"] = normal(rows, width)
    norm("embeddings.LayerNorm")
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", width, width)
        dense(f"{layer}.attention.output.dense", width, width)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", wide, width)
        dense(f"{layer}.output.dense", width, wide)
        norm(f"{layer}.output.LayerNorm")
    return found


def manifest(run: Run) -> str:
    target = "rtx" if run.rehearse else f'"{tensorrt_version()}"'
    width = run.sizes["width"]
    return f"""\
triton: "24.01"
tensorrt: {target}
repository: repository
defaults: {{max_batch_size: 8, dynamic_batching: {{max_queue_delay: 0ms}}}}
models:
  pipeline:
    backend: ensemble
    inputs: {{text: {{}}}}
    outputs: {{embedding: {{}}}}
    steps:
      - {{model: tokenise, inputs: {{text: text}}, outputs: {{ids: ids, mask: mask, kinds: kinds}}}}
      - model: bert
        inputs: {{input_ids: ids, attention_mask: mask, token_type_ids: kinds}}
        outputs: {{last_hidden_state: hidden}}
      - {{model: pool, inputs: {{hidden: hidden, mask: mask}}, outputs: {{embedding: embedding}}}}
  tokenise:
    source: {HERE / "gpu_tokenise.py"}
    files: [{STEPS / "tokenise.py"}, {run.tokenizer}]
    requirements: [tokenizers, numpy]
    instances: [{{kind: cpu}}]
    inputs: {{text: {{dtype: STRING, dims: [1], values: [What is served is what was published.]}}}}
    outputs:
      ids: {{dtype: INT32, dims: [-1]}}
      mask: {{dtype: INT32, dims: [-1]}}
      kinds: {{dtype: INT32, dims: [-1]}}
  bert:
    source: bert.onnx
    backend: tensorrt
    precision: fp16
    workspace: 8GiB
    instances: [{{kind: gpu}}]
    shapes: {{length: {{min: 1, opt: 64, max: {LONGEST}}}}}
    inputs:
      input_ids: {{range: [0, {VOCABULARY}]}}
      attention_mask: {{values: [1]}}
      token_type_ids: {{values: [0]}}
  pool:
    source: {STEPS / "pool.py"}
    requirements: [numpy]
    instances: [{{kind: cpu}}]
    inputs:
      hidden: {{dtype: FP32, dims: [-1, {width}]}}
      mask: {{dtype: INT32, dims: [-1]}}
    outputs:
      embedding: {{dtype: FP32, dims: [{width}]}}
"""


def tensorrt_version() -> str:
    from importlib import metadata

    return metadata.version("tensorrt")


# --- build --------------------------------------------------------------------------------------------------------


def build(run: Run) -> None:
    begin = time.monotonic()
    repogen(run, "sync", "-v")
    run.found["sync_s"] = time.monotonic() - begin
    say(f"built and published in {run.found['sync_s']:.1f} s")


# --- serve --------------------------------------------------------------------------------------------------------


def serve(run: Run) -> None:
    """Start the embedded server and let a client of its own process ask it (`ask`)."""
    answers = run.work / "asked.json"
    answers.unlink(missing_ok=True)
    ask = [sys.executable, str(Path(__file__).resolve()), "--work", str(run.work), "--tokenizer", str(run.tokenizer)]
    ask += ["--stages", "ask", "--seconds", str(run.seconds), "--rates", ",".join(map(str, run.rates))]
    ask += ["--limit", f"{max(run.left() - 20, 1):.0f}", *(["--rehearse"] if run.rehearse else [])]
    repogen(run, "serve", "--timeout", f"{max(min(run.left() / 2, 240), 1):.0f}", "--", *ask)
    run.found |= json.loads(answers.read_text())


def ask(run: Run) -> None:
    """Compare the answers with those of the graph in fp32, then load the pipeline in each way."""
    from repogen.triton import Client

    url = os.environ["REPOGEN_URL"]
    texts = sentences(run)
    with Client(url) as client:
        found = {"agreement": agreement(run, client, texts["example"]), "plan_is_served": is_plan(client)}
    say(f"least cosine to the graph in fp32: {found['agreement']['cosine_min']:.6f}")
    loads = [{"users": 1}, *({"arrivals": "poisson", "rate": rate} for rate in run.rates)]
    rows = found["rows"] = []
    for chosen in SENTENCES:
        for load in loads:
            if run.left() < run.seconds + 10:
                say(f"no time left for {chosen} {load}")
                continue
            rows.append(measured(run, url, texts[chosen], chosen, load))
            say(words(rows[-1]))
            (run.work / "asked.json").write_text(json.dumps(found))


def sentences(run: Run) -> dict[str, list[str]]:
    from tokenizers import Tokenizer

    sys.path.insert(0, str(STEPS.parent))
    from sentences import sentences as made

    tokenizer = Tokenizer.from_file(str(run.tokenizer))
    tokenizer.no_padding()
    texts = made()
    short = [text for text in texts if len(tokenizer.encode(text).ids) <= SHORT]
    return {"example": texts, "short": short}


def is_plan(client: "Client") -> bool:
    """Whether the GPU's plan answers, and not the graph that stands in for it elsewhere."""
    return "plan_file" in client.config("bert").parameters


def agreement(run: Run, client: "Client", texts: list[str]) -> dict:
    """Return the cosine of each answer to what ONNX Runtime makes of the fp32 graph."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(run.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    session = onnxruntime.InferenceSession(str(run.work / "bert.onnx"), providers=["CPUExecutionProvider"])
    found = []
    for text in texts[:: 1 if run.rehearse else 4]:
        row = tokenizer.encode(text)
        given = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
        (hidden,) = session.run(None, {name: np.array([value], np.int32) for name, value in given.items()})
        mean = hidden[0].mean(axis=0)
        answer = client.infer("pipeline", {"text": request(text)})["embedding"][0]
        found.append(float(answer @ mean / np.linalg.norm(mean) / np.linalg.norm(answer)))
    return {"sentences": len(found), "cosine_min": min(found), "cosine_mean": sum(found) / len(found)}


def request(text: str) -> "np.ndarray":
    import numpy as np

    return np.array([[text.encode()]], dtype=np.object_)


def measured(run: Run, url: str, texts: list[str], chosen: str, load: dict) -> dict:
    """Load the pipeline once; one warm-up round has every sentence, so that each length has been met before."""
    from repogen.load import payload
    from repogen.load.metrics import latencies, result
    from repogen.load.process import Generator
    from repogen.load.spec import Spec

    path = run.work / f"{chosen}.npz"
    payload.save(path, [{"text": request(text)} for text in texts])
    warm_up = max(2.0, len(texts) / load["rate"] if "rate" in load else 0.0)
    spec = Spec(url=url, model="pipeline", folder=str(run.work / "samples"), name=f"run-{time.monotonic_ns()}",
                payloads=str(path), warm_up=warm_up, duration=run.seconds, seed=1, **load)  # fmt: skip
    generator = Generator(spec)
    try:
        generator.wait_ready(60)
        samples = generator.finish(spec.warm_up + spec.duration + 60)
    finally:
        generator.close()
    seen = result([samples])
    did = seen.served
    return {
        "sentences": chosen,
        "load": seen.load,
        "verdict": str(seen.verdict),
        **{name: getattr(seen.summary, name) for name in
           ("requests", "errors", "rate", "mean", "p50", "p90", "p99", "p99_low", "p99_high", "max")},
        "steps": {name: {"queue_ms": one.queue, "compute_ms": one.compute, "share": did.share(one),
                         "requests": one.requests, "mean_batch": one.mean_batch}
                  for name, one in did.members.items()},
        "latencies_us": [int(value) // 1000 for value in latencies([samples])],
    }  # fmt: skip


# --- report -------------------------------------------------------------------------------------------------------


def words(row: dict) -> str:
    steps = ", ".join(f"{name} {one['queue_ms'] + one['compute_ms']:.2f}" for name, one in row["steps"].items())
    return (
        f"{row['sentences']}, {row['load']}: P50 {shown(row['p50'])}, P99 {shown(row['p99'])} "
        f"[{shown(row['p99_low'])}, {shown(row['p99_high'])}] ms, {row['requests']} requests, "
        f"{row['errors']} failed, {row['verdict']}; ms in {steps}"
    )


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def report(run: Run, path: Path | None) -> None:
    rows = run.found.get("rows", [])
    print(
        "| sentences | load | P50 ms | P90 ms | P99 ms | 95 % | requests | failed | tokenise | bert | pool | verdict |"
    )
    print("|" + "--|" * 12)
    for row in rows:
        steps = [f"{one['queue_ms'] + one['compute_ms']:.2f}" for one in row["steps"].values()]
        cells = [row["sentences"], row["load"], *(shown(row[name]) for name in ("p50", "p90", "p99")),
                 f"{shown(row['p99_low'])}..{shown(row['p99_high'])}", str(row["requests"]), str(row["errors"]),
                 *steps, row["verdict"]]  # fmt: skip
        print("| " + " | ".join(cells) + " |")
    wanted = len(SENTENCES) * (1 + len(run.rates))
    holding = [row for row in rows if row["p99"] is not None and row["p99"] < GOAL_MS and row["verdict"] == "valid"]
    held = len(holding) == wanted
    print(f"{len(holding)} of {wanted} loads are valid and below {GOAL_MS:g} ms at P99")
    print(f"the plan itself was served: {run.found.get('plan_is_served', False)}")
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": machine(), "goal_ms": GOAL_MS, "held": held, "rehearsal": run.rehearse, **run.found}
        path.write_text(json.dumps(document))


def machine() -> dict[str, str]:
    import platform

    from repogen.gpu import gpus

    gpu = gpus()[0] if gpus() else None
    return {
        "gpu": gpu.name if gpu else "none",
        "driver": gpu.driver if gpu else "",
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=HERE.parent / "examples" / "models" / "tokenizer.json")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--seconds", type=float, default=24.0, help="of each measurement")
    parser.add_argument("--rates", default="50,100,200", help="sentences a second, Poisson arrivals")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all stages of this call")
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    before = json.loads((work / "found.json").read_text()) if (work / "found.json").exists() else {}
    run = Run(work, asked.tokenizer.resolve(), asked.rehearse, asked.seconds,
              tuple(map(float, asked.rates.split(","))), time.monotonic() + asked.limit, before)  # fmt: skip
    if asked.stages == "ask":  # the client that `serve` starts
        ask(run)
        return
    try:
        for stage in asked.stages.split(","):
            begin = time.monotonic()
            {"make": make, "build": build, "serve": serve}[stage](run)
            run.found.setdefault("stage_seconds", {})[stage] = time.monotonic() - begin
            run.save()
            say(f"{stage}: {time.monotonic() - begin:.1f} s, {run.left():.0f} s left")
    finally:  # what was measured before something failed is worth having
        if (work / "asked.json").exists() and "rows" not in run.found:
            run.found |= json.loads((work / "asked.json").read_text())
        report(run, asked.json)


if __name__ == "__main__":
    main()
