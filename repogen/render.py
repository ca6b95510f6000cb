"""Render `config.pbtxt` from Jinja templates, and prove that it says what is meant."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from repogen import pbtxt
from repogen.assets import TEMPLATES
from repogen.fingerprint import fingerprint, model_files
from repogen.model import ServedModel
from repogen.pbtxt import RenderError


def render(model: ServedModel, *, where: str = "") -> str:
    """Return the complete `config.pbtxt` of `model`, with the fingerprint of itself and the files beside it.

    The files of `model.templates` stand in for ours by name. Raises RenderError when the rendered text does not
    parse with Triton's schema, or parses to something else than what `model` means.
    """
    unsigned = _text(model, "", where)
    return _text(model, fingerprint(unsigned, model_files(model)), where)


def _text(model: ServedModel, mark: str, where: str) -> str:
    meant = pbtxt.intended(model, mark, where)
    template = _environment(model.templates).get_template("config.pbtxt.j2")
    try:
        text: str = template.render(config=meant, source=model.source, schema=pbtxt.schema())
    except Exception as error:
        raise RenderError(
            f"the template failed: {error}", where=f"templates/config.pbtxt.j2 for {model.name}"
        ) from error
    _prove(text, meant, model.name)
    return text


def _prove(text: str, meant: Any, name: str) -> None:
    from google.protobuf.text_format import ParseError

    where = f"templates/config.pbtxt.j2 for {name}"
    try:
        said = pbtxt.parse(text)
    except ParseError as error:
        raise RenderError(f"rendered text that Triton cannot parse: {error}", where=where) from None
    if said != meant:
        fields = {field.name for field, _ in (*said.ListFields(), *meant.ListFields())}
        unlike = sorted(field for field in fields if getattr(said, field) != getattr(meant, field))
        raise RenderError(f"rendered a config that differs from what was meant in {', '.join(unlike)}", where=where)


@lru_cache
def _environment(templates: Path | None) -> Any:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    folders = [*([templates] if templates else []), TEMPLATES]
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters["quote"] = pbtxt.quote
    environment.globals["remaining"] = pbtxt.remaining
    return environment
