"""Vertex AI as a `Platform`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpu_components.core.base.container_images import is_in_registry
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.work.beam.options import DATAFLOW
from tpu_pipelines.config.settings import MAIL, Settings
from tpu_pipelines.platforms.vertex import settings_rules

if TYPE_CHECKING:
    from tpu_components.core.machines.machine_spec import MachineSpec
    from tpu_pipelines.config.configuration import Config
    from tpu_pipelines.platforms.findings import Check
    from tpu_pipelines.platforms.jobs import PlacedStep, Placement, PlatformClient


class Vertex:
    """Vertex AI Pipelines. The training step is a custom job on a machine with a TPU or GPUs."""

    name = "vertex"
    title = "Vertex AI"
    catalogue_name = "vertex"
    required_settings = settings_rules.REQUIRED
    own_settings = ("network_attachment", "encryption_key", "tensorboard", "experiment")
    unused_options = dict.fromkeys(
        ("cpu", "memory"), "A custom job uses its whole machine. Remove it, or choose a larger machine."
    )
    readable_places = "Cloud Storage"
    accepts_estimated_timeout = True  # The launcher creates the job while the pipeline runs.
    beam_runner = DATAFLOW

    @property
    def longest_task_seconds(self) -> float:
        """Seven days, in seconds."""
        from tpu_components.preflight_training.params import VERTEX_TASK_SECONDS

        return VERTEX_TASK_SECONDS

    def check_settings(self, settings: Settings) -> None:
        """Check labels, network, TensorBoard, and the region of all regional resources."""
        settings_rules.check(settings)

    def check_config(self, config: "Config") -> None:
        """Check time limits, disks, the number of artifacts, and the resources of steps that use a whole host."""
        from tpu_pipelines.platforms.vertex.resources import check_config

        check_config(config)

    def can_read(self, place: Location) -> bool:
        """Return whether a location is on Cloud Storage."""
        return place.scheme is Scheme.GOOGLE

    def can_pull(self, image: str) -> bool:
        """Return whether an image is in a registry on the internet."""
        return is_in_registry(image)

    def in_region(self, machine: "MachineSpec", region: str) -> "MachineSpec":
        """Return the machine, with its region set to `region` if it has none."""
        return machine.in_region(region)

    def training_retries(self, machine: "MachineSpec") -> int:
        """Return 0, because the service restarts a custom job whose machine is lost."""
        return 0

    def memory_request(self, config: "Config", step: str, gib: float) -> float | None:
        """Return the memory to request, in GiB, so that `gib` GiB remain beside the service's agents.

        Return None if the step has a whole host, and therefore needs no request.
        """
        from tpu_pipelines.platforms.vertex.resources import memory_request

        return memory_request(config, step, gib)

    def disk_request(self, num_bytes: int) -> str:
        """Return an empty string, because the disk of a step cannot be set."""
        return ""

    def disk_warning(self, num_bytes: int) -> str:
        """Return a warning if records of this size may not fit on a step's disk, otherwise an empty string."""
        from tpu_pipelines.platforms.vertex.resources import disk_warning

        return disk_warning(num_bytes)

    def on_machine(
        self, component: Any, machine: "MachineSpec", settings: Settings, placement: "Placement"
    ) -> "PlacedStep":
        """Return a step that runs a component as a custom job of Vertex AI."""
        from tpu_pipelines.platforms.vertex.custom_job import as_custom_job

        return as_custom_job(component, machine, settings, placement)

    def restart_warning(self, machine: "MachineSpec", settings: Settings) -> str:
        """Return an empty string, because the service restarts jobs, and checkpoints are in the bucket."""
        return ""

    def place(self, task: Any, step: str, config: "Config", settings: Settings) -> Any:
        """Set a step's time limit."""
        from tpu_pipelines.platforms.resources import resources_of
        from tpu_pipelines.platforms.vertex.resources import limit_time

        return limit_time(task, resources_of(config, step).timeout)

    def exit_task(self, settings: Settings) -> Any:
        """Add and return the task that sends e-mails, or return None if `notify` is not an e-mail address."""
        if not settings.notify.startswith(MAIL):
            return None
        from tpu_pipelines.platforms.vertex.notification import vertex_pipelines_notification_email

        return vertex_pipelines_notification_email(recipients=settings.notify.removeprefix(MAIL).split(","))

    def connect(self, settings: Settings) -> "PlatformClient":
        """Return a client of the service."""
        from tpu_pipelines.platforms.vertex.client import VertexClient

        return VertexClient(settings)

    def checks(self, config: "Config", settings: Settings, context: str) -> "Sequence[Check]":
        """Return the checks of the project: APIs, roles, quotas, bucket, images and others."""
        from tpu_pipelines.platforms.google_apis import GoogleApis
        from tpu_pipelines.platforms.vertex.checks import VertexChecks

        return VertexChecks(config, settings, GoogleApis(settings.google_endpoint)).checks()
