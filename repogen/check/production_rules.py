"""RG92x, RG93x: what a deployment must not be in production: asked with `--profile production` only."""

import re
from collections.abc import Iterator

from repogen.check.deployment import Mount, Service
from repogen.check.findings import Severity
from repogen.check.rule import Problem, Rule, Tree
from repogen.check.subject import Subject

FIXED = "26.05"
"""The first release after NVIDIA's bulletin 5828 of 20 May 2026 (CVE-2026-24206 to -24209), which names no tag here."""

_RELEASE = re.compile(r"tritonserver:(\d\d\.\d\d)")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_SECRET = re.compile(r"(?i)(^|_)(password|passwd|secret|token|api_?key|private_?key|access_?key(_id)?|admin_?key)(_|$)")
_BY_FILE = ("FILE", "PATH")
_CONTROL = "model-repository"
_NETWORKS = ("network_mode", "hostNetwork")


def _service(subject: Subject) -> Service:
    assert subject.service is not None
    return subject.service


def _old(subject: Subject) -> Iterator[Problem]:
    match = _RELEASE.search(_service(subject).image)
    if match and match[1] < FIXED:
        message = f"Triton {match[1]} lacks fixes of known vulnerabilities, some of which need no credentials"
        yield Problem(message, field="image", hint=f"use {FIXED} or newer")


def _by_tag(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    if service.image and not _DIGEST.search(service.image):
        hint = "NAME:TAG@sha256:…, as `docker buildx imagetools inspect` prints it"
        hint += "; deploy.digest in the manifest" if service.serves else ""
        severity: Severity | None = None if service.serves else "warning"
        yield Problem(f"{service.image} is another image whenever its tag is moved", "image", hint, severity=severity)


def _open_control(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    if service.flag("model-control-mode") not in ("explicit", "poll"):
        return
    for protocol, number, flag in (
        ("grpc", "8001", "grpc-restricted-protocol"),
        ("http", "8000", "http-restricted-api"),
    ):
        off = service.flag(f"allow-{protocol}") in ("false", "0")
        restricted = _CONTROL in (service.flag(flag) or "").partition(":")[0].split(",")
        public = (
            service.cluster
            or service.host in _NETWORKS
            or any(it.public for it in service.ports if it.number == number)
        )
        if public and not restricted and not off:
            message = f"who reaches port {number} may load models, and the code in them runs in the server"
            hint = f"publish it on 127.0.0.1 only, or --{flag}={_CONTROL}:admin-key=(a reference to a secret)"
            yield Problem(message, field="ports" if service.ports else "command", hint=hint)


def _writable_repository(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    for mount in _repository_mounts(service):
        if not mount.read_only:
            message = f"the server may write the repository that it serves ({mount.target})"
            yield Problem(message, field="mounts", hint="mount it read-only: repogen writes it from elsewhere")


def _repository_mounts(service: Service) -> Iterator[Mount]:
    repository = service.flag("model-repository") or ""
    for mount in service.mounts:
        inside = repository == mount.target or repository.startswith(mount.target.rstrip("/") + "/")
        if service.serves and mount.target and inside:
            yield mount


def _config_map(subject: Subject) -> Iterator[Problem]:
    for mount in _repository_mounts(_service(subject)):
        if mount.kind == "configMap":
            message = "a ConfigMap holds links such as ..data, which Triton takes for models"
            yield Problem(message, field="mounts", hint="use a volume or S3")


def _polls(subject: Subject) -> Iterator[Problem]:
    if _service(subject).flag("model-control-mode") == "poll":
        message = "polling has no synchronisation with who writes the repository"
        yield Problem(message, field="command", hint="--model-control-mode=explicit --load-model=*")


def _nothing_after_restart(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    if service.flag("model-control-mode") == "explicit" and service.flag("load-model") is None:
        message = "after a restart the server serves nothing, and calls itself ready"
        yield Problem(message, field="command", hint="--load-model=*")


def _as_root(subject: Subject) -> Iterator[Problem]:
    if _service(subject).serves and _service(subject).root:
        yield Problem("Triton runs as root", field="security", hint="its images have the user 1000, triton-server")


def _writable(subject: Subject) -> Iterator[Problem]:
    if _service(subject).serves and _service(subject).writable:
        hint = "read_only: true, or readOnlyRootFilesystem: true, with a tmpfs on /tmp"
        yield Problem("backends, libraries and programs of the container can be overwritten", "security", hint)


def _privileges(subject: Subject) -> Iterator[Problem]:
    if _service(subject).serves and _service(subject).privileges:
        hint = "drop ALL capabilities; no-new-privileges:true, or allowPrivilegeEscalation: false"
        yield Problem("the container has capabilities, or may gain some", field="security", hint=hint)


def _host(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    if service.serves and service.host:
        hint = "publish ports; give it shared memory of its own (shm_size, or an emptyDir on /dev/shm)"
        yield Problem(f"it shares the machine's own namespace ({service.host})", field="security", hint=hint)


def _secret(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    hint = "refer to it: secretKeyRef, or a secret's file"
    for name, value in service.environment.items():
        if _SECRET.search(name) and not name.endswith(_BY_FILE) and value and "$" not in value:
            yield Problem(f"the value of {name} stands in the file", field="environment", hint=hint)
    for flag in ("grpc-restricted-protocol", "http-restricted-api"):
        value = (service.flag(flag) or "").rpartition("=")[2]
        if value and "$" not in value:
            yield Problem(f"the key of --{flag} stands in the file", field="command", hint=hint)


def _unlimited(subject: Subject) -> Iterator[Problem]:
    if _service(subject).serves and not _service(subject).memory:
        yield Problem("its memory is not limited: the machine's is at stake", "limits", "mem_limit, or limits.memory")


def _autocomplete(subject: Subject) -> Iterator[Problem]:
    service = _service(subject)
    if service.serves and service.flag("disable-auto-complete-config") is None:
        message = "what is served is what the server guesses of the files, not what the configs say"
        yield Problem(message, field="command", hint="--disable-auto-complete-config: repogen's configs are complete")


_DIGESTED = f"nvcr.io/nvidia/tritonserver:26.08-py3@sha256:{'ab' * 32}"
_COMPOSE = f"""\
services:
  triton:
    image: {_DIGESTED}
    command: [tritonserver, --model-repository=/models, --model-control-mode=explicit, "--load-model=*",
      --disable-auto-complete-config]
    ports: ["127.0.0.1:8000:8000", "127.0.0.1:8001:8001"]
    volumes: ["./model_repository:/models:ro"]
    user: "1000:1000"
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    mem_limit: 8g
"""
_POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: triton}}
spec:
  securityContext: {{runAsNonRoot: true}}
  containers:
    - name: triton
      image: {_DIGESTED}
      args: [--model-repository=/srv/models, --disable-auto-complete-config]
      resources: {{limits: {{memory: 8Gi}}}}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {{drop: [ALL]}}
      volumeMounts: [{{name: models, mountPath: /srv, readOnly: true}}]
  volumes:
    - name: models
      persistentVolumeClaim: {{claimName: models}}
"""


def _compose(old: str = "", new: str = "") -> Tree:
    assert old in _COMPOSE, old
    return {"docker-compose.yml": _COMPOSE.replace(old, new, 1) if old else _COMPOSE}


def _pod(old: str = "", new: str = "") -> Tree:
    assert old in _POD, old
    return {"triton.yaml": _POD.replace(old, new, 1) if old else _POD}


RULES: tuple[Rule, ...] = (
    Rule(
        "RG920",
        "error",
        "Triton is older than the fixes of known vulnerabilities",
        f"Releases before {FIXED} let others in without credentials, or end at a request (bulletins of 2025 and 2026).",
        _old,
        bad=_compose("26.08", "24.10"),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG921",
        "error",
        "An image is named by its tag alone",
        "A tag can be moved: tomorrow's restart runs something that nobody tested. Of other services it is a warning.",
        _by_tag,
        bad=_compose(f"@sha256:{'ab' * 32}", ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG922",
        "error",
        "The control API is open",
        "Loading a model over gRPC or HTTP can carry its code along: it is running code in the server, by design.",
        _open_control,
        bad=_compose("127.0.0.1:8001:8001", "8001:8001"),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG923",
        "error",
        "The repository is mounted writable",
        "Code that runs in the server could then change what all servers load next.",
        _writable_repository,
        bad=_compose("/models:ro", "/models"),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG924",
        "error",
        "The repository is a ConfigMap",
        "Kubernetes puts links and a folder ..data in it. Triton takes that for a model, and does not start.",
        _config_map,
        bad=_pod("persistentVolumeClaim: {claimName: models}", "configMap: {name: models}"),
        good=_pod(),
        scope="deployment",
    ),
    Rule(
        "RG925",
        "error",
        "The server polls the repository",
        "It may read a model while that is written, and one entry that cannot be read unloads all models.",
        _polls,
        bad=_compose('--model-control-mode=explicit, "--load-model=*"', "--model-control-mode=poll"),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG926",
        "error",
        "A restart serves nothing",
        "In EXPLICIT mode the server loads at its start only what --load-model names.",
        _nothing_after_restart,
        bad=_compose(' "--load-model=*",', ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG927",
        "error",
        "Triton runs as root",
        "What breaks out of a model is root in the container, and one step from root on the machine.",
        _as_root,
        bad=_compose('    user: "1000:1000"\n', ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG928",
        "warning",
        "The container's file system is writable",
        "Backends, repository agents and caches are libraries that the server loads from there.",
        _writable,
        bad=_compose("    read_only: true\n", ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG929",
        "error",
        "The container has privileges",
        "Triton needs no capability.",
        _privileges,
        bad=_compose("    cap_drop: [ALL]\n", ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG930",
        "error",
        "The container shares the machine's namespaces",
        "With the machine's shared memory others read requests; with its network every port is public.",
        _host,
        bad=_compose("    mem_limit", "    ipc: host\n    mem_limit"),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG931",
        "error",
        "A secret's value stands in the file",
        "Files are committed, copied and shown; `docker inspect` prints the environment.",
        _secret,
        bad=_compose("    mem_limit", "    environment: {AWS_SECRET_ACCESS_KEY: abc}\n    mem_limit"),
        good=_compose(
            "    mem_limit", "    environment: {TRITON_CLOUD_CREDENTIAL_PATH: /run/secrets/s3}\n    mem_limit"
        ),
        scope="deployment",
    ),
    Rule(
        "RG932",
        "warning",
        "Memory is not limited",
        "A large request, or many, take the memory of everything else on the machine.",
        _unlimited,
        bad=_compose("    mem_limit: 8g\n", ""),
        good=_compose(),
        scope="deployment",
    ),
    Rule(
        "RG933",
        "warning",
        "Configs are completed by the server",
        "A config that is incomplete then serves something that nobody wrote down.",
        _autocomplete,
        bad=_compose(",\n      --disable-auto-complete-config", ""),
        good=_compose(),
        scope="deployment",
    ),
)
