"""Run one plan in this process for tensorrt_gpu.py, by the same engine that the embedded runner uses.

Answers JSON lines, as gpu_torch.py's worker does. Where there is no GPU (--rehearse) ONNX Runtime runs the graph
that the plan was built from, so that everything around it can be tried.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np

from repogen.assets import TEMPLATES


class PlanWorker:
    """A plan on the GPU; what is timed leaves the inputs on the device unless `copies` is said."""

    def __init__(self, plan, data, *, cuda_graphs):
        path = TEMPLATES / "embedded" / "plan_engine.py"
        spec = importlib.util.spec_from_file_location("plan_engine", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.engine = module.Engine(plan, cuda_graphs=cuda_graphs)
        self.data = {name: data[name].astype(self.engine.dtype(name)) for name in self.engine.inputs}

    def _load(self, batch, begin=0):
        parts = {name: value[begin : begin + batch] for name, value in self.data.items()}
        shapes = {name: value.shape for name, value in parts.items()}
        for name, room in self.engine.room(shapes).items():
            room[...] = parts[name]
        self.engine.run(shapes)
        return shapes

    def warm(self, batch, runs):
        shapes = self._load(batch)
        for _ in range(runs):
            self.engine.run(shapes)
            self.engine.run(shapes, copies=False)
        return {}

    def latency(self, batch, runs, copies=False):
        shapes, found = self._load(batch), []
        for _ in range(runs):
            begin = time.perf_counter()
            self.engine.run(shapes, copies=copies)
            found.append((time.perf_counter() - begin) * 1000)
        return {"samples_ms": found}

    def throughput(self, batch, runs):
        shapes = self._load(batch)
        self.engine.run(shapes, copies=False)
        begin = time.perf_counter()
        for _ in range(runs):
            self.engine.start(shapes, copies=False)
        self.engine.wait()
        return {"per_second": batch * runs / (time.perf_counter() - begin)}

    def answers(self, path):
        rows = len(next(iter(self.data.values())))
        parts = []
        for begin in range(0, rows, 32):
            count = min(32, rows - begin)
            feeds = {name: value[begin : begin + count] for name, value in self.data.items()}
            shapes = {name: value.shape for name, value in feeds.items()}
            for name, room in self.engine.room(shapes).items():
                room[...] = feeds[name]
            parts.append(next(iter(self.engine.run(shapes).values())).astype(np.float32))
        np.savez(path, answer=np.concatenate(parts))
        return {}


class GraphWorker:
    """The stand-in for a rehearsal: ONNX Runtime on the graph."""

    def __init__(self, graph, data):
        import onnxruntime

        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        kinds = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.data = {node.name: data[node.name].astype(kinds[node.type]) for node in self.session.get_inputs()}

    def _run(self, batch, begin=0):
        return self.session.run(None, {name: value[begin : begin + batch] for name, value in self.data.items()})[0]

    def warm(self, batch, runs):
        for _ in range(min(runs, 2)):
            self._run(batch)
        return {}

    def latency(self, batch, runs, copies=False):
        found = []
        for _ in range(min(runs, 3)):
            begin = time.perf_counter()
            self._run(batch)
            found.append((time.perf_counter() - begin) * 1000)
        return {"samples_ms": found}

    def throughput(self, batch, runs):
        runs = min(runs, 2)
        begin = time.perf_counter()
        for _ in range(runs):
            self._run(batch)
        return {"per_second": batch * runs / (time.perf_counter() - begin)}

    def answers(self, path):
        rows = len(next(iter(self.data.values())))
        parts = [self._run(32, begin).astype(np.float32) for begin in range(0, rows, 32)]
        np.savez(path, answer=np.concatenate(parts))
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True, help="the plan, or with --rehearse the graph")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    data = np.load(asked.data)
    worker = GraphWorker(asked.file, data) if asked.rehearse else PlanWorker(
        asked.file, data, cuda_graphs=asked.cuda_graphs
    )  # fmt: skip
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(getattr(worker, question.pop("op"))(**question)), flush=True)


if __name__ == "__main__":
    main()
