"""The manifest's typed settings of how the repository is served in production: what `export` renders."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, StringConstraints, model_validator

from repogen.settings_schema import Duration, Size, Strict

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,40}[a-z0-9])?$")]
Image = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9./:_-]*(@sha256:[0-9a-f]{64})?$")]
Webhook = Annotated[str, StringConstraints(pattern=r"^https?://[^@\s?#]+$")]
Cron = Annotated[str, StringConstraints(pattern=r"^[-0-9*/,]+( [-0-9A-Za-z*/,]+){4}$")]


class ReplicasEntry(Strict):
    """How many servers there are: between these two, by the time that requests wait."""

    min: PositiveInt = Field(2, description="servers at the least")
    max: PositiveInt = Field(4, description="servers at the most")

    @model_validator(mode="after")
    def _ordered(self) -> "ReplicasEntry":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class DeployEntry(Strict):
    """Production, as `repogen export` renders it."""

    name: Label = Field("repogen", description="of the compose project and of what is made in Kubernetes")
    digest: Digest | None = Field(None, description="of Triton's image: a tag can be moved, a digest cannot")
    image: Image | None = Field(None, description="Triton's image, where it is not NGC's of the release")
    tools_image: Image | None = Field(None, description="repogen's own image, as docker/repogen.Dockerfile makes it")
    builder_image: Image | None = Field(None, description="that builds plans, as docker/builder.Dockerfile makes it")
    gpus: NonNegativeInt | None = Field(None, description="GPUs of one server; by default what the instances need")
    gpu_product: str | None = Field(None, description="node label nvidia.com/gpu.product of the GPUs that serve")
    replicas: ReplicasEntry = Field(ReplicasEntry(), description="how many servers", examples=[{"min": 2, "max": 8}])
    cpus: PositiveInt = Field(4, description="cores of one server")
    memory: Size = Field(8 * 2**30, description="of one server, shared memory included")
    shm: Size = Field(2**30, description="shared memory, through which the Python backend passes tensors")
    load_time: Duration | None = Field(None, description="longest start of a server; by default by its files' size")
    queue_target: Duration = Field(10_000, description="mean wait of a request at which servers are added")
    storage: Size = Field(50 * 2**30, description="of the volume with the repository and the caches")
    storage_class: str | None = Field(None, description="one that several nodes may mount (ReadWriteMany)")
    sources_claim: Label | None = Field(None, description="a PersistentVolumeClaim with the manifest's local files")
    secret: Label | None = Field(None, description="a Secret whose keys become the environment of S3's clients")
    schedule: Cron = Field("17 3 * * *", description="when the sources are looked through for new versions")
    alerts: Literal["slack", "pagerduty"] | Webhook | None = Field(
        None,
        description="whom Alertmanager tells: Slack or PagerDuty, with the secret in a file, or a webhook's URL",
        examples=["slack", "http://bridge:9000/alerts"],
    )
    pull_policy: Literal["Always", "IfNotPresent"] = Field("IfNotPresent", description="of the images, in Kubernetes")
