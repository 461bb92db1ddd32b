"""The training step on a Kubeflow cluster: a pod that asks for a TPU, or one that starts a JobSet of several hosts."""

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
from tpu_pipelines.config.step_resources import StepResources
from tpu_pipelines.platforms import s3
from tpu_pipelines.platforms.jobs import slug
from tpu_pipelines.platforms.steps import Step

# The label of the nodes: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
_GKE_ACCELERATORS = {"v3": "tpu-v3-device", "v5e": "tpu-v5-lite-podslice", "v6e": "tpu-v6e-slice", "7x": "tpu7x"}
_GKE_PODSLICES = {**_GKE_ACCELERATORS, "v3": "tpu-v3-slice"}  # Those of several hosts.
_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
# Hosts may be lost so often; what a user is mistaken in starts nothing again.
_MOST_RESTARTS = 10
_KEPT_SECONDS = 24 * 3600  # That a JobSet which has failed can be looked at.
# That of the images' user, whom Kubernetes lets write to a pod's volumes so.
_GROUP_ID = 1000  # docker/Dockerfile: useradd
# A proxy beside a host would stand between the hosts, and never end. As KFP labels and annotates pods of its own; the
# label is what Istio reads today: https://istio.io/latest/docs/reference/config/annotations
_WITHOUT_PROXY = {"sidecar.istio.io/inject": "false"}


@dataclasses.dataclass(frozen=True)
class TpuPod:
    """The pod of a host that trains, whoever starts it.

    Attributes:
        chips: TPU chips that it asks for.
        selectors: Labels of its node.
        tolerations: Taints of its node.
        labels: Labels of its own.
        environment: Variables of its container.
        secrets: Secrets that it mounts, and their paths.
        volumes: Persistent volume claims that it mounts, and their paths.
        cpu: CPUs that it asks for; 0 asks for none.
        memory: Memory that it asks for, as `16Gi`.
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
    """Return a step whose pod asks a GKE cluster for a TPU, or whose pod starts others that do.

    Args:
        component: Stays as it is.
        machine: Its region, boot disk and restarts are the cluster's affair.
        settings: Labels, environment, secrets, volumes, queue and how the node is had.
        name: Name of the run, and of its folder on the first volume.
        asked: Resources that it asks for beside the TPU; None is no more.
        fingerprint: Fingerprints that decide the training's result beside its inputs; a part of the folder's name.

    Raises:
        InputError: If GKE does not have the machine, or its hosts would have no volume in common.
    """
    try:
        from kfp import kubernetes
    except ImportError as error:
        raise InputError(
            "Cannot compile for kubeflow: kfp-kubernetes is not installed. Run: pip install 'tpu-pipelines[kubeflow]'."
        ) from error
    # Weights that other code, or another model of that name, trained to the end are not taken for this one's.
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
            # Of several hosts each attempt follows the same ones, which have one time.
            task = apply_retries(task, asked, timeout_seconds, is_of_all=has_others)
            task = task if has_others else place_on("kubeflow", task, asked)
            # No limits: who has all chips has the host to itself.
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
    """Return the pod of a step that starts others: it needs no TPU, and what they are to be.

    Raises:
        InputError: If they would have no volume in common.
    """
    if not folder:
        raise InputError(
            f"{machine.name} has {machine.slice.hosts} hosts, which on Kubeflow read the records from a volume of all "
            "and leave the model there: expected a claim that many pods mount (ReadWriteMany), received none. Set "
            "TPU_PIPELINES_VOLUMES=CLAIM=/mnt/PATH, or use a machine of one host."
        )
    ask = json.dumps({"manifest": manifest, "shared": f"{folder}/hosts"}, sort_keys=True)
    own = {key: value for key, value in pod.environment.items() if key != COUNT_VARIABLE}  # This one is no host.
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
    """Return the JobSet of a slice without its name and command: api/jobset/v1alpha2/jobset_types.go of JobSet."""
    hosts = machine.slice.hosts
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # None goes on without the others.
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
            # All pods on the nodes of one slice: https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "failurePolicy": {
                "maxRestarts": _MOST_RESTARTS,
                # A mistake, and the end of the time: what fits no rule starts again, with all its time.
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
        # The step's account may start JobSets, and hosts ask the cluster nothing. At Google they sign in as it all the
        # same: GKE's metadata server knows a pod's account without this token, and Google's own module mounts none
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
                # As KFP has it of its steps (backend/src/v2/compiler/argocompiler/security_context.go). Who it runs as,
                # the image says: a TPU may need root.
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": name, kind: {key: name}} for name, (kind, key, _) in mounts.items()],
    }


def node_selectors(machine: MachineSpec, settings: Settings) -> dict[str, str]:
    """Return the labels of the nodes that have a machine.

    Raises:
        InputError: If GKE has no such machine.
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
    """Return the label of what waits until its queue admits it: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods."""
    return {_KUEUE_QUEUE: settings.kueue_queue} if settings.kueue_queue else {}


def _is_on_gke(entry: Slice) -> bool:
    return entry.generation.name in _GKE_ACCELERATORS
