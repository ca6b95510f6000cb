"""The key of a plan: a sha256 over everything that decides it. Pure."""

import hashlib
import json
from typing import Any

from repogen.model import Build, Profile

_FORMAT = 1
"""Changes whenever the way in which plans are built does: older ones are then never reused."""


def build_key(build: Build) -> str:
    """Return the key under which the plan of `build` is kept: same key, same plan; any difference, another key."""
    text = json.dumps(facts_of(build), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def facts_of(build: Build) -> dict[str, Any]:
    """Return what the key is made of, by name. Where and by whom it is built is no part of it."""
    options = build.options
    return {
        "format": _FORMAT,
        "onnx": build.onnx[0].sha256,
        "external": sorted((file.name, file.sha256) for file in build.onnx[1:]),
        "precision": build.precision,
        "lowering": build.lowering,
        "profiles": [_profile(profile) for profile in build.profiles],
        "kind": build.kind,
        "version": build.version,
        "capability": build.capability,
        "workspace": options.workspace,
        "optimization_level": options.optimization_level,
        "tf32": options.tf32,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
        "plugins": [(file.name, file.sha256) for file in options.plugins],
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {"shapes": sorted(profile.shapes.items()), "values": sorted(profile.values.items())}
