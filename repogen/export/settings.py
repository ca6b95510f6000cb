"""What an export knows beside the models: the manifest, and where the files will lie."""

from dataclasses import dataclass
from pathlib import Path

from repogen.deploy_schema import DeployEntry
from repogen.manifest import Manifest

_NGC = "nvcr.io/nvidia/tritonserver"
_ALERT_SECRETS = {"slack": "incoming webhook's URL", "pagerduty": "integration's routing key"}


@dataclass(frozen=True)
class Settings:
    """`folder` is where the files will lie; nothing is written there by who renders them."""

    manifest: Manifest
    folder: Path

    @property
    def deploy(self) -> DeployEntry:
        return self.manifest.deploy

    @property
    def name(self) -> str:
        return self.deploy.name

    @property
    def image(self) -> str:
        """Triton's image: by digest where one is given."""
        image = self.deploy.image or f"{_NGC}:{self.manifest.triton}-py3"
        return f"{image}@{self.deploy.digest}" if self.deploy.digest and "@" not in image else image

    @property
    def tools_image(self) -> str:
        from repogen import __version__

        return self.deploy.tools_image or f"repogen:{__version__}"

    @property
    def builder_image(self) -> str:
        return self.deploy.builder_image or f"repogen-builder:{self.manifest.triton}"

    @property
    def alert_secret(self) -> str:
        """What the file with the alert receiver's secret holds, "" where there is none."""
        return _ALERT_SECRETS.get(self.deploy.alerts or "", "")
