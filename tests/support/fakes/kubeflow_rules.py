"""Checks of Kubeflow Pipelines when an object is created; each raises a `ServiceError`.

Every rule names its source; `tests/support/fakes/RULES` lists them, as of kubeflow/pipelines at 7b70c7b.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.fakes.google_api import ServiceError

# Rule: a server does not know fields of later versions; its driver ignores them or fails, so they are refused here
# (kubeflow/pipelines kubernetes_platform/proto/kubernetes_executor_config.proto and api/v2alpha1/pipeline_spec.proto at
# 2.14.0, 2.15.0, 2.16.0, 2.17.0 and 7b70c7b)
_SINCE = {
    "taskFinalStatus": (2, 14),
    "pvcSpecPatch": (2, 14),
    "taskConfigPassthroughs": (2, 15),
    "downloadToWorkspace": (2, 15),
    "secretAsEnv.optional": (2, 15),
    "securityContext": (2, 16),
    "pvcMount.subPath": (2, 16),
    "literals": (2, 16),
    "resourceTtlOnCompletion": (2, 17),
    "resourceTtlOnSuccess": (2, 17),
    "resourceTtlOnFailure": (2, 17),
    "pipelineConfig.activeDeadlineSeconds": (2, 17),
    "dataSource": (2, 17),
    "initContainers": (2, 18),
}
# Columns of the tables of runs, recurring runs and experiments, in characters.
COLUMNS = {"DisplayName": 255, "Description": 255, "Schedule": 255}
_EXPERIMENT_BYTES = 128
_NAMESPACE_BYTES = 63
_SPECIFICATION_BYTES = 700_000


def check_fields(spec: Any, version: str, parent: str = "") -> None:
    """Refuse fields that a server of a version does not know."""
    if isinstance(spec, Mapping):
        for name, value in spec.items():
            since = _SINCE.get(f"{parent}.{name}", _SINCE.get(name, (0, 0)))
            if since > tuple(map(int, version.split(".")[:2])):
                raise ServiceError(
                    "INVALID_ARGUMENT", f"unknown field {name!r}: it is of KFP {'.'.join(map(str, since))}"
                )
            check_fields(value, version, name)
    elif isinstance(spec, list):
        for value in spec:
            check_fields(value, version, parent)


def check_columns(doing: str, texts: dict[str, str | None], columns: dict[str, int] = COLUMNS) -> None:
    """Refuse texts that are longer than their columns; `texts` are by column."""
    # Rule: names and descriptions of runs and recurring runs have at most 255 characters in MySQL and MariaDB; their
    # error 1406 is answered with 500, after the run's workflow was created (kubeflow/pipelines
    # backend/src/apiserver/model/run.go and model/job.go: Description, DisplayName, both without a size;
    # client_manager/client_manager.go: DefaultStringSize; resource/resource_manager.go: CreateRun, CreateJob)
    # Rule: a cron expression has at most 255 characters (kubeflow/pipelines
    # backend/src/apiserver/model/cron_schedule.go: Cron)
    for column, text in texts.items():
        if len(text or "") > columns[column]:
            error = f"Error 1406 (22001): Data too long for column '{column}' at row 1"
            raise ServiceError("INTERNAL", f"Failed to {doing}: InternalServerError: {error}")


def check_experiment(name: str | None, namespace: str | None) -> None:
    """Refuse an experiment without a name, or whose name or namespace is too long."""
    # Rule: an experiment's name has at most 128 bytes, and its namespace at most 63; longer ones are answered with 500
    # (kubeflow/pipelines backend/src/apiserver/validation/length.go: LengthSpecs, ValidateModel;
    # server/api_converter.go: toModelExperiment)
    for field, text, most in (("Name", name, _EXPERIMENT_BYTES), ("Namespace", namespace, _NAMESPACE_BYTES)):
        if len((text or "").encode()) > most:
            raise ServiceError("INTERNAL", f"Invalid input error: Experiment.{field} length cannot exceed {most}")
    if not name:
        raise ServiceError("INTERNAL", "Experiment must have a non-empty name")


def is_same_name(one: str, other: str) -> bool:
    """Return whether two names are equal for the database."""
    # Rule: names that differ only in case are equal in a unique index of MySQL and MariaDB, because their collations
    # ignore case (https://dev.mysql.com/doc/refman/8.4/en/charset-collation-names.html; kubeflow/pipelines
    # backend/src/apiserver/model/experiment.go: idx_name_namespace)
    return one.casefold() == other.casefold()


def check_object_name(display_name: str) -> None:
    """Refuse a recurring run whose name is invalid for an object of the cluster."""
    # Rule: a recurring run's object is named after the lower-case letters, digits and dashes of its name, and must not
    # begin with a dash; a refusal is answered with 500 (kubeflow/pipelines backend/src/apiserver/template/template.go:
    # toSWFCRDResourceGeneratedName; https://kubernetes.io/docs/concepts/overview/working-with-objects/names)
    name = re.sub("[^a-z0-9-]+", "", display_name.lower())[:25]
    if name.startswith("-"):
        raise ServiceError("INTERNAL", f'ScheduledWorkflow "{name}abcde" is invalid: metadata.generateName')


# Rule: the pod of a step has volumes of KFP and Argo, at these paths (kubeflow/pipelines
# backend/src/v2/compiler/argocompiler/container.go: addContainerExecutorTemplate; argoproj/argo-workflows
# workflow/controller/workflowpod.go: volumeVarArgo, volumeTmpDir)
_OWN_MOUNTS = {
    "kfp-launcher": "/kfp-launcher",
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
    "var-run-argo": "/var/run/argo",
    "tmp-dir-argo": "",
}


def check_mounts(config: Mapping[str, Any]) -> None:
    """Refuse a step with an invalid pod, or one that lacks a volume; refused here when the pipeline is submitted."""
    # Rule: the pod's volume has the name of its claim or secret (kubeflow/pipelines backend/src/v2/driver/k8s.go:
    # makeVolumeMountPatch, extendPodSpecPatch)
    mounts = [(one["constant"], one["mountPath"]) for one in config.get("pvcMount", ())]
    mounts += [(one["secretName"], one["mountPath"]) for one in config.get("secretAsVolume", ())]
    mounts += [(one["volumeName"], one["mountPath"]) for one in config.get("genericEphemeralVolume", ())]
    try:
        check_volumes([*_OWN_MOUNTS.items(), *mounts])
    except ValueError as error:
        raise ServiceError("INVALID_ARGUMENT", f"Pod is invalid: {error}") from error


def check_names(config: Mapping[str, Any], variables: Iterable[str]) -> None:
    """Refuse invalid labels, secrets and variables of a step's pod; refused here when the pipeline is submitted."""
    # Rule: a label's name and value have at most 63 letters, digits, -, _ and ., and begin and end with a letter or
    # digit (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels)
    label = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
    labels = {**config.get("podMetadata", {}).get("labels", {}), **config.get("nodeSelector", {}).get("labels", {})}
    for name, value in labels.items():
        if not label.fullmatch(name.rpartition("/")[2]) or (value and not label.fullmatch(value)):
            raise ServiceError("INVALID_ARGUMENT", f"Pod is invalid: label {name}={value}")
    # Rule: a secret's name is a DNS subdomain of at most 253 characters
    # (https://kubernetes.io/docs/concepts/overview/working-with-objects/names)
    part = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    for secret in config.get("secretAsEnv", ()):
        if len(name := secret["secretName"]) > 253 or not re.fullmatch(rf"{part}(\.{part})*", name):
            raise ServiceError("INVALID_ARGUMENT", f"Pod is invalid: secret {name!r}")
    # Rule: a variable's name consists of letters, digits, _, - and ., and does not begin with a digit; others require a
    # setting of the cluster (kubernetes/kubernetes pkg/apis/core/validation/validation.go: ValidateEnv)
    for name in variables:
        if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", name):
            raise ServiceError("INVALID_ARGUMENT", f"Pod is invalid: variable {name!r}")


def check_volumes(mounts: Iterable[tuple[str, str]]) -> None:
    """Refuse volumes, by name and path, that a pod cannot have together.

    Raises:
        ValueError: If it cannot.
    """
    names: set[str] = set()
    paths: set[str] = set()
    for name, path in mounts:
        # Rule: a volume's name is a DNS label of at most 63 characters, without dots, and unique within its pod
        # (kubernetes/kubernetes pkg/apis/core/validation/validation.go: ValidateVolumes)
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) or name in names:
            raise ValueError(f"spec.volumes.name: {name!r} is no DNS label, or there twice")
        # Rule: a mount path contains no colon, and has only one volume (kubernetes/kubernetes
        # pkg/apis/core/validation/validation.go: ValidateVolumeMounts; kubernetes/api core/v1/types.go: VolumeMount)
        folder = posixpath.normpath(path.replace("//", "/")) if path else ""
        if ":" in path or folder in paths - {""}:
            raise ValueError(f"volumeMounts.mountPath: {path!r} has a colon, or is there twice")
        names.add(name)
        paths.add(folder)


def check_size(specification: str) -> None:
    """Refuse a pipeline that is too large."""
    # Rule: the server reads up to 32 MiB of a pipeline, and Argo accepts 700 kB; the error is not documented
    # (kubeflow/pipelines backend/src/apiserver/model/pipeline_version.go: PipelineSpec; common/const.go: MaxFileLength)
    if (size := len(specification.encode())) > _SPECIFICATION_BYTES:
        raise ServiceError("INTERNAL", f"Failed to create a workflow: its specification has {size} bytes.")
