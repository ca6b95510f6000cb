"""Is every exported file what its official schema says, and does every metric that is named exist?

python benchmarks/exports.py --json exports.json

Exports two manifests (the five example models on the CPU; plans on GPUs with a repository on S3) by the command line,
and judges each file: compose by the Compose specification, Kubernetes by the schemas of its last three minors and by
`kubectl kustomize`, Prometheus and Alertmanager by promtool and amtool, dashboards by Grafana's own library. Then it
starts the embedded Triton with the rendered flags, and the node exporter where it is installed, and compares the
metrics named with those that they have. What no tool here judges is listed as unjudged, and is not counted as valid.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DATA = ROOT / "tests/data"
MINORS = 3
METRIC = re.compile(r"\b(?:nv_[a-z0-9_]+|DCGM_FI_[A-Z0-9_]+|node_[a-z0-9_]+)\b")
ON_GPUS = """\
triton: "26.08"
repository: s3://models/production
gpu: "9.0"
deploy: {name: vision, secret: bucket, sources_claim: nets, replicas: {min: 2, max: 8}}
models:
  plan:
    source: nets/add.onnx
    backend: tensorrt
    max_batch_size: 8
    shapes: {W: {min: 1, opt: 4, max: 8}}
    instances: [{kind: gpu, count: 2, gpus: [0, 1]}]
    dynamic_batching: {max_queue_delay: 2ms}
    tune: {slo: {p99: 20ms}, rate: 200/s}
"""

OF_GPUS = {
    "DCGM_FI_DEV_XID_ERRORS",
    *("nv_gpu_power_usage", "nv_gpu_power_limit", "nv_energy_consumption"),
    *("nv_gpu_utilization", "nv_gpu_memory_total_bytes", "nv_gpu_memory_used_bytes"),
}
"""Triton's documentation (docs/user_guide/metrics.md) and DCGM's name them; without a GPU no server shows them."""

Judge = Callable[[Path], "str | None"]
"""Returns what is wrong with a file, "" where nothing is, None where it cannot be judged here."""


def exported(folder: Path) -> dict[str, Path]:
    """Export both manifests; return the folder of each."""
    from tests.serverkit import onnx_file

    (folder / "gpu/nets").mkdir(parents=True)
    onnx_file(
        folder / "gpu/nets/add.onnx",
        [("Add", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    (folder / "gpu/repogen.yaml").write_text(ON_GPUS)
    manifests = {"examples": ROOT / "examples/repogen.yaml", "gpu": folder / "gpu/repogen.yaml"}
    for name, manifest in manifests.items():
        for what in ("compose", "k8s", "monitoring"):
            output = folder / "out" / name / what
            command = [sys.executable, "-m", "repogen", "export", what, "-f", manifest, "-o", output, "-q"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return {name: folder / "out" / name for name in manifests}


def by_schema(schema: Mapping[str, Any], data: Any) -> str:
    import jsonschema

    errors = jsonschema.Draft202012Validator(schema).iter_errors(data)
    return "; ".join(f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors)


def compose(path: Path) -> str:
    return by_schema(json.loads((DATA / "compose-spec.json").read_text()), yaml.safe_load(path.read_text()))


def kubernetes(path: Path) -> str | None:
    document = yaml.safe_load(path.read_text())
    kind = document.get("kind")
    own = json.loads((DATA / "prometheus-operator.json").read_text())
    if kind in own:
        return by_schema(own[kind], document)
    if kind == "Kustomization":
        return by_tool("kubectl", "kustomize", str(path.parent))
    if kind is None:
        return adapter(document)
    import kubernetes_validate

    versions = {".".join(it.split(".")[:2]) for it in kubernetes_validate.utils.all_versions()}
    last = sorted(versions, key=lambda it: [*map(int, it.split("."))])[-MINORS:]
    return "; ".join(filter(None, (by_minor(document, version) for version in last)))


def by_minor(document: Any, version: str) -> str:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{version}: {'.'.join(map(str, error.path))}: {error.message}"
    return ""


def adapter(values: Mapping[str, Any]) -> str | None:
    """Judge prometheus-adapter's queries, its placeholders filled in as it does: its values have no schema."""
    filled = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": 'namespace="a",pod="b"'}
    rules = []
    for index, rule in enumerate(values["rules"]["custom"]):
        query = rule["metricsQuery"]
        for placeholder, text in filled.items():
            query = query.replace(placeholder, text)
        rules += [
            {"record": f"asked:{index}", "expr": query},
            {"record": f"found:{index}", "expr": rule["seriesQuery"]},
        ]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}, file)
        file.flush()
        return by_tool("promtool", "check", "rules", file.name)


def manifest(path: Path) -> str:
    from repogen.errors import ManifestError
    from repogen.manifest import load_manifest

    try:
        load_manifest(path)
    except ManifestError as error:
        return str(error)
    return ""


def dashboard(path: Path) -> str | None:
    """Read it with Grafana's own library, and look whether anything of it was not understood."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    except ImportError:
        return None
    register_default_plugins()
    data = json.loads(path.read_text())
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(data)))
    return "; ".join(f"{place} is not in the schema" for place in lost(data, again, ""))


def lost(before: Any, after: Any, place: str) -> Iterator[str]:
    """Return the keys of `before` that `after` does not have."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{place}.{key}")
            elif value not in (None, "", [], {}, False, 0):
                yield f"{place}.{key}"
    elif isinstance(before, list) and isinstance(after, list):
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from lost(one, other, f"{place}[{index}]")


def by_tool(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()


def plain(path: Path) -> str | None:
    yaml.safe_load(path.read_text())
    return None


def judge_of(name: str) -> Judge:
    """Return what judges the exported file `name`, given as WHAT/path."""
    if name == "compose/docker-compose.yml":
        return compose
    if name == "k8s/base/repogen.yaml":
        return manifest
    if name.startswith("k8s/"):
        return kubernetes
    tools = {
        "monitoring/prometheus/prometheus.yml": lambda path: by_tool(
            "promtool", "check", "config", "--syntax-only", str(path)
        ),
        "monitoring/prometheus/rules.yml": lambda path: by_tool("promtool", "check", "rules", str(path)),
        "monitoring/prometheus/rules_test.yml": lambda path: by_tool("promtool", "test", "rules", str(path)),
        "monitoring/alertmanager/alertmanager.yml": lambda path: by_tool("amtool", "check-config", str(path)),
    }
    return tools.get(name) or (dashboard if name.endswith(".json") else plain)


def judged(folders: Mapping[str, Path]) -> Iterator[tuple[str, str | None]]:
    """Return every file with what is wrong with it."""
    for which, folder in folders.items():
        for path in sorted(it for it in folder.rglob("*") if it.is_file()):
            name = path.relative_to(folder).as_posix()
            try:
                yield f"{which}/{name}", judge_of(name)(path)
            except (ValueError, yaml.YAMLError) as error:
                yield f"{which}/{name}", f"cannot be read: {error}"


def metrics_named(folders: Mapping[str, Path]) -> set[str]:
    return {
        name for folder in folders.values() for path in folder.rglob("*") if path.is_file()
        for name in METRIC.findall(path.read_text())
    }  # fmt: skip


def triton_metrics(flags: list[str]) -> set[str]:
    """Return the metrics of a real Triton with one model."""
    from tests.export.kit import triton
    from tests.serverkit import add_double

    with tempfile.TemporaryDirectory(prefix="repogen-exports-") as folder:
        repository = Path(folder) / "models"
        repository.mkdir()
        add_double(repository)
        ours = [
            flag if not flag.startswith("--model-repository") else f"--model-repository={repository}" for flag in flags
        ]
        # Newer than the embedded server.
        ours = [flag for flag in ours if not flag.startswith("--grpc-max-response-pool-size")]
        with triton(ours, ["double"]) as running:
            text = running.metrics_text()
    return set(re.findall(r"^(?:# TYPE )?(nv_\w+)", text, re.MULTILINE))


def node_metrics() -> set[str]:
    """Return the metrics of the real node exporter, none where it is not installed."""
    from tests.export.watchkit import await_, free_port, running

    if shutil.which("prometheus-node-exporter") is None:
        return set()
    address = f"127.0.0.1:{free_port()}"
    text: list[str] = []

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                text.append(answer.read().decode())
        except OSError:
            return False
        return True

    with tempfile.TemporaryDirectory(prefix="repogen-exports-") as folder:
        command = ["prometheus-node-exporter", f"--web.listen-address={address}"]
        with running(command, Path(folder) / "log"):
            await_(answers, 20, address)
    return set(re.findall(r"^# TYPE (node_\w+)", text[-1], re.MULTILINE))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repogen-exports-") as folder:
        folders = exported(Path(folder))
        found = dict(judged(folders))
        named = metrics_named(folders)
        service = yaml.safe_load((folders["examples"] / "compose/docker-compose.yml").read_text())["services"]["triton"]
    of_node = node_metrics()
    known = triton_metrics(service["command"][1:]) | of_node
    elsewhere = OF_GPUS if of_node else OF_GPUS | {name for name in named if name.startswith("node_")}
    invalid = {name: problem for name, problem in found.items() if problem}
    figures = {
        "files": len(found),
        "invalid": len(invalid),
        "metrics_named": len(named),
        "metrics_missing": sorted(named - known - elsewhere),
        "metrics_unseen": sorted((named & elsewhere) - known),
        "problems": invalid,
        "unjudged": sorted(name for name, problem in found.items() if problem is None),
    }
    for name, problem in found.items():
        print(f"{'-' if problem is None else 'invalid' if problem else 'valid':8} {name}  {problem or ''}".rstrip())
    print(f"\n{figures['files']} files, {figures['invalid']} invalid, {len(figures['unjudged'])} not judged; ", end="")
    print(f"{figures['metrics_named']} metrics named, missing: {figures['metrics_missing'] or 'none'}")
    print(f"not seen, since what has them is not here: {figures['metrics_unseen'] or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if invalid or figures["metrics_missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
