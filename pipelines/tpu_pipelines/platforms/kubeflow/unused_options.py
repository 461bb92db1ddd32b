"""Options that `tp.on_machine` does not support on Kubeflow, each with advice on what to do instead."""

from collections.abc import Mapping

_ACCOUNT = (
    "All pods of a run have the run's Kubernetes service account, which kfp.Client().create_run_from_pipeline_func "
    "takes as service_account=NAME. Remove it here, and bind that account to the Google account with Workload Identity."
)
_CLUSTER = "The cluster decides it. Remove it."
_NETWORK = "Pods are in the network of their cluster. Remove it."
_DISK = (
    "The node pool decides the boot disk. Remove it; "
    'settings={"volumes": {"CLAIM": "/mnt/PATH"}} mounts a claim with more space.'
)
_RESTARTS = "Use the argument retries instead."
UNUSED_OPTIONS: Mapping[str, str] = {
    "project": _CLUSTER,
    "region": _CLUSTER,
    "bucket": 'Checkpoints are on a volume: use settings={"volumes": {"CLAIM": "/mnt/checkpoints"}} instead.',
    "service_account": _ACCOUNT,
    "network": _NETWORK,
    "boot_disk_type": _DISK,
    "boot_disk_size_gb": _DISK,
    "restart_job_on_worker_restart": _RESTARTS,
    "disable_retries": _RESTARTS,
    "enable_web_access": "Remove it; kubectl exec opens a shell.",
    "persistent_resource_id": _CLUSTER,
    "nfs_mounts": 'Use a claim of the share instead: settings={"volumes": {"CLAIM": "/mnt/PATH"}}.',
}
