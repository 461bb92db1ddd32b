"""Memory, disk space and time limits of steps on Vertex AI."""

import itertools
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.params import FAN_OUT
from tpu_components.preflight_training.params import VERTEX_TASK_SECONDS
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import gib

# The service's own agents use up to 40% of the 16 GB of the default machine, and a smaller share of larger machines:
# https://cloud.google.com/vertex-ai/docs/training/understanding-training-service
_FREE_GIB = 9
_AGENTS_GIB = 6
_AGENTS_SHARE = 0.1
# https://cloud.google.com/vertex-ai/docs/training/configure-compute#boot_disk_options: the disk of every job.
DISK_GIB = 100
# A task has at most 100 artifacts: https://cloud.google.com/vertex-ai/docs/quotas#pipelines. Merging needs two more.
_MOST_FAN_OUT_TASKS = 90


def memory_request(config: Config, step: str, need_gib: float) -> float | None:
    """Return the memory to request, in GiB, so that a step can use `need_gib` GiB.

    Return None if the step has a whole host, and therefore needs no request.
    """
    if step == "train_model" or (step == "evaluate_model" and config.evaluation_machine):
        return None
    return need_gib if need_gib <= _FREE_GIB else need_gib * (1 + _AGENTS_SHARE) + _AGENTS_GIB


def disk_warning(num_bytes: int) -> str:
    """Return a warning if records of this size may not fit on the disk of a step, otherwise an empty string."""
    if num_bytes <= DISK_GIB * 10**9:
        return ""
    return f"records of this size may not fit on the disk of a step, which has {DISK_GIB} GB"


def limit_time(task: Any, seconds: int) -> Any:
    """Set the time limit of a task. 0 means no limit. Return the task.

    The service has no time limit for a task, so the limit is set in the container.
    """
    if seconds:
        command = ["timeout", "--kill-after=60", str(seconds)]
        task.container_spec.command = [*command, *task.container_spec.command]
    return task


def check_config(config: Config) -> None:
    """Check that the service supports all requested resources.

    Raises:
        InputError: If the service would ignore or reject a resource.
    """
    times = {f"resources.{step}.timeout": requested.timeout for step, requested in config.resources.items()}
    times["machine.timeout_seconds"] = config.machine.timeout_seconds if config.machine else 0
    for name, seconds in times.items():
        if seconds > VERTEX_TASK_SECONDS:
            raise InputError(
                f"Vertex AI cancels a pipeline's task after 7 days: expected {name} of at most {VERTEX_TASK_SECONDS}. "
                f"Received: {seconds}. Use a larger machine or fewer epochs, or run on Kubeflow."
            )
    if config.data.engine == FAN_OUT and config.data.engine_tasks > _MOST_FAN_OUT_TASKS:
        raise InputError(
            f"Too many tasks: expected data.engine_tasks from 1 to {_MOST_FAN_OUT_TASKS} with data.engine=fan_out. "
            f"Received: {config.data.engine_tasks}. On Vertex AI, a step reads and writes at most 100 artifacts, and "
            "one step merges the parts of all tasks. Lower data.engine_tasks."
        )
    on_machines = [step for step, requested in config.resources.items() if step == "train_model" or requested.machine]
    for step, name in itertools.product(on_machines, ("cpu", "memory", "disk")):
        if value := getattr(config.resources[step], name):
            is_disk = name == "disk" and step == "train_model"
            raise InputError(
                (
                    "On Vertex AI, a step with a machine uses the whole host, so cpu, memory and disk cannot be set. "
                    f"Received: resources.{step}.{name}={value!r}. Remove it"
                )
                + ("; machine.boot_disk_size_gb sets the disk." if is_disk else ".")
            )
    for step, requested in config.resources.items():
        if requested.disk and gib(requested.disk) > DISK_GIB:
            raise InputError(
                f"A step on Vertex AI has a disk of {DISK_GIB} GB, which cannot be changed. "
                f"Received: resources.{step}.disk={requested.disk!r}. Remove it, or run on Kubeflow."
            )
