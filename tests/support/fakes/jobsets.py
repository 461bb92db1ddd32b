"""The JobSets of the fake Kubernetes: each pod is a process on this machine, with the environment of GKE.

A failed pod fails its Job, and the JobSet's failure policy decides what follows; Kueue, quotas and nodes are missing.
"""

import contextlib
import datetime
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fakes.kubeflow_rules import check_volumes

PATH = re.compile(r"/apis/jobset\.x-k8s\.io/v1alpha2/namespaces/([^/]+)/jobsets(?:/([^/]+))?")
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASONS = (
    *("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded"),
    "PodFailurePolicy",
)
_GRACE_SECONDS = 30.0


class RefusedError(Exception):
    """A request that the cluster refuses: the status and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check(jobset: Mapping[str, Any]) -> None:
    """Refuse an invalid JobSet."""
    name = jobset["metadata"]["name"]
    for replicated in jobset["spec"]["replicatedJobs"]:
        job = replicated["template"]["spec"]
        pod, hosts = job["template"]["spec"], job["completions"]
        # Rule: names of a JobSet's pods, with their five random characters, are DNS labels of at most 63 characters
        # (kubernetes-sigs/jobset pkg/webhooks/jobset_webhook.go: ValidateCreate)
        longest = f"{name}-{replicated['name']}-{replicated['replicas'] - 1}-{hosts - 1}-abcde"
        if not _LABEL.fullmatch(longest):
            raise RefusedError(422, f"JobSet name is too long, or no DNS label: {longest}")
        # Rule: a Job with a pod failure policy never restarts a pod's containers (kubernetes/kubernetes
        # pkg/apis/batch/validation/validation.go: validateJobSpec)
        if job.get("podFailurePolicy") and pod.get("restartPolicy") != "Never":
            raise RefusedError(422, 'only "Never" is supported when podFailurePolicy is specified')
        # Rule: a container can only mount volumes of its pod (kubernetes/kubernetes pkg/apis/core/validation:
        # ValidateVolumeMounts)
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        if len(volumes) < len(pod.get("volumes", ())):
            raise RefusedError(422, "spec.volumes.name: Duplicate value")
        for container in pod["containers"]:
            try:
                check_volumes([(mount["name"], mount["mountPath"]) for mount in container.get("volumeMounts", ())])
            except ValueError as error:
                raise RefusedError(422, str(error)) from error
            if lacking := {mount["name"] for mount in container.get("volumeMounts", ())} - volumes:
                raise RefusedError(422, f"volumeMounts not found: {sorted(lacking)}")
        # Rule: the pods of a slice together request all its chips, each pod all chips of its node
        # (https://cloud.google.com/kubernetes-engine/docs/how-to/tpus)
        topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
        chips = int(pod["containers"][0]["resources"]["limits"]["google.com/tpu"])
        if chips * hosts != math.prod(map(int, topology.split("x"))):
            raise RefusedError(400, f"{hosts} pods of {chips} chips are no slice of {topology}")
    for rule in jobset["spec"].get("failurePolicy", {}).get("rules", ()):
        # Rule: a rule of a failure policy has a name, and failure reasons that a Job can have (kubernetes-sigs/jobset
        # pkg/webhooks/jobset_webhook.go: validateFailurePolicy, validOnJobFailureReasons)
        if not _RULE_NAME.fullmatch(rule["name"]) or set(rule["onJobFailureReasons"]) - set(_REASONS):
            raise RefusedError(422, f"invalid failure policy rule {rule}")


# Rule: a new disk belongs to root; other users can write to it if fsGroup gives it to their group
# (https://kubernetes.io/docs/tasks/configure-pod-container/security-context; kubeflow/pipelines/issues/3866)
def _may_write(pod: Mapping[str, Any]) -> bool:
    claims = any("persistentVolumeClaim" in volume for volume in pod.get("volumes", ()))
    context = pod.get("securityContext", {})
    return not claims or "fsGroup" in context or context.get("runAsUser") == 0


_DENIED = {"spec": {"containers": [{"command": ["sh", "-c", "echo error: Permission denied; exit 1"]}]}}


class JobSet:
    """A JobSet whose pods run.

    Args:
        body: The JobSet, as it was sent.
        logs: Folder for the logs of its pods.
        injects: Whether its namespace injects a proxy into pods.

    Attributes:
        body: The JobSet, with its status.
        pods: The pods of the current attempt, by name.
    """

    def __init__(self, body: dict[str, Any], logs: Path, injects: bool = False) -> None:
        self.body, self._logs = body, logs
        self.body["status"] = {"restarts": 0, "conditions": []}
        (self._replicated,) = body["spec"]["replicatedJobs"]
        self.job = self._replicated["template"]["spec"]
        # Rule: in a namespace with proxy injection, such as those of Kubeflow's profiles, a pod gets a proxy unless its
        # label is false; the proxy never ends, so the pod's Job does not end either (istio/istio
        # pkg/kube/inject/inject.go: injectRequired; kubeflow/trainer/issues/2794)
        labels = self.job["template"].get("metadata", {}).get("labels", {})
        self._has_proxies = injects and labels.get("sidecar.istio.io/inject") != "false"
        self.pods: dict[str, Pod] = {}
        self._is_deleted = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)
        self._thread.start()

    def host(self, index: int) -> "Pod":
        """Return the pod of a host."""
        return next(pod for pod in self.pods.values() if pod.index == index)

    def delete(self) -> None:
        """End all pods."""
        self._is_deleted.set()
        self._thread.join()

    def _control(self) -> None:
        while not self._is_deleted.is_set():
            self._start_pods()
            reason = self._wait()
            self._end_pods()
            if self._is_deleted.is_set():
                return
            if not reason:
                self._conclude("Completed", "jobset completed successfully")
                return
            policy, status = self.body["spec"].get("failurePolicy", {}), self.body["status"]
            # Rule: the first rule of a failure policy that matches a failed Job's reason applies; if none matches, all
            # Jobs are created again, up to maxRestarts times (kubernetes-sigs/jobset pkg/controllers/failure_policy.go:
            # executeFailurePolicy)
            fitting = [rule for rule in policy.get("rules", ()) if reason in rule["onJobFailureReasons"]]
            action = fitting[0]["action"] if fitting else "RestartJobSet"
            if action == "FailJobSet" or status["restarts"] >= policy.get("maxRestarts", 0):
                self._conclude("Failed", f"jobset failed due to a job that failed: {reason}")
                return
            status["restarts"] += 1

    def _conclude(self, kind: str, message: str) -> None:
        self.body["status"]["conditions"].append({"type": kind, "status": "True", "message": message})

    def _start_pods(self) -> None:
        count, name = self.job["completions"], self.body["metadata"]["name"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pods = {}
        deadline = self.job.get("activeDeadlineSeconds")
        self._deadline = time.monotonic() + deadline if deadline else math.inf
        template = self.job["template"] if _may_write(self.job["template"]["spec"]) else _DENIED
        for index in range(count):
            # Rule: a pod of an indexed Job gets its index
            # (https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode)
            # Rule: GKE gives each pod of a slice its index and the addresses of the others
            # (https://cloud.google.com/kubernetes-engine/docs/how-to/tpus: TPU_WORKER_ID, TPU_WORKER_HOSTNAMES)
            told = {
                "JOB_COMPLETION_INDEX": str(index),
                "TPU_WORKER_ID": str(index),
                "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * count),
                "JAX_COORDINATOR_PORT": str(port),  # Another training on this machine may use the usual port.
            }
            pod_name = f"{name}-{self._replicated['name']}-0-{index}-{os.urandom(3).hex()[:5]}"
            pods[pod_name] = Pod(pod_name, index, name, template, told, self._logs)
        self.pods = pods

    def _wait(self) -> str:
        """Wait for the pods; return why the Job has failed, or an empty text if all pods have succeeded."""
        while not self._is_deleted.wait(0.05):
            codes = [code for pod in self.pods.values() if (code := pod.exit_code()) is not None]
            if failed := [code for code in codes if code]:
                # Rule: a Job with backoffLimit 0 fails with its first failed pod; if its policy lists the exit code,
                # this is the reason (https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy)
                rules = self.job.get("podFailurePolicy", {}).get("rules", ())
                named = {code for rule in rules for code in rule["onExitCodes"]["values"]}
                return "PodFailurePolicy" if named & set(failed) else "BackoffLimitExceeded"
            if len(codes) == len(self.pods) and not self._has_proxies:
                return ""
            # Rule: a Job that is active for activeDeadlineSeconds fails for that reason, and its pods end
            # (https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup)
            if time.monotonic() > self._deadline:
                return "DeadlineExceeded"
        return "deleted"

    def _end_pods(self) -> None:
        # Rule: pods of a failed Job get SIGTERM, and are killed after their grace period
        # (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination)
        time.sleep(0.0 if self._is_deleted.is_set() else 0.3)  # A real controller is slower, too.
        for pod in self.pods.values():
            pod.end(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and any(pod.exit_code() is None for pod in self.pods.values()):
            time.sleep(0.05)
        for pod in self.pods.values():
            pod.end(signal.SIGKILL)


class Pod:
    """A pod that runs as a process.

    Attributes:
        has_token: Whether its process can call the cluster as its service account.
    """

    def __init__(
        self, name: str, index: int, jobset: str, template: Mapping[str, Any], told: Mapping[str, str], logs: Path
    ) -> None:
        self.name, self.index, self._jobset = name, index, jobset
        self._labels = template.get("metadata", {}).get("labels", {})
        # Rule: a pod gets its service account's token unless it opts out
        # (https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#opt-out-of-api-credential-automounting)
        self.has_token = template["spec"].get("automountServiceAccountToken", True)
        (container,) = template["spec"]["containers"]
        # Rule: a variable with a value in the container keeps it, and an optional key may be missing from a secret
        # (kubernetes/api core/v1: EnvVar, SecretKeySelector.optional)
        own = {variable["name"]: variable["value"] for variable in container.get("env", ()) if "value" in variable}
        self._lines: list[tuple[datetime.datetime, str]] = []
        self.process = subprocess.Popen(
            [word.replace("python3", sys.executable) for word in container["command"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **told, **own},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._keep, args=[logs / f"{name}.log"], daemon=True)
        self._reader.start()

    def _keep(self, path: Path) -> None:
        assert self.process.stdout
        with self.process.stdout as lines, open(path, "wb", buffering=0) as log:
            for line in lines:
                self._lines.append((datetime.datetime.now(datetime.UTC), line.decode(errors="replace")))
                log.write(line)

    def exit_code(self) -> int | None:
        """Exit code of the container; None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, number: signal.Signals) -> None:
        """Send a signal if the pod runs."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            if number is signal.SIGKILL:
                self.process.wait()

    def log(self, *, tail_lines: int = 0, since_seconds: int = 0, timestamps: bool = False) -> str:
        """Return the printed lines."""
        if self.exit_code() is not None:
            self._reader.join(1.0)  # A process that it started may still print.
        lines = list(self._lines)
        # Rule: a request for a log can ask for the lines of the last seconds, and for a timestamp before each line
        # (kubernetes/api core/v1/types.go: PodLogOptions; kubernetes/kubernetes pkg/kubelet/kuberuntime/logs/logs.go:
        # timeFormatOut)
        if since_seconds:
            first = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=since_seconds)
            lines = [(at, line) for at, line in lines if at >= first]
        stamps = [f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}000Z " if timestamps else "" for at, _ in lines]
        whole = [stamp + line for stamp, (_, line) in zip(stamps, lines, strict=True)]
        return "".join(whole[-tail_lines:])  # 0 means all.

    def as_json(self) -> dict[str, Any]:
        """Return the pod as the cluster's API shows it."""
        # Rule: pods of a JobSet have labels with its name and their index (kubernetes-sigs/jobset
        # api/jobset/v1alpha2/jobset_types.go: JobSetNameKey;
        # https://kubernetes.io/docs/reference/labels-annotations-taints)
        labels = {"jobset.sigs.k8s.io/jobset-name": self._jobset}
        labels["batch.kubernetes.io/job-completion-index"] = str(self.index)
        code = self.exit_code()
        state: dict[str, Any] = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        status = {"name": "train", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": state}
        return {
            "metadata": {"name": self.name, "labels": {**self._labels, **labels}},
            "status": {"phase": "Running", "containerStatuses": [status]},
        }
