"""Rendered configs, remembered by everything that decides them."""

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from repogen.assets import TEMPLATES
from repogen.cache import cached
from repogen.model import ServedModel


def rendered(model: ServedModel) -> str:
    """Return `render(model)`, proved once for each content. Raises RenderError."""

    def make() -> str:
        from repogen.render import render

        return render(model)

    return str(cached("configs", f"{_rules(model.templates)}\n{model!r}", make))


@lru_cache
def _rules(own: Path | None) -> str:
    """Return the digest of the templates, of the code that fills them, and of Triton's schema."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    templates = [*sorted(TEMPLATES.rglob("*.j2")), *(sorted(own.rglob("*.j2")) if own else ())]
    for path in (*templates, *(package / f"{name}.py" for name in ("render", "pbtxt", "fingerprint"))):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    client = find_spec("tritonclient")
    for folder in (client.submodule_search_locations if client else None) or ():
        digest.update((Path(folder) / "grpc" / "model_config_pb2.py").read_bytes())
    return digest.hexdigest()
