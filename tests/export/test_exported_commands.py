"""What compose and Kubernetes run, run for real: the same words, on loopback, without GPU and containers."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from repogen.assets import LOADTESTS
from tests.conftest import tree
from tests.export.kit import exported, stop, triton
from tests.serverkit import needs_server, onnx_file

KEY = "k3y-of-this-test"
MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * FACTOR)]))
        return answers
"""


UNSHARED = ["unshare", "--map-root-user", "--mount", "sh", "-euc"]
MOUNTED = """\
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
if touch "$2/x" 2>/dev/null; then exit 99; fi
shift 2
exec "$@"
"""
"""A container's read-only bind mount, in a mount namespace of the command's own."""


def may_mount():
    try:
        return subprocess.run([*UNSHARED, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def served(tmp_path):
    """A project with two Python models, which the embedded server can load as they are published."""
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    models = "models:\n"
    for name, factor in (("double", 2), ("triple", 3)):
        (folder / "code" / f"{name}.py").write_text(MODEL.replace("FACTOR", str(factor)))
        models += (
            f"  {name}:\n    source: code/{name}.py\n    max_batch_size: 8\n    instances: [{{kind: cpu}}]\n"
            "    inputs: {x: {dtype: FP32, dims: [4]}}\n    outputs: {y: {dtype: FP32, dims: [4]}}\n"
        )
    # The release of the embedded server, whose flags are rendered then.
    (folder / "repogen.yaml").write_text(f'triton: "24.10"\ndeploy: {{sources_claim: code}}\n{models}')
    return folder


class Pod:
    """A folder for each volume of a pod, and its commands with the cluster's names taken for this machine's."""

    def __init__(self, root, project, made):
        self.root, self.project = root, root / "project"
        self.storage = root / "storage"
        for folder in (self.project, self.storage):
            folder.mkdir(parents=True)
        for folder in project.iterdir():
            if folder.is_dir():
                (self.project / folder.name).symlink_to(folder)
        (self.project / "repogen.yaml").write_text(self.here(made["base/repogen.yaml"]))

    def here(self, text, ports=None):
        text = text.replace("/project", str(self.project)).replace("/srv/repogen", str(self.storage))
        text = text.replace("python3 -m", f"{sys.executable} -m").replace("/loadtests", str(LOADTESTS))
        return text.replace(":8001", f":{ports.grpc}") if ports else text

    def environment(self, container):
        """Return the container's variables as Kubernetes makes them: references to earlier ones put in."""
        values = {}
        for item in container.get("env", []):
            value = item.get("value", KEY)
            values[item["name"]] = self.here(re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], value))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, **values, "PATH": path}

    def command(self, container, ports=None):
        words = [self.here(word, ports) for word in (*container.get("command", []), *container.get("args", []))]
        return [sys.executable if word == "python3" else word for word in words]

    def run(self, container, ports=None, path="", **options):
        environment = self.environment(container)
        environment["PATH"] = f"{path}:{environment['PATH']}" if path else environment["PATH"]
        return subprocess.run(
            self.command(container, ports), env=environment, capture_output=True, text=True, check=False, timeout=120, **options
        )  # fmt: skip


def containers(made, name):
    document = yaml.safe_load(made[name])["spec"]
    spec = document.get("jobTemplate", {}).get("spec", document)["template"]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def published(folder):
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_the_init_container_killed_half_way_and_run_again(project, tmp_path):
    names = [f"m{number:02}" for number in range(40)]
    (project / "nets").mkdir()
    onnx_file(
        project / "nets/add.onnx",
        [("Add", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    entries = "".join(f"  {name}: {{source: nets/add.onnx, instances: [{{kind: cpu}}]}}\n" for name in names)
    (project / "repogen.yaml").write_text(f'triton: "26.08"\ndeploy: {{sources_claim: nets}}\nmodels:\n{entries}')
    made = exported("k8s", project)
    pod = Pod(tmp_path / "pod", project, made)
    sync, _ = containers(made, "base/deployment.yaml")
    repository = pod.storage / "models"

    process = subprocess.Popen(
        pod.command(sync), env=pod.environment(sync), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while len(published(repository)) < 3:
            assert process.poll() is None, "it ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    half = published(repository)
    assert 3 <= len(half) < len(names), "it was not half-way"
    assert half <= set(names), "only whole models are ever seen"
    for name in half:
        assert set(tree(repository / name)) == {"config.pbtxt", "1/model.onnx"}

    again = pod.run(sync)
    assert again.returncode == 0, again.stderr
    assert published(repository) == set(names)
    content = tree(repository)
    times = {path: path.stat().st_ctime_ns for path in repository.rglob("*")}

    assert pod.run(sync).returncode == 0
    assert tree(repository) == content
    assert {path: path.stat().st_ctime_ns for path in repository.rglob("*")} == times, "nothing to do, nothing written"


class TestServer:
    pytestmark = needs_server

    def test_composes_flags_serve_and_a_restart_serves_the_same(self, served, invoke):
        invoke("sync", "-f", served / "repogen.yaml")
        made = yaml.safe_load(exported("compose", served)["docker-compose.yml"])
        program, *flags = made["services"]["triton-cpu"]["command"]
        assert program == "tritonserver"
        flags = [flag.replace("=/models", f"={served / 'model_repository'}") for flag in flags]
        for _ in range(2):
            with triton(flags, ["double", "triple"]) as running:
                assert running.status("/v2/health/ready") == 200
                assert "nv_inference_request_summary_us" in running.metrics_text()

    @pytest.mark.skipif(not may_mount(), reason="this user may make no mounts")
    def test_what_is_published_is_seen_through_the_mount(self, served, tmp_path, invoke):
        """Compose mounts the repository alone: its models are exchanged inside it, so that the mount stays what it is."""
        manifest = served / "repogen.yaml"
        invoke("sync", "-f", manifest)
        triton_cpu = yaml.safe_load(exported("compose", served)["docker-compose.yml"])["services"]["triton-cpu"]
        (volume,) = triton_cpu["volumes"]
        inside = tmp_path / "models"
        inside.mkdir()
        flags = [flag.replace("=/models", f"={inside}") for flag in triton_cpu["command"][1:]]
        within = [*UNSHARED, MOUNTED, "sh", str(served / volume["source"]), str(inside)]
        with triton(flags, ["double", "triple"], within=within) as running:
            (served / "code/double.py").write_text(MODEL.replace("FACTOR", "10"))
            text = manifest.read_text()
            manifest.write_text(text.replace("  triple:", "  thrice:"))
            invoke("sync", "-f", manifest, "--prune", "--yes", "--url", f"127.0.0.1:{running.grpc}")
            assert self._asked(running, "double") == [10.0] * 4
            assert self._asked(running, "thrice") == [3.0] * 4
            assert running.status("/v2/models/triple/ready") == 400
        assert not list(inside.iterdir()), "the mount was the server's own"

    def test_kubernetes_init_server_and_nightly_scan(self, served, tmp_path):
        made = exported("k8s", served)
        pod = Pod(tmp_path / "pod", served, made)
        sync, server = containers(made, "base/deployment.yaml")
        done = pod.run(sync)
        assert done.returncode == 0, done.stderr
        words = [word.replace("$(TRITON_ADMIN_KEY)", KEY) for word in pod.command(server)]
        assert words[0] == "tritonserver"
        with triton(words[1:], ["double", "triple"]) as running:
            assert running.status("/v2/repository/index", method="POST") == 403
            assert running.status("/v2/repository/index", method="POST", headers={"admin-key": KEY}) == 200
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert self._probe(server, probe, running).returncode == 0
            self._a_new_version_comes_at_night(served, pod, made, running)
            answer = self._asked(running, "double")
        assert answer == [10.0] * 4
        with triton(words[1:], ["double", "triple"]) as running:
            assert self._asked(running, "double") == [10.0] * 4

    def _a_new_version_comes_at_night(self, served, pod, made, running):
        (nightly,) = containers(made, "base/nightly.yaml")
        names = pod.root / "names"
        names.mkdir()
        # What a cluster's DNS answers for the servers' service.
        (names / "getent").write_text(
            '#!/bin/sh\n[ "$2" = triton-pods ] && printf "127.0.0.1 STREAM x\\n127.0.0.1 DGRAM\\n"\n'
        )
        (names / "getent").chmod(0o755)
        (served / "code/double.py").write_text(MODEL.replace("FACTOR", "10"))
        closed = {**nightly, "env": [item for item in nightly["env"] if item["name"] != "REPOGEN_HEADERS"]}
        refused = pod.run(closed, running, path=str(names))
        assert refused.returncode == 4, refused.stdout + refused.stderr
        assert "restricted" in refused.stderr
        assert self._asked(running, "double") == [2.0] * 4
        done = pod.run(nightly, running, path=str(names))
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_probe_names_the_model_that_is_not_ready_and_restarts_nothing_for_it(self, served, tmp_path):
        made = exported("k8s", served)
        pod = Pod(tmp_path / "pod", served, made)
        sync, server = containers(made, "base/deployment.yaml")
        assert pod.run(sync).returncode == 0
        words = [word.replace("--load-model=*", "--load-model=double") for word in pod.command(server)]
        with triton(words[1:], ["double"]) as running:
            done = self._probe(server, "readinessProbe", running)
            assert (done.returncode, done.stdout) == (1, "triple is not ready\n")
            assert self._probe(server, "livenessProbe", running).returncode == 0
        assert self._probe(server, "livenessProbe", running).returncode != 0

    def test_locusts_master_and_worker(self, served, tmp_path, invoke):
        invoke("sync", "-f", served / "repogen.yaml")
        made = exported("k8s", served)
        pod = Pod(tmp_path / "pod", served, made)
        (master,), (worker,) = containers(made, "load/master.yaml"), containers(made, "load/worker.yaml")
        compose = yaml.safe_load(exported("compose", served)["docker-compose.yml"])["services"]
        assert compose["locust-worker"]["command"] == worker["command"]
        flags = [f"--model-repository={served / 'model_repository'}", "--model-control-mode=explicit", "--load-model=*"]
        with triton(flags, ["double"]) as running:
            asked = [
                "--headless",
                "--expect-workers=1",
                "--users=2",
                "--duration=1.5",
                "--warm-up=0.2",
                "--run-time=20",
            ]
            port = _free_port()
            ours = ["--master-bind-host=127.0.0.1", f"--master-bind-port={port}"]
            command = [word.replace("triton:8001", f"127.0.0.1:{running.grpc}") for word in pod.command(master)]
            command += [*asked, *ours, f"--samples={tmp_path / 'samples'}"]
            follow = [word.replace("=locust-master", "=127.0.0.1") for word in pod.command(worker)]
            options = {
                "cwd": tmp_path,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "start_new_session": True,
            }
            first = subprocess.Popen(command, env=pod.environment(master), **options)
            second = subprocess.Popen([*follow, f"--master-port={port}"], env=pod.environment(worker), **options)
            try:
                said, _ = first.communicate(timeout=60)
                assert first.returncode == 0, said.decode()
                told, _ = second.communicate(timeout=20)
                assert second.returncode == 0, told.decode()
            finally:
                stop(first)
                stop(second)
        from repogen.load import samples

        (file,) = (tmp_path / "samples").glob("*.npz")
        measured = samples.load(file)
        assert len(measured.sent) > 20
        assert (measured.status == 0).all()

    def _probe(self, server, name, running):
        command = server[name]["exec"]["command"]
        words = [word.replace("127.0.0.1:8000", f"127.0.0.1:{running.http}") for word in command]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=server[name]["timeoutSeconds"]
        )

    def _asked(self, running, model):
        import numpy as np
        from tritonclient import grpc

        with grpc.InferenceServerClient(f"127.0.0.1:{running.grpc}") as client:
            given = grpc.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            return client.infer(model, [given]).as_numpy("y")[0].tolist()


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
