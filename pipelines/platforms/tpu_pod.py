"""The training step as a pod that asks a Kubeflow cluster for a TPU."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from components.errors import InputError
from components.machine_spec import MachineSpec, load_catalogue
from pipelines.platforms.steps import Step
from pipelines.resources import (
    TIMEOUT_WITHOUT_ESTIMATE_SECONDS,
    apply_retries,
    place_on,
)
from pipelines.settings import Settings
from pipelines.step_resources import StepResources

# The label of a single host's nodes: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
_GKE_ACCELERATORS = {"v3": "tpu-v3-device", "v5e": "tpu-v5-lite-podslice", "v6e": "tpu-v6e-slice", "7x": "tpu7x"}


def as_tpu_pod(
    component: Any,
    machine: MachineSpec,
    settings: Settings,
    name: str,
    asked: StepResources | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> Step:
    """Return a step whose pod asks a GKE cluster for a TPU.

    Args:
        component: Stays as it is.
        machine: A single host. Its region, boot disk and restarts are the cluster's affair.
        settings: Labels, environment, secrets, volumes, queue and how the node is had.
        name: Name of the run, and of its folder on the first volume.
        asked: Resources that it asks for beside the TPU; None is no more.
        fingerprint: Fingerprints that decide the training's result beside its inputs; a part of the folder's name.

    Raises:
        InputError: If GKE does not have the machine, or it has several hosts.
    """
    machine.require_one_host("On Kubeflow a pipeline does not start several hosts yet")
    try:
        from kfp import kubernetes
    except ImportError as error:
        raise InputError(
            "Cannot compile for kubeflow: kfp-kubernetes is not installed. Run: pip install 'tpu-pipelines[kubeflow]'."
        ) from error
    selectors = node_selectors(machine, settings)
    environment = dict(settings.environment)
    for path in list(settings.volumes.values())[:1]:
        # Weights that other code, or another model of that name, trained to the end are not taken for this one's.
        version = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]
        folder = f"{path.rstrip('/')}/{name}/{version}"
        environment.setdefault("AIP_CHECKPOINT_DIR", folder)

    def step(**inputs: Any) -> Any:
        task = component(**inputs)
        task.set_accelerator_type("google.com/tpu").set_accelerator_limit(machine.slice.chips)
        for key, value in environment.items():
            task.set_env_variable(key, value)
        for key, value in selectors.items():
            kubernetes.add_node_selector(task, key, value)
        kubernetes.add_toleration(task, key="google.com/tpu", operator="Exists", effect="NoSchedule")
        if machine.spot:
            kubernetes.add_toleration(
                task, key="cloud.google.com/gke-spot", operator="Equal", value="true", effect="NoSchedule"
            )
        for key, value in settings.labels.items():
            kubernetes.add_pod_label(task, key, value)
        if settings.kueue_queue:
            # https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods: the pod waits until its queue admits it.
            kubernetes.add_pod_label(task, "kueue.x-k8s.io/queue-name", settings.kueue_queue)
        for secret, path in settings.secrets.items():
            kubernetes.use_secret_as_volume(task, secret, path)
        for claim, path in settings.volumes.items():
            kubernetes.mount_pvc(task, claim, path)
        timeout_seconds = machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
        if asked:
            task = place_on("kubeflow", apply_retries(task, asked, timeout_seconds), asked)
            # No limits: who has all chips has the host to itself.
            task.set_cpu_request(str(asked.cpu)).set_memory_request(asked.memory)
        return kubernetes.set_timeout(task, timeout_seconds)

    return step


def node_selectors(machine: MachineSpec, settings: Settings) -> dict[str, str]:
    """Return the labels of the nodes that have a machine.

    Raises:
        InputError: If GKE has no such machine.
    """
    entry = machine.slice
    generation = entry.generation.name
    singles = [other for other in load_catalogue().slices if other.hosts == 1]
    if generation not in _GKE_ACCELERATORS:
        able = ", ".join(other.name for other in singles if other.generation.name in _GKE_ACCELERATORS)
        raise InputError(
            f"GKE has no TPU {generation}. Received: {entry.name}. Expected one of {able}, or --target vertex."
        )
    selectors = {
        "cloud.google.com/gke-tpu-accelerator": _GKE_ACCELERATORS[generation],
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
