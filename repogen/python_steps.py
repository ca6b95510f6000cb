"""Python models: their code, what lies beside it, which code may run, and the packages that it needs."""

import ast
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from repogen.assets import TEMPLATES
from repogen.errors import ManifestError, ModelError, ServerError
from repogen.files import model_file
from repogen.manifest import ModelEntry
from repogen.model import ModelFile, ServedModel

BASE = TEMPLATES / "steps" / "repogen_step.py"
REQUIREMENTS = "repogen_requirements"
"""A parameter of the config: the packages that the model's code needs."""
Where = Callable[..., str]
_PROBE = """
import importlib, importlib.metadata as metadata, json, sys
owners = metadata.packages_distributions() if hasattr(metadata, "packages_distributions") else {}
found = {}
for name in json.loads(sys.argv[1]):
    try: version = metadata.version(name)
    except metadata.PackageNotFoundError: found[name] = [None, ""]; continue
    key = metadata.distribution(name).metadata["Name"]
    problem = ""
    for module, names in owners.items():
        if key in names and not module.startswith("_"):
            try: importlib.import_module(module)
            except Exception as error: problem = "%s: %s" % (type(error).__name__, error)
    found[name] = [version, problem]
print(json.dumps(found))
"""


def python_files(path: Path, entry: ModelEntry, folder: Path, *, pinned: bool, where: Where) -> tuple[ModelFile, ...]:
    """Return the files of a Python model's version folder: its code, what lies beside it, and the base that it uses.

    `folder` is that of the manifest. With `pinned`, code runs only where its sha256 is written in the manifest.
    """
    if not path.is_file():
        hint = "name the model.py that Triton's Python backend is to run"
        raise ModelError("there is no such file", where=str(path), hint=hint)
    code = model_file("model.py", path)
    _allow(code, entry.sha256, where("sha256"), pinned=pinned)
    found = [code]
    for index, said in enumerate(entry.files):
        source = folder / said.source
        place = where("files", index)
        if not source.is_file():
            raise ManifestError(
                f"there is no file {said.source}", where=place, hint="paths are relative to the manifest"
            )
        file = model_file(source.name, source)
        if any(file.name == other.name for other in found):
            raise ManifestError(f"{file.name} is there already", where=place, hint="files lie side by side: rename one")
        _allow(file, said.sha256, place, pinned=pinned and source.suffix == ".py")
        found.append(file)
    if _imports(found, BASE.stem) and all(file.name != BASE.name for file in found):
        found.append(model_file(BASE.name, BASE))
    return tuple(found)


def _allow(file: ModelFile, expected: str | None, where: str, *, pinned: bool) -> None:
    """Refuse a file that is not the one that the manifest names, and with `pinned` one that it does not name."""
    if expected == file.sha256:
        return
    if expected is not None:
        hint = f"Triton runs it as code: read what changed, then write sha256: {file.sha256}"
        if file.source.suffix != ".py":
            hint = "it was replaced, or the manifest is out of date"
        raise ManifestError(f"{file.source} has sha256 {file.sha256}", where=where, hint=hint)
    if pinned:
        hint = f"read it, then write sha256: {file.sha256}"
        message = (
            f"{file.source} is code that Triton would run, and pinned_code allows only what is named by its sha256"
        )
        raise ManifestError(message, where=where, hint=hint)


def code_notes(files: Sequence[ModelFile], entry: ModelEntry) -> tuple[str, ...]:
    """Return what people should know: that code runs, and whether it may change unseen."""
    pins = {entry.sha256, *(said.sha256 for said in entry.files)}
    loose = [file.source.name for file in files if file.source.suffix == ".py" and file.source != BASE
             and file.sha256 not in pins]  # fmt: skip
    return (f"runs code as Triton's own user, not pinned by a sha256: {', '.join(loose)}",) if loose else ()


def _imports(files: Sequence[ModelFile], module: str) -> bool:
    for file in files:
        if file.source.suffix != ".py":
            continue
        try:
            tree = ast.parse(file.source.read_bytes())
        except SyntaxError:  # whoever loads it says so, with the line
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            if module in names:
                return True
    return False


def check_written(requirements: Sequence[str], where: Where) -> None:
    """Raise ManifestError for a requirement that pip could not read."""
    from packaging.requirements import InvalidRequirement, Requirement

    for index, text in enumerate(requirements):
        try:
            Requirement(text)
        except InvalidRequirement as error:  # noqa: PERF203 - a handful
            message = f"{text!r} is no requirement: {str(error).splitlines()[0]}"
            raise ManifestError(message, where=where("requirements", index), hint="such as tokenizers>=0.20") from None


def check_installed(models: Sequence[ServedModel], python: Path, manifest: str) -> None:
    """Raise ServerError where the server's Python lacks what a model's code needs, or cannot import it."""
    from packaging.requirements import Requirement

    wanted = {
        model.name: [Requirement(text) for text in json.loads(model.parameters.get(REQUIREMENTS, "[]"))]
        for model in models
    }
    names = sorted(
        {one.name for many in wanted.values() for one in many if one.marker is None or one.marker.evaluate()}
    )
    if not names:
        return
    installed = _installed(python, names)
    for model, requirements in wanted.items():
        for one in requirements:
            if one.name not in installed:
                continue
            version, problem = installed[one.name]
            if version is None:
                problem = "it is not installed"
            elif not one.specifier.contains(version, prereleases=True):
                problem = f"{version} is installed"
            elif problem:
                problem = f"{version} cannot be imported: {problem}"
            if problem:
                where = f"{manifest} models.{model}.requirements"
                hint = f"{python} -m pip install '{one}'"
                raise ServerError(f"{where}: needs {one}, and {problem}", hint=hint)


def _installed(python: Path, names: Sequence[str]) -> Mapping[str, tuple[str | None, str]]:
    command = [str(python), "-I", "-c", _PROBE, json.dumps(names)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return {name: (row[0], row[1]) for name, row in json.loads(done.stdout.splitlines()[-1]).items()}
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise ServerError(f"{python} does not tell which packages it has: {error}") from error
