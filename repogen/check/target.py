"""The servers that a repository can be checked for."""

from dataclasses import dataclass

from repogen.errors import RepogenError
from repogen.releases import EMBEDDED, RELEASES, Release

EVERY_BACKEND = frozenset(
    {"dali", "fil", "onnxruntime", "openvino", "python", "pytorch", "tensorrt", "vllm", "tensorrtllm"}
)


@dataclass(frozen=True)
class Target:
    """One server, started with auto-complete off: its Triton version, its backends, whether it has GPUs.

    `backends` is None where they are not known: an image may carry any.
    """

    name: str
    triton: tuple[int, int]
    release: Release
    backends: frozenset[str] | None = None
    gpu: bool = True
    cache: bool = True

    def at_least(self, triton: tuple[int, int]) -> bool:
        return self.triton >= triton


def target_of(server: str) -> Target:
    """Return the target that `embedded`, an NGC release (26.08) or a Triton version (2.51) names."""
    if server == "embedded":
        return Target(server, _version(EMBEDDED), EMBEDDED, frozenset({"python"}), gpu=False, cache=False)
    for release in RELEASES.values():
        if server in (release.ngc, release.triton, release.triton.rpartition(".")[0]):
            return Target(server, _version(release), release)
    first, last = min(RELEASES), max(RELEASES)
    raise RepogenError(
        f"the server {server!r} is not known",
        hint=f"give embedded, an NGC release from {first} to {last}, or a Triton version like {EMBEDDED.triton}",
    )


def _version(release: Release) -> tuple[int, int]:
    major, minor, *_ = release.triton.split(".")
    return int(major), int(minor)
