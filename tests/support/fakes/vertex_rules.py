"""Checks of Vertex AI when a resource is created; each takes the request and raises a `ServiceError`.

Every rule names its source; `tests/support/fakes/RULES` lists them. Undocumented behaviour is
marked, and treated as a refusal, so that a client that passes here requests nothing doubtful.
"""

import datetime
import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as v1

from tests.support.fakes.google_api import ServiceError

DOCS = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning"
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_KEY = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")
_ATTACHMENT = re.compile(r"projects/[^/]+/regions/([^/]+)/networkAttachments/[^/]+")
_REGISTRY = re.compile(r"([a-z0-9-]+-docker\.pkg\.dev|([a-z]+\.)?gcr\.io)/[^/]+/\S+")
# Topologies of one host and of several, by machine type; and where each generation trains.
_V5E_AND_V6E = {"1t": ("1x1",), "4t": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"), "8t": ("2x4",)}
_TOPOLOGIES = {
    **{f"ct5lp-hightpu-{size}": topologies for size, topologies in _V5E_AND_V6E.items()},
    **{f"ct6e-standard-{size}": topologies for size, topologies in _V5E_AND_V6E.items()},
    "tpu7x-standard-4t": (
        *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
        "8x8x16",
    ),
}
_CORES = {"TPU_V2": (8, 32, 128, 256, 512), "TPU_V3": (8, 32, 64, 128, 256, 512, 1024, 2048)}
_REGIONS = {
    "v2": ("asia-east1", "europe-west4", "us-central1"),
    "v3": ("europe-west4", "us-central1"),
    "v5e": ("us-central1", "us-east1", "us-west1", "us-west4"),
    "v6e": (
        *("asia-northeast1", "europe-west4", "southamerica-west1", "us-central1", "us-east1", "us-east5"),
        "us-south1",
    ),
    "7x": ("us-central1",),
}
# GPUs by machine type: of N1 any number of T4 that goes with its CPUs, of the others exactly those that it has.
_GPUS = {
    **{f"n1-standard-{cpus}": ("NVIDIA_TESLA_T4", (1, 2, 4)) for cpus in (8, 16, 32)},
    **{f"g2-standard-{cpus}": ("NVIDIA_L4", (gpus,)) for cpus, gpus in ((8, 1), (24, 2), (48, 4), (96, 8))},
    **{f"a2-highgpu-{gpus}g": ("NVIDIA_TESLA_A100", (gpus,)) for gpus in (1, 2, 4, 8)},
    **{f"a2-ultragpu-{gpus}g": ("NVIDIA_A100_80GB", (gpus,)) for gpus in (1, 2, 4, 8)},
    "a3-highgpu-8g": ("NVIDIA_H100_80GB", (8,)),
}
_GENERATIONS = {"TPU_V2": "v2", "TPU_V3": "v3", "ct5lp": "v5e", "ct6e": "v6e", "tpu7x": "7x"}


def refuse(message: str) -> None:
    """Raise INVALID_ARGUMENT with a message."""
    raise ServiceError("INVALID_ARGUMENT", message)


def generation_of(machine: v1.MachineSpec) -> str:
    """Return the TPU generation of a machine, for example `v5e`."""
    kind = machine.machine_type.partition("-")[0]
    return _GENERATIONS.get(machine.accelerator_type.name if kind == "cloud" else kind, "")


def hosts_of(machine: v1.MachineSpec) -> int:
    """Return the number of hosts of a machine's slice."""
    # Rule: the service derives the number of a slice's VMs from its topology and the machine type's chips per VM; v2
    # and v3 have 8 cores per VM (…/training/training-with-tpu-vm)
    if machine.machine_type == "cloud-tpu":
        return machine.accelerator_count // 8
    if machine.machine_type in _GPUS:
        return 1
    chips = math.prod(map(int, machine.tpu_topology.split("x")))
    return chips // int(machine.machine_type.rpartition("-")[2].removesuffix("t"))


def quota_metric(machine: v1.MachineSpec) -> str:
    """Return the name of the quota of a training machine."""
    # Rule: a training's quota has a name such as aiplatform.googleapis.com/custom_model_training_tpu_v5e
    # (GoogleCloudPlatform/vertex-ai-samples: tpuv5e_llama2 notebook; google-deepmind/xmanager/issues/29)
    if machine.machine_type in _GPUS:
        # Rule: the quota of a GPU has a name such as custom_model_training_nvidia_l4_gpus, shorter for H100 and T4
        # (GoogleCloudPlatform/vertex-ai-samples: notebook_util/common_util.py, get_resource_id)
        kind = machine.accelerator_type.name.lower().replace("tesla_", "").replace("h100_80gb", "h100")
        return f"aiplatform.googleapis.com/custom_model_training_{kind}_gpus"
    return f"aiplatform.googleapis.com/custom_model_training_tpu_{generation_of(machine)}"


def check_display_name(name: str, field: str) -> None:
    """Refuse a display name that is too long."""
    # Rule: display names of pipeline jobs, schedules, contexts and models have at most 128 characters; the same is
    # assumed for deployments (pipeline_job.proto, schedule.proto, context.proto, model.proto: display_name)
    if len(name) > 128:
        refuse(f"{field}.display_name has at most 128 characters.")


def check_custom_job(job: v1.CustomJob, location: str, local_images: Container[str] = ()) -> None:
    """Refuse a custom job that is invalid, or not in this location; `local_images` need no registry."""
    # Rule: a custom job has a display name of at most 128 characters (custom_job.proto: display_name)
    if not 1 <= len(job.display_name) <= 128:
        refuse("custom_job.display_name is required, of at most 128 characters.")
    spec, pools = job.job_spec, job.job_spec.worker_pool_specs
    # Rule: a TPU job has one worker pool of one replica, even if its slice has several hosts
    # (…/training/training-with-tpu-vm)
    if len(pools) != 1 or pools[0].replica_count != 1:
        refuse("A TPU job has one worker pool of one replica.")
    check_labels(job.labels)
    check_network(spec.network)
    check_attachment(spec.psc_interface_config.network_attachment, location, spec.network)
    check_key(job.encryption_spec.kms_key_name, location)
    _check_machine(pools[0].machine_spec, location)
    _check_disk(pools[0])
    _check_scheduling(spec.scheduling, pools[0].machine_spec)
    _check_container(pools[0].container_spec, local_images)
    # Rule: it is not documented that the placeholder of a pipeline's persistent resource is replaced in an argument:
    # Google's own components use it as the default of an input (kubeflow/pipelines
    # components/google-cloud/google_cloud_pipeline_components/_placeholders.py and v1/custom_job/component.py)
    if "{{$" in spec.persistent_resource_id:
        refuse(f"There is no persistent resource {spec.persistent_resource_id!r}.")
    # Rule: an NFS mount has a server, an absolute path there, and a name below /mnt/nfs (machine_resources.proto:
    # NfsMount)
    # Rule: a job reaches an NFS server through a VPC network (…/training/train-nfs-share)
    for mount in pools[0].nfs_mounts:
        if not (mount.server and mount.path.startswith("/") and mount.mount_point):
            refuse(f"An NFS mount needs server, path and mount_point. Received: {mount}.")
        if not (spec.network or spec.psc_interface_config.network_attachment):
            refuse("A job with nfs_mounts must have a network.")
    # Rule: the results of a custom job are on Cloud Storage (custom_job.proto: base_output_directory)
    if (base := spec.base_output_directory.output_uri_prefix) and not base.startswith("gs://"):
        refuse(f"base_output_directory must be a gs:// path. Received: {base!r}.")
    # Rule: a job that streams to a TensorBoard runs as a service account of the user (…/experiments/tensorboard-setup)
    if spec.tensorboard and not spec.service_account:
        refuse("A custom job with a tensorboard must have a service_account.")
    check_tensorboard(spec.tensorboard, location)


def _check_machine(machine: v1.MachineSpec, location: str) -> None:
    accelerator = machine.accelerator_type.name if machine.accelerator_type else ""
    if machine.machine_type in _GPUS:
        # Rule: a machine type with GPUs requires their type and their full number; availability depends on the region
        # (https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines; …/training/configure-compute)
        kind, counts = _GPUS[machine.machine_type]
        if accelerator != kind or machine.accelerator_count not in counts or machine.tpu_topology:
            refuse(f"Invalid accelerator {accelerator!r} × {machine.accelerator_count} for {machine.machine_type}.")
        return
    if machine.machine_type == "cloud-tpu":
        # Rule: v2 and v3 use the machine type cloud-tpu with an accelerator and a number of cores
        # (…/training/configure-compute)
        if machine.accelerator_count not in _CORES.get(accelerator, ()) or machine.tpu_topology:
            refuse(f"cloud-tpu takes TPU_V2 or TPU_V3 and a count of it. Received: {accelerator!r}.")
    elif machine.machine_type not in _TOPOLOGIES:
        # Rule: a machine type must be one that supports training (…/training/configure-compute)
        refuse(f"Machine type {machine.machine_type!r} is not supported.")
    # Rule: from v5e on, a machine has a topology and no accelerator (…/training/configure-compute)
    elif accelerator or machine.tpu_topology not in _TOPOLOGIES[machine.machine_type]:
        refuse(f"Invalid TPU topology {machine.tpu_topology!r} for machine type {machine.machine_type}.")
    # Rule: every generation trains only in some regions; v5e serves in more regions than it trains in
    # (…/general/locations)
    if location not in _REGIONS[generation_of(machine)]:
        refuse(f"Machine type {machine.machine_type} is not supported for training in {location}.")


def _check_disk(pool: v1.WorkerPoolSpec) -> None:
    machine_type, disk = pool.machine_spec.machine_type, pool.disk_spec.boot_disk_type
    # Rule: a boot disk is pd-ssd, pd-standard or hyperdisk-balanced (machine_resources.proto: boot_disk_type)
    if disk not in ("", "pd-ssd", "pd-standard", "hyperdisk-balanced"):
        refuse(f"Disk type {disk} is not supported.")
    # Rule: v6e supports only Hyperdisk, earlier generations only Persistent Disk; 7x is assumed to be like v6e, and the
    # behaviour for unsupported types is not documented (https://cloud.google.com/tpu/docs/setup-persistent-disk)
    if disk.startswith("pd-" if machine_type.startswith(("ct6e-", "tpu7x-")) else "hyperdisk"):
        refuse(f"Disk type {disk} is not supported by {machine_type}.")


def _check_scheduling(scheduling: v1.Scheduling, machine: v1.MachineSpec) -> None:
    strategy = scheduling.strategy.name
    # Rule: a pipeline's task is cancelled after 7 days; a job that would take longer is refused here
    # (…/quotas: Pipelines, limits)
    if scheduling.timeout and scheduling.timeout > datetime.timedelta(days=7):
        refuse(f"A task runs for 7 days at most. Received: {scheduling.timeout}.")
    # Rule: flex-start supports only GPUs (…/training/schedule-jobs-dws)
    if strategy == "FLEX_START":
        refuse("The scheduling strategy FLEX_START is not supported for TPUs.")
    # Rule: TPU pods do not support spot (…/training/use-spot-vms)
    is_pod = machine.accelerator_count > 8 or (
        machine.machine_type.endswith("-4t") and machine.tpu_topology not in ("2x2", "2x2x1")
    )
    if strategy == "SPOT" and is_pod:
        refuse("Spot VMs are not supported for TPU Pods.")


def _check_container(container: v1.ContainerSpec, local_images: Container[str]) -> None:
    # Rule: a container's image is required, and must be in a registry (custom_job.proto: image_uri)
    if container.image_uri not in local_images:
        check_image(container.image_uri, "container_spec.image_uri")
    # Rule: a container has at most 100 environment variables (custom_job.proto: env)
    if len(container.env) > 100:
        refuse("A container has at most 100 environment variables.")


def check_variables(variables: Iterable[v1.EnvVar]) -> None:
    """Refuse variables of a container with invalid names."""
    for variable in variables:
        # Rule: a variable's name is a C identifier (env_var.proto: name)
        if not re.fullmatch(r"[A-Za-z_]\w*", variable.name):
            refuse(f"Invalid name of an environment variable: {variable.name!r}.")


def check_image(image: str, field: str) -> None:
    """Refuse an image that is not in a registry of Google Cloud."""
    # Rule: a model's image must be in Artifact Registry or Container Registry (model.proto:
    # ModelContainerSpec.image_uri)
    if not _REGISTRY.fullmatch(image):
        refuse(f"{field} must name an image in Artifact Registry or Container Registry. Received: {image!r}.")


def check_network(network: str) -> None:
    """Refuse a network whose name lacks its project's number."""
    # Rule: a network's project is a number, "as in 12345" (pipeline_job.proto and custom_job.proto: network)
    if network and not re.fullmatch(r"projects/\d+/global/networks/[^/]+", network):
        refuse(f"The network's project must be a number. Received: {network!r}.")


def check_attachment(attachment: str, location: str, network: str) -> None:
    """Refuse a network attachment in another region, or together with a network."""
    # Rule: a job has a network or an interface to one, not both (google-cloud-pipeline-components
    # v1/custom_job/utils.py)
    if network and attachment:
        refuse("network and psc_interface_config cannot both be set.")
    # Rule: a network attachment must be "within the region and user project"; the short form is assumed to mean this
    # (service_networking.proto: network_attachment)
    if "/" not in attachment:
        return
    found = _ATTACHMENT.fullmatch(attachment)
    if not found or found[1] != location:
        refuse(f"The network attachment must be one of {location}. Received: {attachment!r}.")


def check_key(key: str, location: str) -> None:
    """Refuse a key with an invalid name, or in another region."""
    # Rule: a key must be "in the same region as where the compute resource is created" (encryption_spec.proto:
    # kms_key_name)
    found = _KEY.fullmatch(key)
    if key and (not found or found[1] != location):
        refuse(f"The encryption key must be one of {location}. Received: {key!r}.")


def check_tensorboard(name: str, location: str) -> None:
    """Refuse a TensorBoard with an invalid name, or in another region."""
    # Rule: a TensorBoard is named projects/…/locations/…/tensorboards/…, in the job's region (custom_job.proto:
    # tensorboard)
    if name and not re.fullmatch(rf"projects/[^/]+/locations/{location}/tensorboards/[^/]+", name):
        refuse(f"tensorboard must name one of {location}. Received: {name!r}.")


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse invalid labels."""
    # Rule: a label has at most 64 lower-case letters, digits, _ and -; the limit here is 63, as elsewhere in Google
    # Cloud (pipeline_job.proto: labels)
    for text in (*labels.keys(), *labels.values()):
        if not _LABEL.fullmatch(text):
            refuse(f"Invalid label: {text!r}.")
    # Rule: a resource has at most 64 labels (https://cloud.google.com/resource-manager/docs/labels-overview)
    if len(labels) > 64:
        refuse(f"At most 64 labels. Received: {len(labels)}.")


def check_aliases(aliases: Iterable[str]) -> None:
    """Refuse invalid aliases of a version."""
    # Rule: a version's alias is [a-z][a-zA-Z0-9-]{0,126}[a-z0-9] (model.proto: version_aliases)
    for alias in aliases:
        if not _ALIAS.fullmatch(alias):
            refuse(f"Invalid version alias: {alias!r}.")


def check_parameters(spec: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse unknown parameters of a pipeline, and missing parameters without a default."""
    # Rule: a run sets only parameters that its pipeline declares, and all parameters without a default; the SDK refuses
    # others before sending (python-aiplatform google/cloud/aiplatform/utils/pipeline_utils.py)
    declared = spec.get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    missing = [name for name, one in declared.items() if "defaultValue" not in one and not one.get("isOptional")]
    if wrong := sorted(set(values) - set(declared)) or sorted(set(missing) - set(values)):
        refuse(f"The pipeline's parameters are {sorted(declared)}. Wrong or missing: {wrong}.")


def free_gib(asked_gib: float) -> float:
    """Return the memory that a step can use on a machine chosen for its request, in GiB."""
    # Rule: agents use up to 40% of the smallest machines, such as the default of 16 GB
    # (…/training/understanding-training-service: Out-of-memory; …/pipelines/machine-types)
    if asked_gib <= 16:
        return 16 * 0.6
    # Rule: agents use less of larger machines; assumed to be what GKE reserves on a node, a share that decreases with
    # its memory (https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-architecture#memory_cpu)
    kept, left = 0.1, asked_gib
    for size, share in ((4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (math.inf, 0.02)):
        kept, left = kept + min(left, size) * share, max(left - size, 0)
    return asked_gib - kept


def check_artifacts(spec: Mapping[str, Any]) -> None:
    """Refuse a pipeline with a task that has too many artifacts; those of a loop are collected."""
    for part in (spec.get("root", {}), *spec.get("components", {}).values()):
        tasks = part.get("dag", {}).get("tasks", {})
        runs = {
            name: len(json.loads(task["parameterIterator"]["items"]["raw"]))
            for name, task in tasks.items()
            if "raw" in task.get("parameterIterator", {}).get("items", {})
        }
        for name, task in tasks.items():
            given = task.get("inputs", {}).get("artifacts", {}).values()
            made = spec["components"][task["componentRef"]["name"]].get("outputDefinitions", {}).get("artifacts", {})
            producers = [one.get("taskOutputArtifact", {}).get("producerTask") for one in given]
            # Rule: a task has at most 100 input and output artifacts; refused here when the pipeline is submitted
            # (…/quotas: Pipelines, limits)
            if (count := sum(runs.get(producer, 1) for producer in producers) + len(made)) > 100:
                refuse(f"Task {name} has {count} input and output artifacts, and the limit is 100.")


def check_outputs(task: str, payload: str) -> None:
    """Refuse too large outputs of a task; `payload` is the JSON that its container writes for the service."""
    # Rule: the JSON of a task's output parameters and artifacts has at most 131,072 bytes (…/quotas: Pipelines, limits)
    if (size := len(payload.encode())) > 131_072:
        refuse(f"The outputs of task {task} have {size} bytes, and the limit is 131072.")


def check_schedule(schedule: v1.Schedule) -> None:
    """Refuse a schedule without a time, a name or a limit."""
    # Rule: a cron expression has five fields, optionally preceded by a time zone (schedule.proto: cron)
    cron = schedule.cron.rpartition("TZ=")[2].split(" ", "TZ=" in schedule.cron)[-1]
    if len(cron.split()) != 5 or not re.fullmatch(r"[\d*/,\- A-Za-z]+", cron):
        refuse(f"Invalid cron: {schedule.cron!r}.")
    check_display_name(schedule.display_name, "schedule")
    # Rule: a schedule's name and max_concurrent_run_count are required (schedule.proto)
    if not schedule.display_name or schedule.max_concurrent_run_count < 1:
        refuse("display_name and a positive max_concurrent_run_count are required.")
    # Rule: a schedule's request names the parent, but no id, because each run gets its own (schedule.proto: request)
    request = schedule.create_pipeline_job_request
    if not request.parent or request.pipeline_job_id:
        refuse("create_pipeline_job_request.parent is required, and pipeline_job_id is not supported.")


def check_traffic(endpoint: v1.Endpoint) -> None:
    """Refuse an invalid traffic split."""
    # Rule: an endpoint's traffic split sums to 100 over deployed models, or is empty (endpoint.proto: traffic_split)
    split, known = dict(endpoint.traffic_split), {deployed.id for deployed in endpoint.deployed_models}
    if not set(split) <= known or (known and split and sum(split.values()) != 100):
        refuse(f"Traffic must be 100 in all, on deployed models. Received: {split}.")


def check_replicas(resources: v1.DedicatedResources) -> None:
    """Refuse a deployment without a machine or replicas."""
    # Rule: a deployment has a machine and at least one replica (machine_resources.proto: DedicatedResources)
    if not resources.machine_spec.machine_type or resources.min_replica_count < 1:
        refuse("dedicated_resources needs machine_spec.machine_type and a min_replica_count of at least 1.")


def check_endpoint(endpoint: v1.Endpoint, location: str) -> None:
    """Refuse an endpoint that is invalid, or not in this location."""
    # Rule: an endpoint requires a display name of at most 128 characters (endpoint.proto: display_name)
    if not 1 <= len(endpoint.display_name) <= 128:
        refuse("endpoint.display_name is required, of at most 128 characters.")
    check_labels(endpoint.labels)
    check_key(endpoint.encryption_spec.kms_key_name, location)
    check_network(endpoint.network)


def check_asked_where_it_is(endpoint: v1.Endpoint, address: str) -> None:
    """Refuse a request for an endpoint at another address than its own; empty is the service's address."""
    if address == endpoint.dedicated_endpoint_dns:
        return
    # Rule: a dedicated endpoint does not answer at the service's address, but with FAILED_PRECONDITION in these words
    # (endpoint.proto: dedicated_endpoint_enabled; users report the words)
    message = "Dedicated Endpoint cannot be accessed through the shared Vertex AI domain aiplatform.googleapis.com."
    raise ServiceError("FAILED_PRECONDITION", message)


def check_size(endpoint: v1.Endpoint, request: v1.PredictRequest) -> None:
    """Refuse a request that is too large for the endpoint's type."""
    # Rule: a request has at most 1.5 MB for a shared endpoint, and 10 MB for others
    # (…/predictions/choose-endpoint-type; MB or MiB is not specified)
    is_shared = not endpoint.dedicated_endpoint_dns
    size, most = len(v1.PredictRequest.to_json(request, indent=None)), 1_500_000 if is_shared else 10_000_000
    if size > most:
        refuse(f"The request size ({size} bytes) exceeds {most} bytes limit.")


def below(places: set[str], name: str) -> bool:
    """Return whether a gs:// path or an image is one of these, or is below one."""
    return any(name == one or name.startswith((f"{one.rstrip('/')}/", f"{one}@", f"{one}:")) for one in places)
