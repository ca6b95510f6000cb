"""The Kustomize base: valid for the last three minors, nothing secret in it, and built by the real kubectl."""

import json
import shutil
import subprocess

import pytest
import yaml

from repogen.errors import ManifestError
from repogen.export.cluster_manifest import REPOSITORY, cluster_manifest, local_folders
from repogen.export.settings import Settings
from repogen.manifest import load_manifest
from tests.export.kit import exported
from tests.serverkit import onnx_file

SECRET = "do-not-print-me"
CRDS = {"ServiceMonitor", "PrometheusRule"}
PLAIN = {"Kustomization", None}
KINDS = {
    "base/namespace.yaml": "Namespace",
    "base/deployment.yaml": "Deployment",
    "base/service.yaml": "Service",
    "base/service-pods.yaml": "Service",
    "base/storage.yaml": "PersistentVolumeClaim",
    "base/network-policy.yaml": "NetworkPolicy",
    "base/disruption-budget.yaml": "PodDisruptionBudget",
    "base/conversion.yaml": "Job",
    "base/nightly.yaml": "CronJob",
    "base/kustomization.yaml": "Kustomization",
    "monitoring/kustomization.yaml": "Kustomization",
    "monitoring/service-monitor.yaml": "ServiceMonitor",
    "monitoring/prometheus-rule.yaml": "PrometheusRule",
    "monitoring/scaling.yaml": "HorizontalPodAutoscaler",
    "load/kustomization.yaml": "Kustomization",
    "load/master.yaml": "Deployment",
    "load/master-service.yaml": "Service",
    "load/worker.yaml": "Deployment",
}


@pytest.fixture
def cluster(project, monkeypatch):
    """A project with a plan for GPUs, a model on the CPU, and credentials that no file may show."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    (project / "nets").mkdir()
    for name in ("add", "plan"):
        onnx_file(
            project / "nets" / f"{name}.onnx",
            [("Add", ["x", "x"], ["y"], {})],
            [("x", "FLOAT", ["N", "W"])],
            [("y", "FLOAT", ["N", "W"])],
        )
    (project / "repogen.yaml").write_text(
        'triton: "26.08"  # pinned\n'
        "repository: served/models  # what serves\n"
        'gpu: "9.0"\n'
        "deploy:\n"
        "  name: vision\n"
        "  sources_claim: nets\n"
        "  secret: bucket\n"
        "  gpu_product: NVIDIA-H200\n"
        "  replicas: {min: 3, max: 9}\n"
        "  queue_target: 5ms\n"
        "models:\n"
        "  add: {source: nets/add.onnx, max_batch_size: 4, instances: [{kind: cpu}]}\n"
        "  plan:\n"
        "    source: nets/plan.onnx\n"
        "    backend: tensorrt\n"
        "    max_batch_size: 4\n"
        "    shapes: {W: {min: 1, opt: 4, max: 8}}\n"
        "    instances: [{kind: gpu, gpus: [0, 1]}]\n"
    )
    return project


@pytest.fixture
def made(cluster):
    return exported("k8s", cluster)


def parsed(made):
    return {name: yaml.safe_load(text) for name, text in made.items()}


def pod(document):
    spec = document["spec"]
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return spec["template"]["spec"]


def pods(made):
    documents = parsed(made).values()
    return [pod(it) for it in documents if it.get("kind") in ("Deployment", "Job", "CronJob")]


def test_everything_is_there(made):
    kinds = {name: document.get("kind") for name, document in parsed(made).items()}
    assert {name: kind for name, kind in kinds.items() if kind} == KINDS
    assert set(made) == {*KINDS, "base/repogen.yaml", "monitoring/prometheus-adapter.yaml"}


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_valid_for_the_last_three_minors(made, minor):
    kubernetes = pytest.importorskip("kubernetes_validate")
    versions = sorted(
        {".".join(it.split(".")[:2]) for it in kubernetes.utils.all_versions()}, key=lambda it: int(it[2:])
    )
    assert len(versions) >= 3
    for document in parsed(made).values():
        if document.get("kind") not in {*CRDS, *PLAIN}:
            kubernetes.validate(document, versions[-1 - minor], strict=True)


def test_the_schemas_would_have_found_a_typo(made):
    kubernetes = pytest.importorskip("kubernetes_validate")
    document = yaml.safe_load(made["base/deployment.yaml"].replace("readinessProbe", "readynessProbe"))
    with pytest.raises(kubernetes.ValidationError, match="readynessProbe"):
        kubernetes.validate(document, "1.35", strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", ["base", "monitoring", "load"])
def test_kustomize_builds_it(made, tmp_path, folder):
    for name, text in made.items():
        path = tmp_path / "k8s" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "k8s" / folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert {it["metadata"]["namespace"] for it in documents if it["kind"] != "Namespace"} == {"vision"}
    if folder == "base":
        (config,) = (it for it in documents if it["kind"] == "ConfigMap")
        assert config["data"] == {"repogen.yaml": made["base/repogen.yaml"]}
        (server,) = (it for it in documents if it["kind"] == "Deployment")
        named = {it["configMap"]["name"] for it in pod(server)["volumes"] if "configMap" in it}
        assert named == {config["metadata"]["name"]} != {"repogen-manifest"}, "a changed manifest is a rollout"


def test_the_manifest_is_the_only_thing_in_the_config_map_and_stays_as_written(cluster, made):
    before = (cluster / "repogen.yaml").read_text()
    assert made["base/repogen.yaml"] == before.replace("served/models  #", f"{REPOSITORY}  #")
    assert parsed(made)["base/kustomization.yaml"]["configMapGenerator"] == [
        {"name": "repogen-manifest", "files": ["repogen.yaml"]}
    ]


@pytest.mark.parametrize(
    "text",
    [
        'triton: "26.08"\nmodels: {a: {source: x/a.onnx}}\n',
        '# head\ntriton: "26.08"\nkeep: 2\nrepository: "there"\nmodels:\n  a: {source: x/a.onnx}\n',
        '{triton: "26.08", repository: r, models: {a: {source: x/a.onnx}}}\n',
    ],
)
def test_any_way_of_writing_a_manifest_gets_its_repository(tmp_path, text):
    path = tmp_path / "repogen.yaml"
    path.write_text(text)
    settings = Settings(load_manifest(path), tmp_path)
    (tmp_path / "again.yaml").write_text(cluster_manifest(settings, text))
    again = load_manifest(tmp_path / "again.yaml")
    assert str(again.repository) == REPOSITORY
    assert again.models == settings.manifest.models
    assert again.triton == "26.08"


def test_one_on_s3_stays_there(cluster):
    text = (cluster / "repogen.yaml").read_text().replace("served/models", "s3://bucket/models")
    (cluster / "repogen.yaml").write_text(text)
    made = exported("k8s", cluster)
    assert made["base/repogen.yaml"] == text
    (server,) = pod(parsed(made)["base/deployment.yaml"])["containers"]
    assert "--model-repository=s3://bucket/models" in server["args"]
    assert server["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert "/srv/repogen" not in {it["mountPath"] for it in server["volumeMounts"]}


def test_secrets_are_referred_to_and_never_there(made):
    assert not any(SECRET in text for text in made.values())
    (server,) = pod(parsed(made)["base/deployment.yaml"])["containers"]
    assert server["env"] == [
        {"name": "TRITON_ADMIN_KEY", "valueFrom": {"secretKeyRef": {"name": "triton-admin", "key": "admin-key"}}}
    ]
    for kind in ("grpc-restricted-protocol", "http-restricted-api"):
        (flag,) = (it for it in server["args"] if it.startswith(f"--{kind}="))
        assert "model-repository" in flag
        assert flag.endswith(":admin-key=$(TRITON_ADMIN_KEY)")
    assert "Secret" not in {it.get("kind") for it in parsed(made).values()}


def test_the_init_container_syncs_and_the_server_only_reads(made):
    spec = pod(parsed(made)["base/deployment.yaml"])
    (sync,), (server,) = spec["initContainers"], spec["containers"]
    assert sync["command"] == ["python3", "-m", "repogen", "sync", "--file=/project/repogen.yaml", "--wait=900"]
    assert {"name": "REPOGEN_CACHE", "value": "/srv/repogen/cache"} in sync["env"]
    mounts = {it["mountPath"]: it for it in sync["volumeMounts"]}
    assert "readOnly" not in mounts["/srv/repogen"]
    assert mounts["/project/nets"] == {
        "name": "sources",
        "mountPath": "/project/nets",
        "subPath": "nets",
        "readOnly": True,
    }
    (seen,) = (it for it in server["volumeMounts"] if it["mountPath"] == "/srv/repogen")
    assert seen["readOnly"] is True
    assert REPOSITORY.startswith("/srv/repogen/"), "a mount point cannot be published to"
    assert f"--model-repository={REPOSITORY}" in server["args"]


def test_probes_ask_each_model_and_the_start_has_time(made):
    (server,) = pod(parsed(made)["base/deployment.yaml"])["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = server[name]
        script = probe["exec"]["command"][2]
        assert "for model in add plan;" in script
        assert "/v2/models/$model/ready" in script
        assert probe["timeoutSeconds"] >= 2 * 2
    start = server["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 300
    assert server["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
    grace = pod(parsed(made)["base/deployment.yaml"])["terminationGracePeriodSeconds"]
    assert grace > 15 + 30, "preStop, then Triton's own time"


def test_gpus_and_their_node(made):
    spec = pod(parsed(made)["base/deployment.yaml"])
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert spec["nodeSelector"] == {
        "nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0", "nvidia.com/gpu.product": "NVIDIA-H200",
    }  # fmt: skip


def test_gpus_that_are_not_there_are_refused(cluster):
    text = (cluster / "repogen.yaml").read_text()
    (cluster / "repogen.yaml").write_text(text.replace("  name: vision", "  name: vision\n  gpus: 1"))
    with pytest.raises(
        ManifestError, match=r"yaml:19 models.plan.instances\[0\]: plan wants GPU 1, .*yaml:6 deploy.gpus"
    ):
        exported("k8s", cluster)


def test_one_index_for_each_plan_on_a_node_of_the_right_kind(cluster, made):
    job = parsed(made)["base/conversion.yaml"]
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 1)
    (container,) = pod(job)["containers"]
    assert container["command"][-2:] == ["--index=$(JOB_COMPLETION_INDEX)", "--model=plan"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod(job)["nodeSelector"]["nvidia.com/gpu.compute.major"] == "9"
    text = (cluster / "repogen.yaml").read_text()
    (cluster / "repogen.yaml").write_text(text.replace("opt: 4", "opt: 5"))
    again = parsed(exported("k8s", cluster))["base/conversion.yaml"]
    assert again["metadata"]["name"] != job["metadata"]["name"], "a job cannot be changed"


def test_no_job_without_plans(project):
    text = (project / "repogen.yaml").read_text().replace("source: add.onnx", "source: s3://bucket/add.onnx")
    assert "Job" not in text
    (project / "nets").mkdir()
    (project / "add.onnx").rename(project / "nets/add.onnx")
    local = (project / "repogen.yaml").read_text().replace("add.onnx", "nets/add.onnx")
    (project / "repogen.yaml").write_text(f"{local}deploy: {{sources_claim: nets}}\n")
    made = exported("k8s", project)
    assert "base/conversion.yaml" not in made
    nightly = pod(parsed(made)["base/nightly.yaml"])
    assert "nodeSelector" not in nightly
    assert nightly["containers"][0]["image"].startswith("repogen:")


def test_the_nightly_scan_reaches_every_server_with_the_key(made):
    job = parsed(made)["base/nightly.yaml"]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (container,) = pod(job)["containers"]
    assert container["command"][:2] == ["sh", "-c"]
    assert "getent ahostsv4 triton-pods" in container["command"][2]
    assert {"name": "REPOGEN_HEADERS", "value": "triton-grpc-protocol-admin-key: $(TRITON_ADMIN_KEY)"} in container[
        "env"
    ]
    names = [it["name"] for it in container["env"]]
    assert names.index("TRITON_ADMIN_KEY") < names.index("REPOGEN_HEADERS"), "it refers to what stands before it"
    labels = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    policy = parsed(made)["base/network-policy.yaml"]["spec"]
    allowed = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert allowed.items() <= labels.items()


def test_pods_are_fit_for_the_restricted_standard(made):
    found = pods(made)
    assert len(found) == 5
    for spec in found:
        shared = spec["securityContext"]
        assert shared["runAsNonRoot"] is True
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
            mounted = {it["name"] for it in container["volumeMounts"]}
            assert mounted <= {it["name"] for it in spec["volumes"]}


def test_scaling_and_what_it_asks(made):
    spec = parsed(made)["monitoring/scaling.yaml"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 9)
    (metric,) = spec["metrics"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "5000u"}
    (rule,) = parsed(made)["monitoring/prometheus-adapter.yaml"]["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]


def test_the_rules_are_those_of_the_monitoring(cluster, made):
    rules = yaml.safe_load(exported("monitoring", cluster)["prometheus/rules.yml"])
    assert parsed(made)["monitoring/prometheus-rule.yaml"]["spec"] == rules
    assert rules["groups"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "  sources_claim: nets\n",
            "",
            r"yaml:11 models.add.source: no pod has the file 'nets/add.onnx'.*sources_claim",
        ),
        ("nets/add.onnx", "../other/add.onnx", r"models.add.source: no pod can mount '../other/add.onnx'"),
        ("nets/add.onnx", "add.onnx", r"models.add.source: no pod can mount 'add.onnx'"),
    ],
)
def test_sources_that_no_pod_can_have_are_refused(cluster, old, new, said):
    (cluster.parent / "other").mkdir(exist_ok=True)
    shutil.copy(cluster / "nets/add.onnx", cluster.parent / "other/add.onnx")
    text = (cluster / "repogen.yaml").read_text().replace(old, new)
    (cluster / "repogen.yaml").write_text(text)
    with pytest.raises(ManifestError, match=said):
        exported("k8s", cluster)


def test_what_lies_beside_a_python_models_code_is_mounted_too(tmp_path):
    def folders(file, labels="nets/labels.txt"):
        path = tmp_path / "repogen.yaml"
        path.write_text(
            'triton: "26.08"\ndeploy: {sources_claim: nets}\nmodels:\n  a:\n    source: steps/a.py\n'
            f"    files: [{file}]\n    inputs: {{x: {{dtype: FP32, dims: [1]}}}}\n"
            f"    outputs: {{y: {{dtype: FP32, dims: [2], labels: {labels}}}}}\n"
        )
        return local_folders(Settings(load_manifest(path), tmp_path))

    assert folders("words/tokens.json") == ("steps", "words", "nets")
    assert folders("{source: words/lines.py}") == ("steps", "words", "nets")
    assert folders("s3://bucket/tokens.json") == ("steps", "nets")
    with pytest.raises(ManifestError, match=r"models.a.files.*no pod can mount 'tokens.json'"):
        folders("tokens.json")
    with pytest.raises(ManifestError, match=r"models.a.outputs.y.labels: no pod can mount 'labels.txt'"):
        folders("words/tokens.json", "labels.txt")


def test_a_folder_whose_newest_file_is_served_is_mounted(tmp_path):
    path = tmp_path / "repogen.yaml"
    path.write_text('triton: "26.08"\ndeploy: {sources_claim: nets}\nmodels: {a: {source: nets/}}\n')
    assert local_folders(Settings(load_manifest(path), tmp_path)) == ("nets",)


def test_one_server_cannot_have_two_kinds_of_gpu(cluster):
    text = (cluster / "repogen.yaml").read_text()
    other = text.replace("  add: {source: nets/add.onnx, max_batch_size: 4, instances: [{kind: cpu}]}\n", "")
    block = other[other.index("  plan:") :]
    again = block.replace("  plan:", "  older:").replace("    backend", '    gpu: "8.0"\n    backend')
    (cluster / "repogen.yaml").write_text(other + again)
    with pytest.raises(ManifestError, match=r"models.older.gpu: one server cannot serve plan on 9.0 and older on 8.0"):
        exported("k8s", cluster)


def test_the_same_every_time(cluster, made):
    assert json.dumps(exported("k8s", cluster)) == json.dumps(made)


def test_the_production_check_asks_for_a_digest_and_nothing_else(made, tmp_path):
    from repogen.check.engine import check_repository
    from repogen.check.examples import write_tree
    from repogen.check.target import target_of

    (tmp_path / "empty").mkdir()
    folder = write_tree(tmp_path / "k8s", made)
    found = check_repository(tmp_path / "empty", target_of("26.08"), deployments=[folder])
    assert {(it.code, it.severity) for it in found if it.severity == "error"} == {("RG921", "error")}
    assert {it.code for it in found} == {"RG921"}
