"""Sets up the pods of steps on Kubeflow that need a TPU, GPUs, several hosts (as a JobSet), or access to S3."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import BAD_INPUT, InputError
from tpu_components.core.machines.hosts import COUNT_VARIABLE
from tpu_components.core.machines.machine_spec import GPU, KUBEFLOW, TPU, MachineSpec
from tpu_components.train_model.jobset import GROUP, JOBSET_VARIABLE, VERSION
from tpu_pipelines.config.settings import Settings, folder_of, setting
from tpu_pipelines.config.steps import StepResources, gib
from tpu_pipelines.platforms.jobs import PlacedStep, Placement, slug
from tpu_pipelines.platforms.kubeflow.resources import SCRATCH_FOLDER, SCRATCH_VOLUME, as_root, place
from tpu_pipelines.platforms.resources import TIMEOUT_WITHOUT_ESTIMATE_SECONDS, apply_retries

# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, …/how-to/gpus
_RESOURCES = {TPU: "google.com/tpu", GPU: "nvidia.com/gpu"}
_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
# Limit of restarts after lost hosts; a user's mistake causes no restart.
_MOST_RESTARTS = 10
_KEPT_SECONDS = 24 * 3600  # Time to inspect a failed JobSet.
# Group of the images' user; Kubernetes gives it write access to a pod's volumes.
_GROUP_ID = 1000  # docker/Dockerfile: useradd
# A sidecar proxy would be between the hosts and never end. KFP sets label and annotation on its own pods too; Istio now
# reads the label: https://istio.io/latest/docs/reference/config/annotations
_WITHOUT_PROXY = {"sidecar.istio.io/inject": "false"}
# Variables of boto3: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html. A pod does not
# start if the secret lacks one of the first: https://kubernetes.io/docs/concepts/configuration/secret/#restriction-secret-must-exist
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
OPTIONAL_KEYS = ("AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def as_tpu_pod(component: Any, machine: MachineSpec, settings: Settings, placement: Placement) -> PlacedStep:
    """Return a step whose pod requests a TPU or GPUs from a GKE cluster, or starts a JobSet that requests them.

    Args:
        component: Component of the step. It is not changed.
        machine: Machine of the training step. Region, boot disk and restarts are ignored, because the cluster
            determines them.
        settings: Labels, environment, secrets, volumes, queue and provisioning mode.
        placement: Name and resources of the step, and the folder of its checkpoints on the first volume. Only the step
            `train_model` has checkpoints.

    Raises:
        InputError: If GKE does not have the machine, the pod requests more than its host has, or several hosts have no
            shared volume.
    """
    import kfp.kubernetes as kubernetes

    requested = placement.resources
    step = placement.step
    folder = placement.folder or slug(placement.run)
    shared = next((f"{path.rstrip('/')}/{folder}" for path in settings.volumes.values()), "")
    checkpoints = {"AIP_CHECKPOINT_DIR": shared} if shared and step == "train_model" else {}
    environment = {**checkpoints, **settings.environment}
    selectors = node_selectors(machine, settings)
    is_slice = machine.slice.hosts > 1
    timeout_seconds = machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    _check_request(requested, machine)
    if is_slice and not shared:
        raise InputError(
            f"{machine.name} has {machine.slice.hosts} hosts. On Kubeflow, they share the records and the model on a "
            "volume: expected a claim that many pods can mount (ReadWriteMany), received none. Add "
            f"one to the {setting('volumes')} as CLAIM=/mnt/PATH, or use a machine with one host."
        )
    if requested.disk and (mount := _like_the_disk(settings)):
        raise InputError(
            f"Cannot mount {mount} for {step}: the step's disk already uses the volume name {SCRATCH_VOLUME!r} and the "
            f"path {SCRATCH_FOLDER}. Remove resources.{step}.disk, or give the mount another name and path."
        )
    if is_slice:
        image = component.component_spec.implementation.container.image
        template = _host_pod(machine, settings, environment, requested, image)
        request = {
            "manifest": _jobset(template, machine, settings, placement.run, timeout_seconds),
            "shared": f"{shared}/hosts",
        }
        environment[JOBSET_VARIABLE] = json.dumps(request, sort_keys=True)

    def make(**inputs: Any) -> Any:
        task = component(**inputs)
        if not is_slice:  # The pod that starts a JobSet has no TPU.
            resource = _RESOURCES[machine.slice.generation.accelerator]
            task.set_accelerator_type(resource).set_accelerator_limit(machine.slice.chips)
            for key, value in selectors.items():
                kubernetes.add_node_selector(task, key, value)
            for toleration in _tolerations(machine):
                kubernetes.add_toleration(task, **toleration)
        for key, value in environment.items():
            task.set_env_variable(key, value)
        for key, value in {**settings.labels, **({} if is_slice else _queue(settings))}.items():
            kubernetes.add_pod_label(task, key, value)
        for secret, path in settings.secrets.items():
            kubernetes.use_secret_as_volume(task, secret, path)
        for claim, path in settings.volumes.items():
            kubernetes.mount_pvc(task, claim, path)
        if settings.volumes:
            as_root(task)
        # All attempts of a step with a JobSet follow this JobSet and share its time limit.
        task = apply_retries(task, requested, timeout_seconds, is_of_all=is_slice)
        task = task if is_slice else place(task, requested)
        # No limits: a pod with all chips has the host to itself.
        task.set_cpu_request("1" if is_slice else str(requested.cpu))
        task.set_memory_request("2Gi" if is_slice else requested.memory)
        kubernetes.set_timeout(task, timeout_seconds)
        return signed_in(task, settings) if placement.uses_s3 else task

    return make


def _check_request(requested: StepResources, machine: MachineSpec) -> None:
    """Check that a TPU host has the requested CPUs and memory. GPUs are not checked: their hosts differ in size.

    Raises:
        InputError: If the host does not have them. The pod would never start.
    """
    host = machine.slice.host
    if host is None or machine.slice.is_gpu:
        return
    host_gib = host.ram_bytes / 2**30
    # https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes: GKE keeps a part for itself.
    if requested.cpu >= host.vcpus or gib(requested.memory) >= host_gib:
        raise InputError(
            f"A host of {machine.name} has {host.vcpus} CPUs and {host_gib:.0f} GiB of memory, part of which GKE uses. "
            f"The pod requests {requested.cpu} CPUs and {requested.memory}, so it would never start. Request less, or "
            "use a larger machine."
        )


def _like_the_disk(settings: Settings) -> str:
    """Return the claim or secret, as `NAME=PATH`, that has the same name or path as the disk of a step.

    Return an empty string if there is none.
    """
    for name, path in (*settings.volumes.items(), *settings.secrets.items()):
        if name == SCRATCH_VOLUME or folder_of(path) == SCRATCH_FOLDER:
            return f"{name}={path}"
    return ""


def _tolerations(machine: MachineSpec) -> list[dict[str, str]]:
    resource = _RESOURCES[machine.slice.generation.accelerator]
    tolerations = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if machine.spot:
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        tolerations.append(spot)
    return tolerations


def _jobset(
    template: Mapping[str, Any], machine: MachineSpec, settings: Settings, name: str, timeout_seconds: int
) -> dict[str, Any]:
    """Return the JobSet of a slice, without name and command.

    Source: JobSet's api/jobset/v1alpha2/jobset_types.go.
    """
    hosts = machine.slice.hosts
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # A host cannot continue without the others.
        "activeDeadlineSeconds": timeout_seconds,
        # https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "train", "operator": "In", "values": [BAD_INPUT]},
                }
            ]
        },
        "template": template,
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "JobSet",
        "metadata": {
            "generateName": slug(name),
            "labels": {**settings.labels, **_queue(settings)},
            # Puts all pods on the nodes of one slice: https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "failurePolicy": {
                "maxRestarts": _MOST_RESTARTS,
                # No restart after a user's mistake or the time limit. Other failures restart with the full time limit.
                "rules": [
                    {
                        "name": "final",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
                    }
                ],
            },
            "replicatedJobs": [{"name": "host", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _host_pod(
    machine: MachineSpec,
    settings: Settings,
    environment: Mapping[str, str],
    requested: StepResources,
    image: str,
) -> dict[str, Any]:
    """Return the template of a host's pod in a JobSet."""
    entry = machine.slice
    variables = {**environment, COUNT_VARIABLE: str(entry.hosts)}
    # Settings check that names and paths differ.
    mounts = [
        *((claim, {"persistentVolumeClaim": {"claimName": claim}}, path) for claim, path in settings.volumes.items()),
        *((secret, {"secret": {"secretName": secret}}, path) for secret, path in settings.secrets.items()),
    ]
    signing_in = variables_of(settings.s3_secret) if settings.s3_secret else []
    spec = {
        "restartPolicy": "Never",
        # Hosts must not have the step's permission to start JobSets, and do not call the cluster. They can still sign
        # in to Google: GKE's metadata server needs no such token, and Google's own module mounts none
        # (https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity;
        # terraform-google-modules/terraform-google-kubernetes-engine modules/workload-identity/variables.tf).
        "automountServiceAccountToken": False,
        "securityContext": {
            "fsGroup": _GROUP_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": node_selectors(machine, settings),
        "tolerations": _tolerations(machine),
        "containers": [
            {
                "name": "train",
                "image": image,
                "env": [*({"name": key, "value": value} for key, value in variables.items()), *signing_in],
                "resources": {
                    "limits": {"google.com/tpu": str(entry.chips // entry.hosts)},
                    "requests": {"cpu": str(requested.cpu), "memory": requested.memory},
                },
                "volumeMounts": [{"name": name, "mountPath": path} for name, _, path in mounts],
                # As for KFP's steps (backend/src/v2/compiler/argocompiler/security_context.go). The image sets the
                # user: a TPU may need root.
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": name, **source} for name, source, _ in mounts],
    }
    labels = {**settings.labels, **_WITHOUT_PROXY}
    return {"metadata": {"labels": labels, "annotations": dict(_WITHOUT_PROXY)}, "spec": spec}


def node_selectors(machine: MachineSpec, settings: Settings) -> dict[str, str]:
    """Return the node labels that select a machine on GKE.

    Raises:
        InputError: If GKE does not have the machine, or `flex-start` is combined with spot or a reservation.
    """
    entry = machine.slice
    generation = entry.generation
    entry.require_target(KUBEFLOW)
    kind = (generation.gke_pod_accelerator if entry.hosts > 1 else "") or generation.gke_accelerator
    selectors = (
        {"cloud.google.com/gke-accelerator": kind}
        if entry.is_gpu
        else {
            "cloud.google.com/gke-tpu-accelerator": kind,
            "cloud.google.com/gke-tpu-topology": entry.libtpu_topology.partition(":")[2],
        }
    )
    if machine.spot:
        selectors["cloud.google.com/gke-spot"] = "true"
    if settings.provisioning:
        if machine.spot or machine.reservation:
            raise InputError(
                f"A flex-start node cannot be spot or reserved. Received: provisioning={settings.provisioning!r} "
                f"with {machine.name}, spot={machine.spot}, reservation={machine.reservation!r}. Either "
                "remove the setting provisioning, or remove spot and reservation from the machine."
            )
        # https://cloud.google.com/kubernetes-engine/docs/how-to/dws-flex-start-training
        selectors["cloud.google.com/gke-flex-start"] = "true"
    if machine.reservation:
        # https://cloud.google.com/kubernetes-engine/docs/how-to/consuming-reservations
        _, project, _, _, _, reservation = machine.reservation.split("/")
        selectors["cloud.google.com/reservation-affinity"] = "specific"
        selectors["cloud.google.com/reservation-name"] = reservation
        selectors["cloud.google.com/reservation-project"] = project
        if not all(map(_LABEL_VALUE.fullmatch, (project, reservation))):
            raise InputError(
                f"Cannot use machine.reservation={machine.reservation!r} on Kubeflow, because the project and the name "
                "of the reservation do not both fit into a node label: expected at most 63 letters, digits, '-', '_' "
                f"and '.' in each, received the project {project!r} and the name {reservation!r}. Check both with "
                "gcloud compute reservations list."
            )
    return selectors


def _queue(settings: Settings) -> dict[str, str]:
    """Return the pod label that names Kueue's queue, or an empty mapping without a queue.

    https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods.
    """
    return {_KUEUE_QUEUE: settings.kueue_queue} if settings.kueue_queue else {}


def variables_of(secret: str) -> list[dict[str, Any]]:
    """Return the environment variables with the credentials for S3, for the specification of a Kubernetes pod.

    The values come from a Kubernetes secret, in which every key is optional.
    """
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for key in (*KEYS, *OPTIONAL_KEYS)
    ]


def signed_in(task: Any, settings: Settings) -> Any:
    """Give a task the credentials for S3, as environment variables from a Kubernetes secret. Return the task.

    The setting `s3_secret` names the secret. If it is empty, the task is not changed.
    """
    from kfp import kubernetes

    secret = settings.s3_secret
    if not secret:
        return task
    kubernetes.use_secret_as_env(task, secret, {key: key for key in KEYS})
    return kubernetes.use_secret_as_env(task, secret, {key: key for key in OPTIONAL_KEYS}, optional=True)
