"""Text out of templates/: Jinja in a sandbox, the user's templates in front of ours."""

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from repogen.assets import TEMPLATES
from repogen.errors import RepogenError
from repogen.export.settings import Settings


def rendered(name: str, settings: Settings, /, **values: Any) -> str:
    """Return the template `name` with `values`, which are put in as they are or, by `| quote`, as YAML strings."""
    try:
        text: str = _environment(settings.manifest.templates).get_template(name).render(**values)
    except Exception as error:
        raise RepogenError(f"the template failed: {error}", where=f"templates/{name}") from error
    return text


@lru_cache
def _environment(templates: Path | None) -> Any:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        loader=FileSystemLoader([*([templates] if templates else []), TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    return environment


def quote(value: object) -> str:
    """Return `value` as a double-quoted YAML string, which JSON's are too."""
    return json.dumps(str(value), ensure_ascii=False)
