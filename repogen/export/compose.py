"""docker-compose.yml: Triton and what is around it, each service with as little as it needs."""

import os
from collections.abc import Sequence
from pathlib import Path

from repogen.errors import ManifestError
from repogen.export.flags import locust_master, locust_worker, triton_flags
from repogen.export.settings import Settings
from repogen.export.sizing import gpus_needed, load_seconds
from repogen.export.templating import rendered
from repogen.model import ServedModel

FILE = "docker-compose.yml"


def files(models: Sequence[ServedModel], settings: Settings) -> dict[str, str]:
    """Return docker-compose.yml. Raises ManifestError where the GPUs do not fit the instances."""
    manifest, folder = settings.manifest, settings.folder.absolute()
    project = _project(settings)
    text = rendered(
        f"compose/{FILE}.j2",
        settings,
        settings=settings,
        manifest=" ".join(_relative(manifest.source.path, folder).split()),  # it stands in a comment
        manifest_inside=f"/project/{_relative(manifest.source.path, project)}",
        project=_dotted(_relative(project, folder)),
        repository="" if manifest.store else _dotted(_relative(manifest.repository, folder)),
        store=manifest.store,
        names=[model.name for model in models],
        # One broken model must not take the others of this machine down; the healthcheck names it.
        flags=triton_flags(manifest.store or "/models", manifest.triton, exit_on_error=False),
        gpus=gpus_needed(models, settings),
        load_seconds=load_seconds(models, settings),
        memory=_size(settings.deploy.memory),
        shm=_size(settings.deploy.shm),
        alert_secret=settings.alert_secret,
        storage=_size(settings.deploy.storage),
        master=locust_master(f"${{LOCUST_MODEL:-{models[0].name}}}", "triton:8001"),
        worker=locust_worker("locust-master"),
    )
    return {FILE: text}


def _project(settings: Settings) -> Path:
    """Return the folder of the manifest and the repository, which the build service gets."""
    manifest = settings.manifest
    places = [manifest.source.path.parent, *([] if manifest.store else [manifest.repository.parent])]
    common = Path(os.path.commonpath([os.path.normpath(path.absolute()) for path in places]))
    if common == Path(common.anchor):
        where = manifest.where("repository")
        hint = "keep both in one project folder: a container that builds gets that, and not the machine's root"
        raise ManifestError("the manifest and the repository share no folder", where=where, hint=hint)
    return common


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(os.path.normpath(path.absolute()), folder)).as_posix()


def _dotted(path: str) -> str:
    """Return a relative path that Compose takes for one, and not for a volume's name."""
    return path if path.startswith(".") else f"./{path}"


def _size(size: int) -> str:
    """Return bytes as Compose writes them."""
    for unit, factor in (("g", 2**30), ("m", 2**20)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}b"
