"""Resources that a step requests, and how they are set on a task of KFP."""

import dataclasses
import math
from typing import Any

from tpu_components.core.files.location import Location, Scheme
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import STEPS, StepResources

# A node with 4 CPUs reserves part of them. Vertex AI's default machine has 4 CPUs and 16 GB. Its documentation does not
# say how it rounds a request; this code assumes that it rounds up: https://cloud.google.com/vertex-ai/docs/pipelines/machine-types
STEP_CPU = 3
BASE_GIB = 4  # Python and TensorFlow use 1 GiB of it.
STEP_GIB = 12  # A step keeps arrays and models in memory.
# Time limit of a training for which neither an estimate nor a budget is known when its job is written.
TIMEOUT_WITHOUT_ESTIMATE_SECONDS = 24 * 3600


def resources_of(config: Config, step: str, default_retries: int = 0) -> StepResources:
    """Return a step's resources: the values in the configuration, and defaults for values that are not set.

    By default, preflight requests 4 GiB more than the memory limit of a compilation, and training requests 4 GiB more
    than twice `training.in_memory_mib`. The default of every step is at least 12 GiB.

    Args:
        config: Configuration of the run.
        step: Name of the step.
        default_retries: Number of retries if the configuration does not set it. For the training step, pass the result
            of `Platform.training_retries`.
    """
    requested = config.resources.get(step, StepResources())
    held = {
        "preflight_training": BASE_GIB + (config.preflight.compile_memory_mib if config.preflight else 0) / 2**10,
        "train_model": BASE_GIB + 2 * config.training.in_memory_mib / 2**10,  # Twice while it is read.
    }
    return dataclasses.replace(
        requested,
        cpu=requested.cpu or STEP_CPU,
        memory=requested.memory or f"{math.ceil(max(held.get(step, 0), STEP_GIB))}Gi",
        retries=requested.retries if requested.retries >= 0 else default_retries,
    )


def apply(task: Any, requested: StepResources) -> Any:
    """Set the CPUs, memory and retries of a task. Return the task."""
    task.set_cpu_limit(str(requested.cpu)).set_memory_limit(requested.memory)
    return apply_retries(task, requested)


def apply_retries(task: Any, requested: StepResources, timeout_seconds: int = 0, is_of_all: bool = False) -> Any:
    """Set the retries of a task. Return the task.

    Argo counts `maxDuration` from the start of the first attempt (argo-workflows, workflow/controller/operator.go).
    KFP's default is one hour, after which a preempted pod would not be started again. KFP cannot set Argo's
    `retryPolicy`, which decides which failures are retried; `doctor` checks the cluster's policy.

    Args:
        task: Task of the step.
        requested: Resources of the step, with the number of retries.
        timeout_seconds: Time limit of one attempt. 0 means `requested.timeout` or, if that is 0, a day.
        is_of_all: Whether the time limit applies to all attempts together.
    """
    if not requested.retries:
        return task
    seconds = timeout_seconds or requested.timeout or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    longest = seconds if is_of_all else (requested.retries + 1) * (seconds + 3600)  # Up to an hour to get a machine.
    return task.set_retry(requested.retries, "60s", 2.0, f"{longest}s")


_RUN_THE_MODELS_CODE = ("preflight_training", "train_model", "evaluate_model", "export_model")


def steps_on_s3(config: Config, bucket: Location) -> frozenset[str]:
    """Return the steps whose pods read or write s3://. If the bucket is on S3, these are all steps.

    Args:
        config: Configuration of the run. If its model was uploaded, the name of the model is the URI of the upload.
        bucket: Bucket in the settings. In each step's pod, KFP's launcher copies artifacts from and to this bucket.
    """
    if bucket.scheme is Scheme.S3:
        return frozenset(STEPS)
    model = [config.training.model, *config.model_files]
    places: dict[str, list[str]] = {step: [*model] for step in _RUN_THE_MODELS_CODE}
    places["create_tfrecords"] = [config.data_location]
    places["evaluate_model"].append(config.gate.champion)
    places["train_model"].append(config.training.initial_model)
    return frozenset(step for step, uris in places.items() if any(Location(uri).scheme is Scheme.S3 for uri in uris))
