"""The containers that compose and Kubernetes files start, in one form, with the line on which each thing stands."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repogen.yaml_source import Key, YamlSource, read_documents

_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?-([^}]*)\}")
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")
_PODS: Mapping[str, Key] = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}


@dataclass(frozen=True)
class Port:
    """A port that others reach; `public` where not only this machine does."""

    number: str
    public: bool


@dataclass(frozen=True)
class Mount:
    """What is mounted where; `kind` is bind, volume, or the Kubernetes volume's own word."""

    target: str
    read_only: bool
    kind: str


@dataclass(frozen=True)
class Service:
    """One container. `line_of` knows image, command, ports, mounts, security, environment and limits."""

    file: str
    name: str
    image: str
    command: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # values that stand in the file
    root: bool = True  # runs, or may run, as root
    writable: bool = True  # its own file system
    privileges: bool = True  # has capabilities, or may get some
    host: str = ""  # the first of the machine's namespaces that it shares
    memory: bool = False  # is limited
    cluster: bool = False  # reached by every pod that no policy keeps away
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, part: str) -> int:
        return self.lines.get(part) or self.lines.get("", 1)

    @property
    def serves(self) -> bool:
        """Return whether it runs Triton."""
        return any(word.startswith("--model-repository") or word == "tritonserver" for word in self.command)

    def flag(self, name: str) -> str | None:
        """Return the value of Triton's flag, None where it is not given; "" where it has no value."""
        for index, word in enumerate(self.command):
            if word.partition("=")[0] == f"--{name}":
                after = "".join(self.command[index + 1 : index + 2])
                return word.partition("=")[2] if "=" in word else "" if after.startswith("-") else after
        return None


def read_services(paths: Sequence[Path]) -> list[Service]:
    """Return every container of the compose and Kubernetes files at `paths`; folders are looked through.

    Raises ManifestError for a file that is no YAML.
    """
    return [service for path in paths for file in _yaml_files(path) for service in _services(file, path)]


def _yaml_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for kind in ("*.yml", "*.yaml") for file in (*path.glob(kind), *path.glob(f"*/{kind}")))


def _services(file: Path, given: Path) -> Iterator[Service]:
    name = file.relative_to(given).as_posix() if given.is_dir() else str(file)
    for document in read_documents(file):
        data = document.data
        if not isinstance(data, dict):
            continue
        if isinstance(data.get("services"), dict):
            yield from (_composed(name, document, key, _merged(it)) for key, it in data["services"].items())
        elif isinstance(kind := data.get("kind"), str) and kind in _PODS:
            yield from _contained(name, document, _PODS[kind])


def _merged(value: Any) -> dict[str, Any]:
    """Return a mapping with what its merge key brings under it."""
    if not isinstance(value, dict):
        return {}
    base = value.get("<<")
    bases = base if isinstance(base, list) else [base] if base else []
    result: dict[str, Any] = {}
    for one in reversed(bases):
        result |= _merged(one)
    return result | {key: item for key, item in value.items() if key != "<<"}


def _composed(file: str, source: YamlSource, name: str, said: Mapping[str, Any]) -> Service:
    place: Key = ("services", name)
    drops = [str(item) for item in said.get("cap_drop") or []]
    security = [str(item).replace("=", ":") for item in said.get("security_opt") or []]
    contained = "ALL" in drops and "no-new-privileges:true" in security and not said.get("privileged")
    user = _resolved(said.get("user", "0")).partition(":")[0]
    limits = ((said.get("deploy") or {}).get("resources") or {}).get("limits") or {}
    parts = {"image": "image", "command": "command", "ports": "ports", "mounts": "volumes", "limits": "mem_limit"}
    lines = {ours: _line(source, place, theirs) for ours, theirs in parts.items()}
    host = next((key for key in ("network_mode", "ipc", "pid") if said.get(key) == "host"), "")
    return Service(
        file,
        name,
        _resolved(said.get("image", "")),
        _words(said.get("entrypoint")) + _words(said.get("command")),
        tuple(_published(port) for port in said.get("ports") or []),
        tuple(_mounted(volume) for volume in said.get("volumes") or []),
        _environment(said.get("environment")),
        root=user in ("0", "root", ""),
        writable=said.get("read_only") is not True,
        privileges=not contained,
        host=host,
        memory="mem_limit" in said or "memory" in limits,
        lines={"": source.lines.get(place, 1), "environment": _line(source, place, "environment"), **lines},
    )


def _line(source: YamlSource, place: Key, key: str) -> int:
    """Return the line of a service's key, also where a merge key brings it; 0 where it is not said."""
    for depth in range(4):
        if (line := source.lines.get((*place, *["<<"] * depth, key))) is not None:
            return line
    return 0


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(str(word) for word in value or ())


def _resolved(value: Any) -> str:
    """Return text with the defaults of compose's `${NAME:-default}`."""
    return _DEFAULT.sub(lambda match: match[1], str(value))


def _published(port: Any) -> Port:
    if isinstance(port, dict):
        host = str(port.get("host_ip", ""))
        return Port(str(port.get("target", "")), not host.startswith(_LOOPBACK))
    host, _, target = _resolved(port).rpartition(":")
    return Port(target.partition("/")[0], not host.startswith(_LOOPBACK))


def _mounted(volume: Any) -> Mount:
    if isinstance(volume, dict):
        return Mount(str(volume.get("target", "")), volume.get("read_only") is True, str(volume.get("type", "")))
    parts = _resolved(volume).split(":")
    options = parts[2].split(",") if len(parts) > 2 else []  # noqa: PLR2004 - source:target:options
    kind = "bind" if parts[0].startswith((".", "/", "~")) else "volume"
    return Mount(parts[1] if len(parts) > 1 else parts[0], "ro" in options, kind)


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(key): "" if item is None else str(item) for key, item in value.items()}
    return {str(item).partition("=")[0]: str(item).partition("=")[2] for item in value or ()}


def _contained(file: str, source: YamlSource, place: Key) -> Iterator[Service]:
    pod: Any = source.data
    for part in place:
        pod = pod.get(part) if isinstance(pod, dict) else None
    if not isinstance(pod, dict):
        return
    volumes = {str(item.get("name")): _volume_kind(item) for item in pod.get("volumes") or [] if isinstance(item, dict)}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(kind) or []):
            yield _container(file, source, (*place, kind, index), pod, container, volumes)


def _volume_kind(volume: Mapping[str, Any]) -> str:
    return next((key for key in volume if key != "name"), "")


def _container(
    file: str,
    source: YamlSource,
    place: Key,
    pod: Mapping[str, Any],
    said: Mapping[str, Any],
    volumes: Mapping[str, str],
) -> Service:
    shared, own = pod.get("securityContext") or {}, said.get("securityContext") or {}
    drops = (own.get("capabilities") or {}).get("drop") or []
    contained = "ALL" in drops and own.get("allowPrivilegeEscalation") is False and not own.get("privileged")
    user = own.get("runAsUser", shared.get("runAsUser", 0))
    nobody = own.get("runAsNonRoot", shared.get("runAsNonRoot")) is True or user != 0
    parts = {"image": "image", "command": "args", "ports": "ports", "mounts": "volumeMounts"}
    parts |= {"security": "securityContext", "environment": "env", "limits": "resources"}
    return Service(
        file,
        str(said.get("name", "")),
        str(said.get("image", "")),
        _words(said.get("command")) + _words(said.get("args")),
        tuple(Port(str(port.get("containerPort")), public=False) for port in said.get("ports") or []),
        tuple(_pod_mount(mount, volumes) for mount in said.get("volumeMounts") or []),
        {str(item["name"]): str(item["value"]) for item in said.get("env") or [] if "value" in item},
        root=not nobody,
        writable=own.get("readOnlyRootFilesystem") is not True,
        privileges=not contained,
        host=next((key for key in ("hostNetwork", "hostIPC", "hostPID") if pod.get(key)), ""),
        memory="memory" in ((said.get("resources") or {}).get("limits") or {}),
        cluster=True,
        lines={"": source.lines.get(place, 1)}
        | {ours: source.lines.get((*place, theirs), 0) for ours, theirs in parts.items()},
    )


def _pod_mount(mount: Mapping[str, Any], volumes: Mapping[str, str]) -> Mount:
    kind = volumes.get(mount.get("name", ""), "")
    return Mount(str(mount.get("mountPath", "")), mount.get("readOnly") is True, kind)
