"""Disk, time limit and retries of a step on Kubeflow."""

import math
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import VERTEX_ONLY, MachineSpec
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import setting
from tpu_pipelines.config.steps import StepResources

# A step's disk. Steps write their outputs to the folder for temporary files first.
SCRATCH_VOLUME = "scratch"
SCRATCH_FOLDER = "/tmp"
_RETRIES = 5
_POD_DISK_GIB = 10  # Disk of a pod without a request.


def training_retries(machine: MachineSpec) -> int:
    """Return the number of retries of the training step: 5 on a spot machine or on several hosts, otherwise 0.

    A spot machine may be preempted. With several hosts, the step's pod waits for a JobSet, and a retry continues to
    wait for the same JobSet.
    """
    return _RETRIES if machine.spot or machine.slice.hosts > 1 else 0


def check_config(config: Config) -> None:
    """Check that no machine has settings that only Vertex AI supports.

    Raises:
        InputError: If a machine has one of these settings.
    """
    for machine in config.machine.candidates if config.machine else ():
        for name in VERTEX_ONLY:
            if value := getattr(machine, name):
                raise InputError(
                    f"Only Vertex AI supports machine.{name}. Received: {value!r} on the platform kubeflow. Remove it. "
                    f"On Kubeflow, use the {setting('volumes')} to mount storage, and kubectl exec to open a shell in "
                    "the pod."
                )


def disk_request(num_bytes: int) -> str:
    """Return the disk to request for `num_bytes`, or an empty string if the disk of every pod is large enough."""
    disk_gib = math.ceil(num_bytes / 2**30)
    return f"{disk_gib}Gi" if disk_gib > _POD_DISK_GIB else ""


def as_root(task: Any) -> Any:
    """Run a task's pod as root. Return the task.

    Only root may write to a new disk, because KFP cannot set `fsGroup`. The root user has no capabilities
    (kubeflow/pipelines backend/src/v2/driver/k8s.go, at 7b70c7b). Servers before 2.16 ignore the setting and run as the
    image's user.
    """
    from kfp import kubernetes

    return kubernetes.set_security_context(task, run_as_user=0)


def place(task: Any, requested: StepResources) -> Any:
    """Set the disk and time limit of a task. Return the task."""
    from kfp import kubernetes

    if requested.timeout:
        kubernetes.set_timeout(task, requested.timeout)
    if requested.disk:
        kubernetes.add_ephemeral_volume(
            task,
            volume_name=SCRATCH_VOLUME,
            mount_path=SCRATCH_FOLDER,
            access_modes=["ReadWriteOnce"],
            size=requested.disk,
        )
        as_root(task)
    return task
