"""Training step on a Kubeflow cluster: a pod that requests a TPU, or a pod that starts a JobSet of several hosts."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.hosts import COUNT_VARIABLE
from tpu_components.core.machines.machine_spec import MachineSpec, Slice, load_catalogue
from tpu_components.core.step.command_line import BAD_INPUT
from tpu_components.train_model.jobset import GROUP, JOBSET_VARIABLE, VERSION
from tpu_pipelines.config.resources import TIMEOUT_WITHOUT_ESTIMATE_SECONDS, apply_retries, as_root, place_on
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.config.steps import StepResources
from tpu_pipelines.platforms import s3
from tpu_pipelines.platforms.jobs import slug
from tpu_pipelines.platforms.steps import Step

# Node labels: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
_GKE_ACCELERATORS = {"v3": "tpu-v3-device", "v5e": "tpu-v5-lite-podslice", "v6e": "tpu-v6e-slice", "7x": "tpu7x"}
_GKE_PODSLICES = {**_GKE_ACCELERATORS, "v3": "tpu-v3-slice"}  # For slices of several hosts.
_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
# Limit for lost hosts; a user's mistake is never restarted.
_MOST_RESTARTS = 10
_KEPT_SECONDS = 24 * 3600  # Time to inspect a failed JobSet.
# Group of the images' user; Kubernetes gives it write access to a pod's volumes.
_GROUP_ID = 1000  # docker/Dockerfile: useradd
# A sidecar proxy would be between the hosts and never end. KFP sets label and annotation on its own pods too; Istio now
# reads the label: https://istio.io/latest/docs/reference/config/annotations
_WITHOUT_PROXY = {"sidecar.istio.io/inject": "false"}


@dataclasses.dataclass(frozen=True)
class TpuPod:
    """Pod of a training host.

    Attributes:
        chips: TPU chips to request.
        selectors: Required labels of the node.
        tolerations: Tolerated taints of the node.
        labels: Labels of the pod.
        environment: Environment variables of the container.
        secrets: Secrets to mount, with their paths.
        volumes: Persistent volume claims to mount, with their paths.
        cpu: CPUs to request; 0 requests none.
        memory: Memory to request, for example `16Gi`.
    """

    chips: int
    selectors: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    volumes: Mapping[str, str]
    cpu: int = 0
    memory: str = ""


def as_tpu_pod(
    component: Any,
    machine: MachineSpec,
    settings: Settings,
    name: str,
    asked: StepResources | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> Step:
    """Return a step whose pod requests a TPU from a GKE cluster, or starts a JobSet that does.

    Args:
        component: Component of the step; it is not changed.
        machine: Machine of the training. Region, boot disk and restarts are ignored: the cluster decides them.
        settings: Labels, environment, secrets, volumes, queue and kind of node.
        name: Name of the run, and of its folder on the first volume.
        asked: Further resources of the step; None requests none.
        fingerprint: Facts besides the inputs that determine the result; part of the folder's name.

    Raises:
        InputError: If GKE does not have the machine, or several hosts have no shared volume.
    """
    import kfp.kubernetes as kubernetes

    # The folder depends on code and model, so that finished weights of others are not reused.
    version = digest_of(fingerprint)[:12]
    folder = next((f"{path.rstrip('/')}/{name}/{version}" for path in settings.volumes.values()), "")
    pod = _tpu_pod(machine, settings, asked, folder)
    timeout_seconds = machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    has_others = machine.slice.hosts > 1
    if has_others:
        image = component.component_spec.implementation.container.image
        pod = _waiting_pod(pod, _jobset(pod, machine, settings, name, image, timeout_seconds), folder, machine)

    def step(**inputs: Any) -> Any:
        task = component(**inputs)
        if pod.chips:
            task.set_accelerator_type("google.com/tpu").set_accelerator_limit(pod.chips)
        for key, value in pod.environment.items():
            task.set_env_variable(key, value)
        for key, value in pod.selectors.items():
            kubernetes.add_node_selector(task, key, value)
        for toleration in pod.tolerations:
            kubernetes.add_toleration(task, **toleration)
        for key, value in pod.labels.items():
            kubernetes.add_pod_label(task, key, value)
        for secret, path in pod.secrets.items():
            kubernetes.use_secret_as_volume(task, secret, path)
        for claim, path in pod.volumes.items():
            kubernetes.mount_pvc(task, claim, path)
        if pod.volumes:
            as_root(task)
        if asked:
            # With several hosts, all attempts follow one JobSet and share its time limit.
            task = apply_retries(task, asked, timeout_seconds, is_of_all=has_others)
            task = task if has_others else place_on("kubeflow", task, asked)
            # No limits: a pod with all chips has the host to itself.
            task.set_cpu_request(str(pod.cpu)).set_memory_request(pod.memory)
        return kubernetes.set_timeout(task, timeout_seconds)

    return step


def _tpu_pod(machine: MachineSpec, settings: Settings, asked: StepResources | None, folder: str) -> TpuPod:
    hosts = machine.slice.hosts
    tolerations = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    if machine.spot:
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        tolerations.append(spot)
    return TpuPod(
        chips=machine.slice.chips // hosts,
        selectors=node_selectors(machine, settings),
        tolerations=tuple(tolerations),
        labels={**settings.labels, **(_queue(settings) if hosts == 1 else {})},
        environment={
            **({"AIP_CHECKPOINT_DIR": folder} if folder else {}),
            **settings.environment,
            **({COUNT_VARIABLE: str(hosts)} if hosts > 1 else {}),
        },
        secrets=settings.secrets,
        volumes=settings.volumes,
        cpu=asked.cpu if asked else 0,
        memory=asked.memory if asked else "",
    )


def _waiting_pod(pod: TpuPod, manifest: Mapping[str, Any], folder: str, machine: MachineSpec) -> TpuPod:
    """Return the pod of a step that starts a JobSet: it has no TPU, and the JobSet's manifest in its environment.

    Raises:
        InputError: If the hosts have no shared volume.
    """
    if not folder:
        raise InputError(
            f"{machine.name} has {machine.slice.hosts} hosts, which on Kubeflow read the records from a volume of all "
            "and leave the model there: expected a claim that many pods mount (ReadWriteMany), received none. Set "
            "TPU_PIPELINES_VOLUMES=CLAIM=/mnt/PATH, or use a machine of one host."
        )
    ask = json.dumps({"manifest": manifest, "shared": f"{folder}/hosts"}, sort_keys=True)
    own = {key: value for key, value in pod.environment.items() if key != COUNT_VARIABLE}  # This pod is not a host.
    return dataclasses.replace(
        pod,
        chips=0,
        selectors={},
        tolerations=(),
        environment={**own, JOBSET_VARIABLE: ask},
        cpu=1,
        memory="2Gi",
    )


def _jobset(
    pod: TpuPod, machine: MachineSpec, settings: Settings, name: str, image: str, timeout_seconds: int
) -> dict[str, Any]:
    """Return the JobSet of a slice, without name and command; see JobSet's api/jobset/v1alpha2/jobset_types.go."""
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
        "template": {
            "metadata": {"labels": {**pod.labels, **_WITHOUT_PROXY}, "annotations": dict(_WITHOUT_PROXY)},
            "spec": _pod_spec(pod, settings, image),
        },
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


def _pod_spec(pod: TpuPod, settings: Settings, image: str) -> dict[str, Any]:
    mounts = {claim: ("persistentVolumeClaim", "claimName", path) for claim, path in pod.volumes.items()}
    mounts |= {secret: ("secret", "secretName", path) for secret, path in pod.secrets.items()}
    signing_in = s3.variables_of(settings.s3_secret) if settings.s3_secret else []
    requests = {"cpu": str(pod.cpu), "memory": pod.memory} if pod.cpu else {}
    return {
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
        "nodeSelector": dict(pod.selectors),
        "tolerations": [dict(toleration) for toleration in pod.tolerations],
        "containers": [
            {
                "name": "train",
                "image": image,
                "env": [*({"name": key, "value": value} for key, value in pod.environment.items()), *signing_in],
                "resources": {"limits": {"google.com/tpu": str(pod.chips)}, "requests": requests},
                "volumeMounts": [{"name": name, "mountPath": path} for name, (_, _, path) in mounts.items()],
                # As for KFP's steps (backend/src/v2/compiler/argocompiler/security_context.go). The image sets the
                # user: a TPU may need root.
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": name, kind: {key: name}} for name, (kind, key, _) in mounts.items()],
    }


def node_selectors(machine: MachineSpec, settings: Settings) -> dict[str, str]:
    """Return the labels of nodes with a machine.

    Raises:
        InputError: If GKE does not have the machine.
    """
    entry = machine.slice
    generation = entry.generation.name
    if generation not in _GKE_ACCELERATORS:
        able = ", ".join(other.name for other in load_catalogue().slices if _is_on_gke(other) and other.hosts == 1)
        raise InputError(
            f"GKE has no TPU {generation}. Received: {entry.name}. Expected one of {able}, or --target vertex."
        )
    selectors = {
        "cloud.google.com/gke-tpu-accelerator": (_GKE_PODSLICES if entry.hosts > 1 else _GKE_ACCELERATORS)[generation],
        "cloud.google.com/gke-tpu-topology": entry.libtpu_topology.partition(":")[2],
    }
    if machine.spot:
        selectors["cloud.google.com/gke-spot"] = "true"
    if settings.provisioning:
        if machine.spot or machine.reservation:
            raise InputError(
                f"A node of flex-start is neither spot nor reserved. Received: provisioning={settings.provisioning!r} "
                f"with {machine.name}, spot={machine.spot}, reservation={machine.reservation!r}. Leave out one of them."
            )
        # https://cloud.google.com/kubernetes-engine/docs/how-to/dws-flex-start-training
        selectors["cloud.google.com/gke-flex-start"] = "true"
    if machine.reservation:
        # https://cloud.google.com/kubernetes-engine/docs/how-to/consuming-reservations
        _, project, _, _, _, reservation = machine.reservation.split("/")
        selectors["cloud.google.com/reservation-affinity"] = "specific"
        selectors["cloud.google.com/reservation-name"] = reservation
        selectors["cloud.google.com/reservation-project"] = project
    return selectors


def _queue(settings: Settings) -> dict[str, str]:
    """Return Kueue's label of the queue that admits a pod: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods."""
    return {_KUEUE_QUEUE: settings.kueue_queue} if settings.kueue_queue else {}


def _is_on_gke(entry: Slice) -> bool:
    return entry.generation.name in _GKE_ACCELERATORS
