"""Kubeflow Pipelines as a `Platform`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpu_components.core.base.container_images import is_in_registry
from tpu_components.core.base.errors import InputError
from tpu_components.core.files.location import Location
from tpu_pipelines.config.settings import MAIL, Settings, setting
from tpu_pipelines.platforms.kubeflow.unused_options import UNUSED_OPTIONS

if TYPE_CHECKING:
    from tpu_components.core.machines.machine_spec import MachineSpec
    from tpu_pipelines.config.configuration import Config
    from tpu_pipelines.platforms.findings import Check
    from tpu_pipelines.platforms.jobs import PlacedStep, Placement, PlatformClient


class Kubeflow:
    """Kubeflow Pipelines on a cluster.

    The training step is a pod on a node of GKE, or a JobSet of several hosts.
    """

    name = "kubeflow"
    title = "a cluster"
    catalogue_name = "kubeflow"
    required_settings = ("kfp_host",)
    own_settings = ("kueue_queue", "provisioning", "s3_secret", "volumes", "secrets")
    unused_options = UNUSED_OPTIONS
    readable_places = "Cloud Storage, or on s3://"
    longest_task_seconds = math.inf
    accepts_estimated_timeout = False  # A pod's time limit is fixed when the pipeline is compiled.
    beam_runner = ""

    def check_settings(self, settings: Settings) -> None:
        """Check that the setting `notify` is not an e-mail address, because only Vertex AI can send e-mails."""
        if settings.notify.startswith(MAIL):
            raise InputError(
                f"The platform {self.name} cannot send e-mail; only Vertex AI can. Expected the {setting('notify')} to "
                f"be a webhook. Received: {settings.notify!r}. Set it to the URL of a webhook."
            )

    def check_config(self, config: "Config") -> None:
        """Check that no machine has settings that only Vertex AI supports."""
        from tpu_pipelines.platforms.kubeflow.resources import check_config

        check_config(config)

    def can_read(self, place: Location) -> bool:
        """Return whether a location is in an object store."""
        return place.is_remote

    def can_pull(self, image: str) -> bool:
        """Return whether the name of an image contains a registry. A registry inside the cluster is also accepted."""
        return is_in_registry(image, is_clusters_own=True)

    def in_region(self, machine: "MachineSpec", region: str) -> "MachineSpec":
        """Return the machine unchanged, because the cluster determines the region."""
        return machine

    def training_retries(self, machine: "MachineSpec") -> int:
        """Return 5 retries for a spot machine or a machine with several hosts, and 0 for other machines."""
        from tpu_pipelines.platforms.kubeflow.resources import training_retries

        return training_retries(machine)

    def memory_request(self, config: "Config", step: str, gib: float) -> float | None:
        """Return the memory to request, in GiB: `gib` itself, because a pod can use all the memory that it requests."""
        return gib

    def disk_request(self, num_bytes: int) -> str:
        """Return the disk to request, or an empty string if a pod's default disk is large enough for `num_bytes`."""
        from tpu_pipelines.platforms.kubeflow.resources import disk_request

        return disk_request(num_bytes)

    def disk_warning(self, num_bytes: int) -> str:
        """Return an empty string, because a step can request a disk of any size."""
        return ""

    def on_machine(
        self, component: Any, machine: "MachineSpec", settings: Settings, placement: "Placement"
    ) -> "PlacedStep":
        """Return a step that runs a component in a pod with a TPU or GPUs, or in a JobSet on several hosts."""
        from tpu_pipelines.platforms.kubeflow.tpu_pod import as_tpu_pod

        return as_tpu_pod(component, machine, settings, placement)

    def restart_warning(self, machine: "MachineSpec", settings: Settings) -> str:
        """Return a warning if a spot machine has no volume for checkpoints, otherwise an empty string.

        Unlike Vertex AI, a cluster does not mount buckets.
        """
        if not machine.spot or settings.volumes:
            return ""
        return (
            f"After a preemption of {machine.name}, the step starts from scratch, because it has no volume for "
            'checkpoints. Mount a claim with settings={"volumes": {"CLAIM": "/mnt/checkpoints"}}'
        )

    def place(self, task: Any, step: str, config: "Config", settings: Settings) -> Any:
        """Set a step's disk and time limit, and its credentials for S3."""
        from tpu_pipelines.platforms.kubeflow.resources import place
        from tpu_pipelines.platforms.kubeflow.tpu_pod import signed_in
        from tpu_pipelines.platforms.resources import resources_of, steps_on_s3

        task = place(task, resources_of(config, step))
        return signed_in(task, settings) if step in steps_on_s3(config, settings.bucket_location) else task

    def exit_task(self, settings: Settings) -> Any:
        """Return None, because the server cannot send notifications."""
        return None

    def connect(self, settings: Settings) -> "PlatformClient":
        """Return a client of the server."""
        from tpu_pipelines.platforms.kubeflow.client import KubeflowClient

        return KubeflowClient(settings)

    def checks(self, config: "Config", settings: Settings, context: str) -> "Sequence[Check]":
        """Return the checks of the server and, with a kubectl context, those of the cluster."""
        from tpu_pipelines.platforms.google_apis import GoogleApis
        from tpu_pipelines.platforms.kubeflow.checks import KubeflowChecks

        return KubeflowChecks(config, settings, GoogleApis(settings.google_endpoint), context).checks()
