"""A step as a custom job of Vertex AI, on a machine with a TPU or GPUs.

Google's launcher, a container of google-cloud-pipeline-components, creates the job and waits for it. This module builds
the launcher step without that package, because the package's `create_custom_training_job_from_component` cannot set a
topology (google_cloud_pipeline_components 2.22, v1/custom_job/utils.py). Requests for v5e, v6e and later TPUs need a
topology.
"""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.location import Scheme
from tpu_components.core.machines.hosts import COUNT_VARIABLE
from tpu_components.core.machines.machine_spec import MIN_BOOT_DISK_GB, MachineSpec
from tpu_pipelines.config.settings import Settings, setting
from tpu_pipelines.platforms.jobs import PlacedStep, Placement, slug
from tpu_pipelines.platforms.resources import TIMEOUT_WITHOUT_ESTIMATE_SECONDS, apply_retries
from tpu_pipelines.platforms.vertex.settings_rules import check_region

# By tag, as in google_cloud_pipeline_components/_image.py; the digest is not published.
LAUNCHER_IMAGE = "gcr.io/ml-pipeline/google-cloud-pipeline-components:2.22.0"
_LAUNCHER = "google_cloud_pipeline_components.container.v1.custom_job.launcher"
_RESOURCES = "gcp_resources"  # Output by which a restarted launcher finds its job.
_PREFIX = "job_"  # Of the inputs that set fields of the job, to tell them from those of the step.
_DESCRIPTIONS = {  # Of the inputs and outputs that a custom job has besides those of its step.
    "project": "Google Cloud project of the job.",
    "location": "Region of the job.",
    "timeout": "Time limit of the job: seconds followed by `s`.",
    "strategy": "Kind of the machine: `STANDARD` or `SPOT`.",
    "restart_job_on_worker_restart": "Whether the entire job restarts when one of its workers does.",
    "service_account": "Service account of the job. Empty means the default of the service.",
    "tensorboard": "TensorBoard instance for the job's logs. Empty if there is none.",
    "network": "Peered VPC network of the job. Empty if there is none.",
    "psc_interface_config": "Interface to a VPC network. Key: `network_attachment`. Empty if there is none.",
    "encryption_spec_key_name": "Customer-managed encryption key. Empty means the service's key.",
    "enable_web_access": "Whether a shell can be opened on the job's machines.",
    "persistent_resource_id": "Persistent resource on which the job runs.",
    "labels": "Labels of the job by name: the configured ones, `tpu_pipelines_run` and `tpu_pipelines_machine`.",
    _RESOURCES: "The job that the launcher started, as JSON.",
}
_STRUCTURED = re.compile(r'\s*\{\s*"(IfPresent|Concat)"')  # As KFP writes them: kfp/dsl/placeholders.py
_PLACEHOLDER = re.compile(r"\{\{\$.*?\}\}")
_MOST_VARIABLES = 100  # custom_job.proto: ContainerSpec.env
_TYPES = {str: "STRING", bool: "BOOLEAN", dict: "STRUCT"}  # KFP's types of inputs.


def custom_job_name(job_id: str, step: str = "train_model") -> str:
    """Return the name of a step's custom job, derived from the ID of the pipeline job."""
    return f"{job_id}-{step.replace('_', '-')}"


def as_custom_job(component: Any, machine: MachineSpec, settings: Settings, placement: Placement) -> PlacedStep:
    """Convert a component to a custom job of Vertex AI: one pool of one replica, on exactly this machine.

    Args:
        component: Component that runs one container. Its inputs, outputs, environment variables, code and image are
            kept. Fields of the job that do not change the step's result become inputs with defaults, such as
            `job_timeout`.
        machine: Machine with its region. Fallbacks and `max_wait_seconds` are ignored, because the submission handles
            them.
        settings: Service account, network, key, TensorBoard, labels, environment and bucket.
        placement: Names and retries of the step, and the folder of the job in the bucket, which contains the
            checkpoints of training. Other resources come from the machine.

    Raises:
        InputError: If the job cannot be built for one of these reasons:

            - A custom job does not support an argument of the component.
            - An input or output of the component has a name that the custom job itself uses.
            - The bucket is not on Cloud Storage.
            - A resource in the settings is in another region than the machine.
            - The machine mounts NFS shares, but the settings contain no network.
    """
    from google.protobuf import json_format
    from kfp import components

    if settings.bucket and settings.bucket_location.scheme is not Scheme.GOOGLE:
        raise InputError(
            f"Vertex AI writes to Cloud Storage: expected bucket=gs://…. Received: {settings.bucket!r}. Change the "
            f"{setting('bucket')}."
        )
    check_region(settings, machine.region)
    if machine.nfs_mounts and not (settings.network or settings.network_attachment):
        # https://cloud.google.com/vertex-ai/docs/training/train-nfs-share
        raise InputError(
            f"NFS shares require a VPC network. Received: machine.nfs_mounts={machine.nfs_mounts!r} without a "
            f"network. Add the {setting('network')} or the {setting('network_attachment')}."
        )
    fields = _fields(machine, settings, placement.run)
    inputs = {_PREFIX + key: value for key, value in fields.items() if "{{$" not in str(value)}
    values = {key: _input(_PREFIX + key) if _PREFIX + key in inputs else value for key, value in fields.items()}
    spec = json_format.MessageToDict(component.pipeline_spec)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    _check_component(component, executor["container"], inputs)
    pool = _pool(executor["container"], machine, settings)
    job = _job(pool, values, machine, settings, placement)
    executor["container"] = {
        "image": LAUNCHER_IMAGE,
        "command": ["python3", "-u", "-m", _LAUNCHER],
        "args": [
            *("--type", "CustomJob"),
            *("--payload", _as_argument(job, inputs)),
            *("--project", values["project"]),
            *("--location", values["location"]),
            *("--gcp_resources", f"{{{{$.outputs.parameters['{_RESOURCES}'].output_file}}}}"),
        ],
    }
    for part in (spec["root"], *spec["components"].values()):
        parameters = part.setdefault("inputDefinitions", {}).setdefault("parameters", {})
        parameters |= {
            key: {"defaultValue": value, "isOptional": True, "parameterType": _TYPES[type(value)]}
            for key, value in inputs.items()
        }
        outputs = part.setdefault("outputDefinitions", {}).setdefault("parameters", {})
        outputs[_RESOURCES] = {"parameterType": "STRING"}
    made = components.load_component_from_text(json.dumps(spec))
    _describe(made.component_spec, component.component_spec)
    if not placement.resources.retries:
        return made

    def make(**inputs: Any) -> Any:
        return apply_retries(made(**inputs), placement.resources, machine.timeout_seconds)

    return functools.update_wrapper(make, made)


def _check_component(component: Any, container: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Check that a component can run as a custom job.

    Raises:
        InputError: If an argument is not supported, or an input or output has the same name as an input or output of
            the job.
    """
    name = component.name
    structured = [word for key in ("command", "args") for word in container.get(key, []) if _STRUCTURED.match(word)]
    if structured:
        raise InputError(
            "A custom job does not support dsl.IfPresentPlaceholder and dsl.ConcatPlaceholder in arguments. Received "
            f"from {name!r}: {structured[0]}. Give each input a separate argument."
        )
    own = component.component_spec
    taken = sorted({*inputs, _RESOURCES} & {*(own.inputs or {}), *(own.outputs or {})})
    if taken:
        raise InputError(
            f"The component {name!r} has inputs or outputs with names that a custom job uses: {', '.join(taken)}. "
            "Rename them in the component."
        )


def _describe(job: Any, step: Any) -> None:
    """Add descriptions to the inputs and outputs of a job.

    KFP does not read the descriptions of a compiled component.
    """
    described = {**(step.inputs or {}), **(step.outputs or {})}
    for name, spec in {**job.inputs, **job.outputs}.items():
        text = described[name].description if name in described else _DESCRIPTIONS[name.removeprefix(_PREFIX)]
        spec.description = text


def _fields(machine: MachineSpec, settings: Settings, name: str) -> dict[str, Any]:
    """Return the fields of the job that do not change the weights.

    The platform's cache key contains the values of inputs, and arguments with unresolved placeholders
    (https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching). It is not documented whether the key contains
    the defaults of inputs, or whether placeholders in defaults are resolved first. Therefore, these fields are inputs
    with defaults, except fields with a placeholder.
    """
    # A slice of several hosts is one replica too: the service starts the container on each of its machines. No machine
    # can continue without the others, so all must restart.
    has_others = machine.slice.hosts > 1 and not machine.disable_retries
    return {
        "project": settings.project or "{{$.pipeline_google_cloud_project_id}}",
        "location": machine.region or "{{$.pipeline_google_cloud_location}}",
        "timeout": f"{machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS}s",
        "strategy": "SPOT" if machine.spot else "STANDARD",
        "restart_job_on_worker_restart": machine.restart_job_on_worker_restart or has_others,
        "service_account": settings.service_account,
        "tensorboard": settings.tensorboard,
        "network": settings.network,
        "psc_interface_config": (
            {"network_attachment": settings.network_attachment} if settings.network_attachment else {}
        ),
        "encryption_spec_key_name": settings.encryption_key,
        **{key: value for key in ("enable_web_access", "persistent_resource_id") if (value := getattr(machine, key))},
        "labels": {**settings.labels, "tpu_pipelines_run": slug(name), "tpu_pipelines_machine": machine.name},
    }


def _job(
    pool: Mapping[str, Any],
    values: Mapping[str, Any],
    machine: MachineSpec,
    settings: Settings,
    placement: Placement,
) -> dict[str, Any]:
    """Return the job that the launcher sends. The launcher drops empty fields.

    https://github.com/kubeflow/pipelines, components/google-cloud/google_cloud_pipeline_components/container/v1/
    gcp_launcher/job_remote_runner.py, create_job.
    """
    from kfp import dsl

    folder = placement.folder or f"{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}/{dsl.PIPELINE_TASK_NAME_PLACEHOLDER}"
    scheduling = {key: values[key] for key in ("timeout", "strategy", "restart_job_on_worker_restart")}
    return {
        "display_name": custom_job_name(dsl.PIPELINE_JOB_NAME_PLACEHOLDER, placement.step),
        "job_spec": {
            "worker_pool_specs": [pool],
            "scheduling": {**scheduling, **({"disable_retries": True} if machine.disable_retries else {})},
            **{
                key: values[key]
                for key in (
                    *("service_account", "tensorboard", "network", "psc_interface_config"),
                    *("enable_web_access", "persistent_resource_id"),
                )
                if key in values
            },
            # The folder depends on the training, not on the job: a restarted job, a fallback and a repeated submission
            # continue from the same checkpoint.
            "base_output_directory": {
                "output_uri_prefix": f"{settings.bucket_location.folder or dsl.PIPELINE_ROOT_PLACEHOLDER}/{folder}"
            },
        },
        "labels": values["labels"],
        "encryption_spec": {"kms_key_name": values["encryption_spec_key_name"]},
    }


def _pool(container: Mapping[str, Any], machine: MachineSpec, settings: Settings) -> dict[str, Any]:
    """Return the job's single worker pool: machine, boot disk if it is configured, and the step's container."""
    hosts = machine.slice.hosts
    own = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
    environment = {**own, **settings.environment, **({COUNT_VARIABLE: str(hosts)} if hosts > 1 else {})}
    if len(environment) > _MOST_VARIABLES:
        raise InputError(
            f"A job on Vertex AI may have at most {_MOST_VARIABLES} environment variables. Received: "
            f"{len(environment)}. Remove some from the {setting('environment')}."
        )
    machine_spec: dict[str, Any] = {key: value for key, value in machine.slice.vertex_fields.items() if value}
    if machine.reservation:
        machine_spec["reservation_affinity"] = {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [machine.reservation],
        }
    disk: dict[str, Any] = {"boot_disk_type": machine.boot_disk_type} if machine.boot_disk_type else {}
    if machine.boot_disk_size_gb > MIN_BOOT_DISK_GB:
        disk["boot_disk_size_gb"] = machine.boot_disk_size_gb
    return {
        "machine_spec": machine_spec,
        "replica_count": 1,
        "container_spec": {
            "image_uri": container["image"],
            **{key: [_escaped(word) for word in container.get(key, [])] for key in ("command", "args")},
            "env": [{"name": key, "value": value} for key, value in environment.items()],
        },
        **({"disk_spec": disk} if disk else {}),
        **({"nfs_mounts": [_nfs_mount(text) for text in machine.nfs_mounts]} if machine.nfs_mounts else {}),
    }


def _escaped(word: str) -> str:
    """Return a word of a command with its placeholders marked, so that their values are escaped for JSON.

    This is necessary because the job is JSON within an argument. Source: google_cloud_pipeline_components 2.22,
    _placeholders.py, json_escape.
    """
    return _PLACEHOLDER.sub(lambda match: match[0].replace("}}", ".json_escape[1]}}"), word)


def _nfs_mount(text: str) -> dict[str, str]:
    """Convert `SERVER:PATH=NAME` to the fields of Vertex AI's NfsMount (machine_resources.proto)."""
    source, _, name = text.partition("=")
    server, _, path = source.partition(":")
    return {"server": server, "path": path, "mount_point": name}


def _input(name: str) -> str:
    """Return the placeholder that the platform replaces by the value of an input."""
    return f"{{{{$.inputs.parameters['{name}']}}}}"


def _as_argument(job: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the job as JSON, with placeholders that the platform replaces by the values of the inputs.

    The platform inserts values other than strings as JSON, so their placeholders have no quotes.
    """
    text = json.dumps(job)
    for name, value in inputs.items():
        if not isinstance(value, str):
            text = text.replace(f'"{_input(name)}"', _input(name))
    return text
