"""Trains on several hosts of a Kubernetes cluster with a JobSet.

The step creates the JobSet, follows it until it ends, and copies the model from a shared volume.

Only the pods of the hosts request TPUs. The pod of the step waits for the hosts. The hosts read a copy of the records
from the shared volume and write the model to this volume. Kubeflow's TrainJob would also create a JobSet, but it is not
used, because it requires a runtime that must be installed in the cluster.
"""

import contextlib
import copy
import dataclasses
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress, termination
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import BAD_INPUT, InputError, describe
from tpu_components.core.base.retries import Backoff, ExistsError, MissingError, OutageError, PlatformError, message_of
from tpu_components.core.base.terminal import printable
from tpu_components.core.component import command_line
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import storage
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.train_model import heartbeat
from tpu_components.train_model.result import STEP, TrainResult

# Makes the step train with a JobSet. The value is JSON: `manifest` is the JobSet without its name and command, and
# `shared` is a folder on a volume that the step and all hosts mount.
JOBSET_VARIABLE = "TPU_PIPELINES_JOBSET"
GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
# Permissions that a step needs to train with a JobSet.
RIGHTS = (
    *((verb, PLURAL) for verb in ("get", "create", "delete")),
    *(("get", "pods"), ("list", "pods"), ("get", "pods/log")),
)
# https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go: JobSetNameKey
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
INDEX_LABEL = (
    "batch.kubernetes.io/job-completion-index"  # https://kubernetes.io/docs/reference/labels-annotations-taints
)
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_POD_VARIABLE = "KFP_POD_NAME"  # kubeflow/pipelines backend/src/v2/compiler/argocompiler/common.go: commonEnvs
_POLL_SECONDS = 2.0  # Short, because a JobSet that restarts deletes the failed pod and its log.
_TIMEOUT_SECONDS = 30
_LAST_LINES = 10
OVERLAP_SECONDS = 30  # Allows for a difference between the clocks, and for a slow response.
_GONE_SECONDS = 120.0


def requested_jobset() -> Mapping[str, Any] | None:
    """Return the request to train with a JobSet from TPU_PIPELINES_JOBSET, or None if the variable is not set.

    Without a request, this process trains the model itself.

    The request has the keys `manifest`, the JobSet without its name and command, and `shared`, a folder that the step
    and all hosts mount.
    """
    text = os.environ.get(JOBSET_VARIABLE, "")
    return json.loads(text) if text else None


asked = requested_jobset  # Its name in components that were compiled earlier; tests/e2e/test_upgrade.py runs them.


def train_on_hosts(
    ask: Mapping[str, Any],
    params: TrainParams,
    records_dir: Path,
    output: Path,
    poll_seconds: float = _POLL_SECONDS,
) -> TrainResult:
    """Train a model on several hosts with a JobSet, and copy the model to `output`.

    A restarted step finds the JobSet that its first attempt created, and follows it.

    A step that is cancelled, timed out or evicted has less than a second to delete the JobSet: Argo signals all
    processes of the step, KFP's launcher exits at once, and the container ends with it (argo-workflows at f016ad8,
    workflow/executor/osspecific/signal_darwin.go: Kill, Wait; kubeflow/pipelines at 7b70c7b,
    backend/src/v2/component/launcher_v2.go: execute). If the step is killed before the JobSet is deleted, the hosts end
    later, because the step's heartbeat stops; see `heartbeat`.

    Args:
        ask: Request to train with a JobSet, from `requested_jobset`.
        params: Parameters of the training run.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder for the model.
        poll_seconds: Seconds between two requests for the JobSet's state.

    Raises:
        InputError: If JobSets are not installed in the cluster, the step lacks the permission to create them, or the
            hosts report a user's mistake.
        PlatformError: If the JobSet fails after its last restart, or the cluster does not respond.
        Terminated: If this step receives SIGTERM. The JobSet is deleted first.
    """
    name = name_jobset(ask, params, Manifest.load(records_dir, verify=False).fingerprint)
    folder = Path(ask["shared"]) / name
    followed = folder.parent / f"{name}.followed"
    result_file, model, failure = folder / "result-0.json", folder / "model", folder / "failure.json"
    with contextlib.closing(JobSet(name)) as jobset, heartbeat.beating(followed):
        try:
            state = jobset.state()
            if state and state.failure is not None:
                _raise_again(failure)
            if state and (state.failure is not None or (state.is_complete and not result_file.is_file())):
                jobset.delete()
                state = None
            if state is None:
                shutil.rmtree(folder, ignore_errors=True)
                storage.copy_tree(records_dir, folder / "records")
                with termination.put_off():  # Otherwise SIGTERM could come between creation and `follow`.
                    jobset.create(_with_command(ask["manifest"], params, folder, followed))
            progress.say(STEP, f"following jobset {name} in namespace {jobset.namespace}")
            jobset.follow(poll_seconds)
        except termination.Terminated:
            jobset.delete()
            raise
        except (InputError, PlatformError) as error:
            if jobset.has_failed:
                is_mistake = isinstance(error, InputError)
                storage.write_json(failure, {"run": _run(), "is_mistake": is_mistake, "said": str(error)})
            raise
        values = json.loads(result_file.read_text().splitlines()[-1])
        storage.copy_tree(model, output)
        jobset.delete()
    shutil.rmtree(folder, ignore_errors=True)
    return TrainResult(**values)


def _run() -> str:
    """Return the part of the pod's name that is the same for all attempts of this step in this run.

    Pods have names of the form WORKFLOW-TEMPLATE-HASH (argo-workflows workflow/util/pod_name.go: GeneratePodName).
    Outside of KFP, the result is an empty string.
    """
    return os.environ.get(_POD_VARIABLE, "").rpartition("-")[0]


def _raise_again(failure: Path) -> None:
    """If the hosts failed in an earlier attempt of this run, raise their error again.

    A retry of the step then does not pay for the same failing training run a second time.

    Args:
        failure: File in which the earlier attempt saved its error. The file may be missing.

    Raises:
        InputError: If the failure was a user's mistake.
        PlatformError: If the failure had another cause.
    """
    if not failure.is_file() or not _run():
        return
    seen = json.loads(failure.read_text())
    if seen["run"] == _run():
        raise InputError(seen["said"]) if seen["is_mistake"] else PlatformError(seen["said"])


def name_jobset(ask: Mapping[str, Any], params: TrainParams, records: str) -> str:
    """Return the JobSet's name, which is the same for all attempts of a training run.

    The name ends with a digest of the request. It has at most 37 characters. This leaves room for the up to 20
    characters that JobSet appends for its pods, because a pod's name has at most 63
    (jobset/pkg/webhooks/jobset_webhook.go).

    Args:
        ask: Result of `requested_jobset`.
        params: Parameters of the training run.
        records: Fingerprint of the records.
    """
    prefix = ask["manifest"]["metadata"]["generateName"]
    return f"{prefix[:24].strip('-')}-{digest_of([ask, dataclasses.asdict(params), records])[:12]}"


def _with_command(manifest: Mapping[str, Any], params: TrainParams, folder: Path, followed: Path) -> dict[str, Any]:
    """Return the JobSet's manifest with the training command and the name of the heartbeat file.

    With this command, each host writes its result to a separate file in `folder`.
    """
    words = ["--records", str(folder / "records"), "--output", str(folder / "model"), *command_line.flags_of(params)]
    whole = copy.deepcopy(dict(manifest))
    (container,) = _pod(whole)["containers"]
    # `exec` replaces the shell, so that Python receives SIGTERM.
    # The folder is an argument of the script and not part of it: its name may contain what a shell would run.
    script = (
        'result="$1/result-$JOB_COMPLETION_INDEX.json"; shift; '
        'exec python3 -m tpu_components.train_model "$@" > "$result"'
    )
    container["command"] = ["sh", "-c", script, "train_model", str(folder), *words]
    container["env"] = [*container.get("env", ()), {"name": heartbeat.FILE_VARIABLE, "value": str(followed)}]
    return whole


def _pod(manifest: Mapping[str, Any]) -> dict[str, Any]:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


@dataclasses.dataclass(frozen=True)
class JobSetState:
    """State of a JobSet in the cluster.

    Attributes:
        is_complete: Whether all hosts have succeeded.
        failure: Message of the cluster if the JobSet has failed and will not be restarted; otherwise None.
        restarts: Number of times that all hosts were restarted.
    """

    is_complete: bool
    failure: str | None
    restarts: int


class JobSet:
    """A JobSet in a Kubernetes cluster.

    The cluster is the one in which this process runs. Outside of a cluster, it is kubectl's current cluster.

    Args:
        name: Name of the JobSet. It need not exist yet.

    Attributes:
        name: The JobSet's name.
        namespace: Namespace of the JobSet.
        has_failed: Whether the JobSet failed during `follow`.
    """

    def __init__(self, name: str) -> None:
        import kubernetes

        self.name = name
        try:
            kubernetes.config.load_incluster_config()
            self.namespace = _NAMESPACE_FILE.read_text().strip()
        except kubernetes.config.ConfigException:
            try:
                kubernetes.config.load_kube_config()
            except kubernetes.config.ConfigException as error:
                raise InputError(
                    f"Cannot train on several hosts: no Kubernetes cluster is configured ({error}). Run the step in a "
                    "cluster, or configure kubectl."
                ) from error
            _, context = kubernetes.config.list_kube_config_contexts()
            self.namespace = context["context"].get("namespace", "default")
        self._client = kubernetes.client.ApiClient()
        self._pods = kubernetes.client.CoreV1Api(self._client)
        self._objects = kubernetes.client.CustomObjectsApi(self._client)
        self._place = (GROUP, VERSION, self.namespace, PLURAL)
        # By name of the pod: its printed lines, and the time of the last request for its log, by `time.monotonic`.
        self._printed: dict[str, set[str]] = {}
        self._asked: dict[str, float] = {}
        self._told: set[str] = set()
        self._mistake = self._last = ""
        self.has_failed = False

    def close(self) -> None:
        """Close the connections to the cluster. The client's `close` leaves them open."""
        self._client.rest_client.pool_manager.clear()

    def state(self) -> JobSetState | None:
        """Return the state of the JobSet in the cluster, or None if it does not exist."""
        try:
            jobset = self._ask(self._objects.get_namespaced_custom_object, *self._place, self.name)
        except MissingError:
            return None
        status = jobset.get("status", {})
        messages = {
            item["type"]: item.get("message", "") for item in status.get("conditions", ()) if item["status"] == "True"
        }
        return JobSetState("Completed" in messages, messages.get("Failed"), int(status.get("restarts", 0)))

    def create(self, manifest: dict[str, Any]) -> None:
        """Create the JobSet, unless an earlier attempt of this step has created it.

        Args:
            manifest: Manifest of the JobSet. Its name is replaced by the name of this object.

        Raises:
            InputError: If JobSets are not installed in the cluster, or this step lacks the permission to create one.
        """
        metadata = {key: value for key, value in manifest["metadata"].items() if key != "generateName"}
        manifest = {**manifest, "metadata": {**metadata, "name": self.name}}
        if own := os.environ.get(_POD_VARIABLE):
            step = self._ask(self._pods.read_namespaced_pod, own, self.namespace)
            # Kubernetes deletes the JobSet with the run. The JobSet's pods use the service account of the step.
            owners = self._client.sanitize_for_serialization(step.metadata.owner_references or [])
            names = ("apiVersion", "kind", "name", "uid")
            manifest["metadata"]["ownerReferences"] = [{name: owner[name] for name in names} for owner in owners]
            _pod(manifest)["serviceAccountName"] = step.spec.service_account_name
        try:
            self._ask(self._objects.create_namespaced_custom_object, *self._place, manifest)
        except MissingError as error:
            raise InputError(
                f"Cannot train on several hosts: JobSets are not installed in the cluster ({GROUP}/{VERSION}). "
                "Install them (https://jobset.sigs.k8s.io/docs/installation), or use a machine with one host."
            ) from error

    def follow(self, poll_seconds: float) -> None:
        """Wait until all hosts have succeeded.

        Meanwhile, print the log of host 0, and the last lines of the log of each host that fails.

        Args:
            poll_seconds: Seconds between two requests for the JobSet's state.

        Raises:
            InputError: If the hosts report a user's mistake.
            PlatformError: If the JobSet fails or disappears.
        """
        restarts = 0
        while True:
            state = self.state()  # Read before the logs, so that the logs of a finished JobSet are read to the end.
            self._relay()
            if state is None:
                raise PlatformError(f"The jobset {self.name} was deleted while it trained a model. Run the step again.")
            if state.restarts > restarts:
                restarts = state.restarts
                progress.say(STEP, f"all hosts are being restarted (restart {restarts})")
            if state.is_complete:
                return
            self.has_failed = state.failure is not None
            if self.has_failed:
                failed = PlatformError(f"The jobset {self.name} failed: {state.failure} {self._last}".strip())
                raise InputError(self._mistake) if self._mistake else failed
            time.sleep(poll_seconds)

    def delete(self) -> None:
        """Delete the JobSet and its pods, and wait until they are deleted."""
        with contextlib.suppress(MissingError):
            self._ask(
                self._objects.delete_namespaced_custom_object, *self._place, self.name, propagation_policy="Foreground"
            )
            Backoff().until(lambda: self.state() is None, 1.0, _GONE_SECONDS)

    def _relay(self) -> None:
        pods = self._ask(self._pods.list_namespaced_pod, self.namespace, label_selector=f"{NAME_LABEL}={self.name}")
        for pod in pods.items:
            with contextlib.suppress(MissingError, PlatformError):  # The pod has not started yet, or is deleted.
                if pod.metadata.labels.get(INDEX_LABEL) == "0":
                    self._print_new(pod)
                if (code := _exit_code(pod)) and pod.metadata.name not in self._told:
                    self._tell_failure(pod, code)

    def _print_new(self, pod: Any) -> None:
        """Print the lines of a pod's log that were not printed before.

        Each line has a timestamp, so two lines with the same text are not confused.
        """
        name = pod.metadata.name
        now = time.monotonic()
        # Fetch only the new end of a long log. After the node has rotated the log, fetch all of the new one.
        recent = {"since_seconds": math.ceil(now - self._asked[name]) + OVERLAP_SECONDS} if name in self._asked else {}
        printed = self._printed.setdefault(name, set())
        for line in self._log(pod, timestamps=True, **recent).splitlines():
            if line not in printed:
                printed.add(line)
                print(printable(line.partition(" ")[2]), file=sys.stderr)
        self._asked[name] = now

    def _tell_failure(self, pod: Any, code: int) -> None:
        self._told.add(pod.metadata.name)
        index = pod.metadata.labels.get(INDEX_LABEL)
        lines = self._log(pod, tail_lines=_LAST_LINES).splitlines()
        self._last = f"host {index} ended with exit code {code}: {' | '.join(lines[-_LAST_LINES:])}"
        progress.say(STEP, self._last)
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if code == BAD_INPUT:
            self._mistake = errors[-1] if errors else self._last

    def _log(self, pod: Any, **options: Any) -> str:
        return str(self._ask(self._pods.read_namespaced_pod_log, pod.metadata.name, self.namespace, **options))

    def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the Kubernetes client, and return the cluster's response. Transient errors are retried.

        If the method creates an object that already exists, the call succeeds and returns None.

        Raises:
            MissingError: If the object does not exist.
            InputError: If this step lacks the permission.
            PlatformError: If the cluster rejects the request, or does not respond for a long time.
        """
        denied = (
            f"Cannot train on several hosts: the service account of this step may not call "
            f"{method.__name__.replace('_namespaced', '')} in namespace {self.namespace}. Allow it to get, create and "
            "delete jobsets, and to get and list pods and their logs; see pipelines/tpu_pipelines/platforms/README.md."
        )

        def ask() -> Any:
            with contextlib.suppress(ExistsError), cluster_errors("The cluster", denied):
                return method(*arguments, **options, _request_timeout=_TIMEOUT_SECONDS)

        return Backoff(report=lambda text: progress.say(STEP, text))(ask)


@contextlib.contextmanager
def cluster_errors(cluster: str, denied: str = "") -> Iterator[None]:
    """Convert errors that the Kubernetes client raises in the `with` block to the errors listed below.

    Args:
        cluster: Name of the cluster for messages, for example "The cluster". It begins a sentence.
        denied: Message of the error if the account lacks a permission. If empty, the cluster's message is used.

    Raises:
        OutageError: If the cluster does not respond, or responds with a transient error.
        MissingError: If the object does not exist.
        ExistsError: If the object exists already.
        InputError: If the account lacks a permission.
        PlatformError: If the cluster rejects the request.
    """
    import urllib3
    from kubernetes.client import ApiException

    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        raise OutageError(f"{cluster} does not respond: {describe(error)}.") from error
    except ApiException as error:
        status = error.status
        refused = f"{cluster} rejected the request: {status} {message_of(error)}"
        if status == 429 or status >= 500:
            raise OutageError(f"{cluster} responds with {status} {error.reason}.") from error
        if status in (401, 403):
            raise InputError(denied or refused) from error
        raise {404: MissingError, 409: ExistsError}.get(status, PlatformError)(refused) from error


def _exit_code(pod: Any) -> int:
    """Return the exit code of a pod's container, or 0 while the container runs."""
    states = [container.state for container in pod.status.container_statuses or ()]
    return next((int(state.terminated.exit_code) for state in states if state and state.terminated), 0)
