"""A Kustomize base for the servers, what scales and watches them, and a load test beside it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from repogen.build_key import build_key
from repogen.errors import ManifestError
from repogen.export import monitoring, probes
from repogen.export.cluster_manifest import REPOSITORY, cluster_manifest, local_folders
from repogen.export.flags import KEY_NAME, locust_master, locust_worker, triton_flags
from repogen.export.settings import Settings
from repogen.export.sizing import gpus_needed, load_seconds
from repogen.export.templating import rendered
from repogen.model import ServedModel
from repogen.units import duration_text

_KEY = "$(TRITON_ADMIN_KEY)"  # Kubernetes puts the secret in: it stands in no file
_HEADER = f"triton-grpc-protocol-{KEY_NAME}: {_KEY}"
_REPOGEN = ("python3", "-m", "repogen")
_MANIFEST = "--file=/project/repogen.yaml"
_PARTS = ("namespace", "deployment", "service", "service-pods", "storage", "network-policy", "disruption-budget")


def files(models: Sequence[ServedModel], settings: Settings) -> dict[str, str]:
    """Return base/, monitoring/ and load/. Raises ManifestError where a cluster could not serve the manifest."""
    text = settings.manifest.source.path.read_text(encoding="utf-8")
    manifest = cluster_manifest(settings, text)
    made = {"base/repogen.yaml": manifest}
    values = _values(models, settings)
    for name in _PARTS:
        made[f"base/{name}.yaml"] = _text(f"base/{name}.yaml", settings, values)
    made["base/nightly.yaml"] = _text("base/nightly.yaml", settings, values | _nightly(models, settings, values))
    if plans := [model for model in models if model.build]:
        given = values | {"models": plans, "job": _job_name(plans, manifest), "build": _build(plans)}
        made["base/conversion.yaml"] = _text("base/conversion.yaml", settings, given)
    resources = sorted(name.removeprefix("base/") for name in made if name != "base/repogen.yaml")
    made["base/kustomization.yaml"] = _text("base/kustomization.yaml", settings, values | {"resources": resources})
    return made | _monitoring(models, settings, values) | _load(models, settings, values)


def _values(models: Sequence[ServedModel], settings: Settings) -> dict[str, Any]:
    deploy, names = settings.deploy, [model.name for model in models]
    store = settings.manifest.store
    return {
        "name": settings.name,
        "deploy": deploy,
        "secret": deploy.secret,
        "image": settings.image,
        "tools_image": settings.tools_image,
        "builder_image": settings.builder_image,
        "store": store,
        "folders": local_folders(settings),
        "capability": _capability(models, settings),
        "gpus": gpus_needed(models, settings),
        # A server that cannot load everything does not become ready, and the rollout stops: the old ones serve on.
        "flags": triton_flags(store or REPOSITORY, settings.manifest.triton, exit_on_error=True, admin_key=_KEY),
        "sync": [*_REPOGEN, "sync", _MANIFEST, "--wait=900"],
        "ready": probes.ready(names),
        "alive": probes.alive(names),
        "probe_timeout": probes.seconds(names),
        "load_seconds": load_seconds(models, settings),
        "load_why": "as the manifest says" if deploy.load_time else "by the size of the files and the instances",
        "memory": _quantity(deploy.memory),
        "shm": _quantity(deploy.shm),
        "storage": _quantity(deploy.storage),
        "header": _HEADER,
    }


def _capability(models: Sequence[ServedModel], settings: Settings) -> str:
    """Return the compute capability of the GPUs that serve, "" where nothing depends on it."""
    found = {model.build.capability: model.name for model in models if model.build}
    if len(found) > 1:
        kinds = " and ".join(f"{name} on {capability}" for capability, name in found.items())
        where = settings.manifest.where("models", next(reversed(found.values())), "gpu")
        raise ManifestError(f"one server cannot serve {kinds}", where=where, hint="write a manifest for each GPU")
    return next(iter(found), settings.manifest.gpu)


def _build(plans: Sequence[ServedModel]) -> list[str]:
    named = [f"--model={model.name}" for model in plans]
    return [*_REPOGEN, "build", _MANIFEST, "--index=$(JOB_COMPLETION_INDEX)", *named]


def _job_name(plans: Sequence[ServedModel], manifest: str) -> str:
    digest = hashlib.sha256(manifest.encode())
    for model in plans:
        assert model.build is not None
        digest.update(build_key(model.build).encode())
    return f"conversion-{digest.hexdigest()[:10]}"


def _nightly(models: Sequence[ServedModel], settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is the nightly job's own: where plans may have to be built, it runs where they can be."""
    plans = any(model.build for model in models)
    addresses = """$(getent ahostsv4 triton-pods | awk '$2 == "STREAM" {print "--url=" $1 ":8001"}')"""
    command = f"exec {' '.join([*_REPOGEN, 'sync', _MANIFEST, '--wait=900'])} {addresses}"
    return {
        "job": "nightly",
        "image": settings.builder_image if plans else settings.tools_image,
        "capability": values["capability"] if plans else "",
        "command": ["sh", "-c", command],
    }


def _monitoring(models: Sequence[ServedModel], settings: Settings, values: Mapping[str, Any]) -> dict[str, str]:
    target = settings.deploy.queue_target
    watched = {"models": [model.name for model in models]}
    given = {**values, **watched, "target": duration_text(target), "quantity": f"{target}u"}
    names = ("kustomization", "service-monitor", "scaling", "prometheus-adapter")
    made = {f"monitoring/{name}.yaml": _text(f"monitoring/{name}.yaml", settings, given) for name in names}
    return made | {"monitoring/prometheus-rule.yaml": _rules(models, settings)}


def _rules(models: Sequence[ServedModel], settings: Settings) -> str:
    """Return the rules of `repogen export monitoring` as prometheus-operator wants them."""
    made = monitoring.files(models, settings)
    return _RULE + re.sub(r"(?m)^(?=.)", "  ", made["prometheus/rules.yml"])


_RULE = """\
# The rules of `repogen export monitoring`, as prometheus-operator wants them.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: triton
spec:
"""


def _load(models: Sequence[ServedModel], settings: Settings, values: Mapping[str, Any]) -> dict[str, str]:
    roles = {
        "master": {"command": locust_master(models[0].name, "triton:8001"), "replicas": 1},
        "worker": {"command": locust_worker("locust-master"), "replicas": 2},
    }
    made = {
        f"load/{role}.yaml": _text("load/locust.yaml", settings, {**values, "role": role, **own})
        for role, own in roles.items()
    }
    for name in ("kustomization", "master-service"):
        made[f"load/{name}.yaml"] = _text(f"load/{name}.yaml", settings, values)
    return made


def _text(name: str, settings: Settings, values: Mapping[str, Any]) -> str:
    text = rendered(f"k8s/{name}.j2", settings, **values)
    return re.sub(r"\n(?:[ ]*\n)+", "\n", text).lstrip("\n")


def _quantity(size: int) -> str:
    """Return bytes as Kubernetes writes them."""
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
