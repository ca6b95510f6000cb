"""What ties a config to the files beside it: apart from rendering, so that reading a repository needs no protobuf."""

import hashlib
from collections.abc import Mapping

from repogen.model import ServedModel


def fingerprint(unsigned: str, files: Mapping[str, str]) -> str:
    """Return the sha256 over a config without its fingerprint and over the version folder's files (name: sha256)."""
    digest = hashlib.sha256(unsigned.encode())
    for name, content in sorted(files.items()):
        digest.update(f"\0{name}\0{content}".encode())
    return digest.hexdigest()


def model_files(model: ServedModel) -> dict[str, str]:
    """Return the published files of `model` by their path in its folder, with their sha256."""
    beside = {file.name: hashlib.sha256(file.content).hexdigest() for file in model.extra_files}
    own = {f"{model.version}/{file.name}": file.sha256 for file in model.files}
    return own | {file.name: file.sha256 for file in model.carried} | beside
