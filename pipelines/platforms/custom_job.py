"""The training step as a custom job of Vertex AI, on the TPU that the configuration names."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from components import storage
from components.errors import InputError
from components.hosts import COUNT_VARIABLE
from components.machine_spec import MIN_BOOT_DISK_GB, MachineSpec
from components.step_inputs import whole_numbers
from pipelines.platforms.jobs import slug
from pipelines.platforms.steps import Step
from pipelines.resources import (
    TIMEOUT_WITHOUT_ESTIMATE_SECONDS,
    apply_retries,
)
from pipelines.settings import Settings
from pipelines.step_resources import StepResources


def in_region(machine: MachineSpec, settings: Settings) -> MachineSpec:
    """Return the machine, in the settings' region where it names none.

    Raises:
        InputError: If that region does not have it.
    """
    return dataclasses.replace(machine, region=machine.region or settings.region)


def custom_job_name(job_id: str) -> str:
    """Return the name of a pipeline job's custom job: whoever knows the pipeline job finds it."""
    return f"{job_id}-train-model"


def as_custom_job(
    component: Any,
    machine: MachineSpec,
    settings: Settings,
    name: str,
    asked: StepResources | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> Step:
    """Wrap a component as a Vertex custom job: one pool of one replica, on exactly this machine.

    Args:
        component: Keeps its inputs, outputs, code and image; the job's own fields become inputs with defaults.
        machine: In its region; its fallbacks and how long to wait for it are for whoever submits.
        settings: Service account, network, key, TensorBoard, labels, environment and bucket.
        name: Name of the run, of the job, and of its folder in the bucket.
        asked: Its retries; the rest is the machine's.
        fingerprint: Not needed here, where the folder is the job's own.

    Raises:
        InputError: If the component has an input or output named like a field of the job, or the bucket is not on
            Cloud Storage.
    """
    try:
        from google_cloud_pipeline_components.v1.custom_job import (
            CustomTrainingJobOp,
            create_custom_training_job_from_component,
        )
    except ImportError as error:
        raise InputError(
            "Cannot compile for vertex: its components are not installed. Run: pip install 'tpu-pipelines[vertex]'."
        ) from error
    from kfp import components, dsl

    _check_names(component, CustomTrainingJobOp)
    if settings.bucket and not storage.is_on_google(settings.bucket):
        raise InputError(f"Vertex writes to Cloud Storage: expected bucket=gs://…. Received: {settings.bucket!r}.")
    settings.check_region(machine.region)
    root = settings.bucket.rstrip("/") or dsl.PIPELINE_ROOT_PLACEHOLDER
    # A slice of several hosts is one replica too: the service starts the container on each of its machines, of which
    # none goes on without the others, so all start again.
    hosts = machine.slice.hosts
    has_others = hosts > 1 and not machine.disable_retries
    environment = {**settings.environment, **({COUNT_VARIABLE: str(hosts)} if hosts > 1 else {})}
    reservation: dict[str, Any] = {}
    if machine.reservation:
        reservation = {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "reservation_affinity_key": "compute.googleapis.com/reservation-name",
            "reservation_affinity_values": [machine.reservation],
        }
    job = create_custom_training_job_from_component(
        component,
        display_name=custom_job_name(dsl.PIPELINE_JOB_NAME_PLACEHOLDER),
        machine_type=machine.machine_type,
        accelerator_type=machine.accelerator_type,
        accelerator_count=machine.accelerator_count,
        strategy="SPOT" if machine.spot else "STANDARD",
        timeout=f"{machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS}s",
        restart_job_on_worker_restart=machine.restart_job_on_worker_restart or has_others,
        service_account=settings.service_account,
        network=settings.network,
        labels={**settings.labels, "tpu_pipelines_run": slug(name), "tpu_pipelines_machine": machine.name},
        encryption_spec_key_name=settings.encryption_key,
        tensorboard=settings.tensorboard,
        env=[{"name": key, "value": value} for key, value in environment.items()],
        # A folder per run: a job that Vertex restarts continues from its checkpoint, never from another run's.
        base_output_directory=f"{root}/{name}/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}",
        # Without a default these two would be placeholders that nothing replaces.
        reserved_ip_ranges=[],
        psc_interface_config=(
            {"network_attachment": settings.network_attachment} if settings.network_attachment else {}
        ),
        **reservation,
    )
    step = components.load_component_from_text(json.dumps(_with_fixed_names(_complete(job, machine), component)))
    step.component_spec.name = component.component_spec.name  # Else the task is called custom-training-job.
    if asked is None or not asked.retries:
        return step
    return lambda **inputs: apply_retries(step(**inputs), asked, machine.timeout_seconds)


def _complete(job: Any, machine: MachineSpec) -> dict[str, Any]:
    """Return the job's pipeline spec, with what Google's wrapper has no argument for."""
    from google.protobuf import json_format

    spec = json_format.MessageToDict(job.pipeline_spec)
    for part in (spec["root"], *spec["components"].values()):
        parameters = part["inputDefinitions"]["parameters"]
        (pool,) = parameters["worker_pool_specs"]["defaultValue"]
        del pool["disk_spec"]  # The wrapper names a type always, also where the machine has none of it.
        if disk := _disk(machine):
            pool["disk_spec"] = disk
        if machine.tpu_topology:
            pool["machine_spec"]["tpu_topology"] = machine.tpu_topology
        if machine.region:
            parameters["location"]["defaultValue"] = machine.region
    if machine.disable_retries:
        (executor,) = spec["deploymentSpec"]["executors"].values()
        arguments = executor["container"]["args"]
        payload = arguments.index("--payload") + 1
        # Text, not JSON: its placeholders carry no quotes.
        arguments[payload] = arguments[payload].replace('"scheduling": {', '"scheduling": {"disable_retries": true, ')
    return spec


def _disk(machine: MachineSpec) -> dict[str, Any]:
    """Return what is asked of the boot disk, in Vertex's words; nothing where its own choice is good enough."""
    disk: dict[str, Any] = {"boot_disk_type": machine.boot_disk_type} if machine.boot_disk_type else {}
    if machine.boot_disk_size_gb > MIN_BOOT_DISK_GB:
        disk["boot_disk_size_gb"] = machine.boot_disk_size_gb
    return disk


def _with_fixed_names(spec: dict[str, Any], component: Any) -> dict[str, Any]:
    """Return the job's pipeline spec, every field that holds a placeholder written into the launcher's arguments.

    Whether a service's cache counts the defaults of inputs, and with the pipeline job's own name filled in or not, is
    not documented. Arguments it counts as they are written: those of every KFP component hold placeholders for paths
    of their own job, and are answered from the cache all the same. Google's AutoML components do as is done here
    (google_cloud_pipeline_components/v1/automl/tabular/ensemble.py).
    """
    own = component.component_spec.inputs or {}
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    fixed = {
        name: definition["defaultValue"]
        for name, definition in parameters.items()
        if name not in own and "{{$" in json.dumps(definition.get("defaultValue"))
    }
    for part in (spec["root"], *spec["components"].values()):
        for name in fixed:
            del part["inputDefinitions"]["parameters"][name]
    for task in spec["root"]["dag"]["tasks"].values():
        for name in fixed:
            task["inputs"]["parameters"].pop(name, None)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    arguments = executor["container"]["args"]
    for name, value in fixed.items():
        text = value if isinstance(value, str) else json.dumps(whole_numbers({name: value})[name], sort_keys=True)
        placeholder = f"{{{{$.inputs.parameters['{name}']}}}}"
        arguments[:] = [argument.replace(placeholder, text) for argument in arguments]
    return spec


def _check_names(component: Any, job: Any) -> None:
    """Refuse names that the job has too: one of the two would silently overwrite the other."""

    def names(parameters: Any) -> set[str]:
        return {*(parameters.component_spec.inputs or ()), *(parameters.component_spec.outputs or ())}

    if taken := sorted(names(component) & names(job)):
        raise InputError(
            f"Cannot run {component.component_spec.name!r} as a custom job, whose fields have these names too: "
            f"{', '.join(taken)}. Rename the component's inputs and outputs."
        )
