"""A training on several hosts of a Kubernetes cluster: the step creates a JobSet, follows it and fetches its model.

The hosts' pods alone ask for TPUs; the step's own waits for them. They read a copy of the records on a volume that all
mount, and leave the model there. Kubeflow's TrainJob makes a JobSet, too, from a runtime that must be installed.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import progress, termination
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.retries import Backoff, MissingError, OutageError, PlatformError
from tpu_components.core.base.terminal import printable
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import storage
from tpu_components.core.step import command_line
from tpu_components.train_model import following
from tpu_components.train_model.params import TrainParams, TrainResult

# Tells the step to train by a JobSet: a JSON object of `manifest`, which lacks its name and command, and of `shared`, a
# folder on a volume of the step and of all hosts.
JOBSET_VARIABLE = "TPU_PIPELINES_JOBSET"
GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
# What a step that trains by a JobSet asks of the cluster.
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
_POLL_SECONDS = 2.0  # A pod that failed may be gone soon: a JobSet that starts again deletes it.
_TIMEOUT_SECONDS = 30
_LAST_LINES = 10
_OVERLAP_SECONDS = 30  # The node's clock may differ, and an answer may take long.
_GONE_SECONDS = 120.0
_STEP = "train_model"


def asked() -> Mapping[str, Any] | None:
    """Return what the environment says of a JobSet that is to train; None where this process trains itself."""
    text = os.environ.get(JOBSET_VARIABLE, "")
    return json.loads(text) if text else None


def train_on_hosts(
    ask: Mapping[str, Any],
    params: TrainParams,
    records_dir: Path,
    output: Path,
    poll_seconds: float = _POLL_SECONDS,
) -> TrainResult:
    """Train by a JobSet, as `train_model` does here; who asks again for the same finds it and goes on following.

    Where this step is cancelled, out of time or evicted, it has less than a second to delete the JobSet: Argo signals
    all processes of a step, KFP's launcher ends at once, and the container with it (at f016ad8 of argo-workflows,
    workflow/executor/osspecific/signal_darwin.go: Kill, Wait; at 7b70c7b of kubeflow/pipelines,
    backend/src/v2/component/launcher_v2.go: execute). A step that is killed deletes nothing: see `following`.

    Raises:
        InputError: If the cluster has no JobSets, the step may not create them, or training finds a mistake.
        PlatformError: If the hosts fail more often than they are started again, or the cluster does not answer.
        Terminated: If this step is ended; the JobSet is deleted.
    """
    name = _name(ask, params, Manifest.load(records_dir, verify=False).fingerprint)
    folder = Path(ask["shared"]) / name
    followed = folder.parent / f"{name}.followed"
    result_file, model, failure = folder / "result-0.json", folder / "model", folder / "failure.json"
    with contextlib.closing(_JobSet(name)) as jobset, following.followed(followed):
        try:
            state = jobset.state()
            if state.is_failed:
                _raise_again(failure)
            if state.is_failed or (state.is_complete and not result_file.is_file()):
                jobset.delete()
                state = State()
            if not state.is_there:
                shutil.rmtree(folder, ignore_errors=True)
                storage.copy_tree(records_dir, folder / "records")
                with termination.put_off():  # Not between a JobSet's creation and this step's knowing of it.
                    jobset.create(_with_command(ask["manifest"], params, folder, followed))
            progress.say(_STEP, f"following jobset {name} in namespace {jobset.namespace}")
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
    """Return what only the attempts of one run's step have in common; empty outside of KFP.

    A pod is called WORKFLOW-TEMPLATE-HASH (argo-workflows workflow/util/pod_name.go: GeneratePodName).
    """
    return os.environ.get(_POD_VARIABLE, "").rpartition("-")[0]


def _raise_again(failure: Path) -> None:
    """Raise what another attempt of this run has seen the hosts fail with: it would only be paid for again.

    Raises:
        InputError: If that was a mistake.
        PlatformError: If it was not.
    """
    if not failure.is_file() or not _run():
        return
    seen = json.loads(failure.read_text())
    if seen["run"] == _run():
        raise InputError(seen["said"]) if seen["is_mistake"] else PlatformError(seen["said"])


def _name(ask: Mapping[str, Any], params: TrainParams, records: str) -> str:
    """Return a name that the same training has whenever it is asked for, and no other.

    Names of pods add 20 characters, of 63: jobset/pkg/webhooks/jobset_webhook.go.
    """
    prefix = ask["manifest"]["metadata"]["generateName"]
    return f"{prefix[:24].strip('-')}-{digest_of([ask, dataclasses.asdict(params), records])[:12]}"


def _with_command(manifest: Mapping[str, Any], params: TrainParams, folder: Path, followed: Path) -> dict[str, Any]:
    """Return the manifest whose containers train: each host says what came of it in a file of its own."""
    words = ["--records", str(folder / "records"), "--output", str(folder / "model"), *command_line.flags_of(params)]
    whole = copy.deepcopy(dict(manifest))
    (container,) = _pod(whole)["containers"]
    # Python takes the shell's place: it is to hear SIGTERM.
    script = f'exec python3 -m tpu_components.train_model "$@" > "{folder}/result-$JOB_COMPLETION_INDEX.json"'
    container["command"] = ["sh", "-c", script, "train_model", *words]
    container["env"] = [*container.get("env", ()), {"name": following.FILE_VARIABLE, "value": str(followed)}]
    return whole


def _pod(manifest: Mapping[str, Any]) -> dict[str, Any]:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    pod: dict[str, Any] = replicated["template"]["spec"]["template"]["spec"]
    return pod


@dataclasses.dataclass(frozen=True)
class State:
    """State of a JobSet.

    Attributes:
        is_there: Whether it exists.
        is_complete: Whether all hosts have ended well.
        is_failed: Whether it has failed, and is not started again.
        restarts: Times that all hosts were started again.
        reason: Why it has failed, in the cluster's words.
    """

    is_there: bool = False
    is_complete: bool = False
    is_failed: bool = False
    restarts: int = 0
    reason: str = ""


class _Printed:
    """The lines of a pod's log that were printed already.

    Attributes:
        asked: When the log was asked for last, by time.monotonic(); 0 before.
    """

    def __init__(self) -> None:
        self.asked = 0.0
        self._stamp, self._count = "", 0

    def new(self, log: str) -> list[str]:
        r"""Return the lines that were not printed yet, of a log whose lines begin with the time.

        Times are of a fixed width, and several lines may have the last one's
        (kubernetes/kubernetes pkg/kubelet/kuberuntime/logs/logs.go: timeFormatOut).

        Example:
            >>> printed = _Printed()
            >>> printed.new("01Z one\n02Z two\n"), printed.new("02Z two\n02Z three\n")
            (['one', 'two'], ['three'])
        """
        begun, again, lines = self._stamp, self._count, []
        for line in log.splitlines():
            stamp, _, text = line.partition(" ")
            if stamp == begun and again:
                again -= 1
            elif stamp >= begun:
                self._count = self._count + 1 if stamp == self._stamp else 1
                self._stamp = stamp
                lines.append(text)
        return lines


class _JobSet:
    """A JobSet of the cluster that this process runs in, or that kubectl's configuration names.

    Attributes:
        has_failed: Whether it has failed while it was followed.
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
                raise InputError(f"Cannot train on several hosts: no Kubernetes cluster is known ({error}).") from error
            _, context = kubernetes.config.list_kube_config_contexts()
            self.namespace = context["context"].get("namespace", "default")
        self._client = kubernetes.client.ApiClient()
        self._pods = kubernetes.client.CoreV1Api(self._client)
        self._objects = kubernetes.client.CustomObjectsApi(self._client)
        self._place = (GROUP, VERSION, self.namespace, PLURAL)
        self._printed: dict[str, _Printed] = {}  # By the pod.
        self._told: set[str] = set()
        self._mistake = self._last = ""
        self.has_failed = False

    def close(self) -> None:
        """Close the connections to the cluster, which the client's own `close` leaves open."""
        self._client.rest_client.pool_manager.clear()

    def state(self) -> State:
        """Return what the cluster says of it."""
        try:
            jobset = self._ask(self._objects.get_namespaced_custom_object, *self._place, self.name)
        except MissingError:
            return State()
        status = jobset.get("status", {})
        conditions = {item["type"]: item for item in status.get("conditions", ()) if item["status"] == "True"}
        return State(
            True,
            "Completed" in conditions,
            "Failed" in conditions,
            int(status.get("restarts", 0)),
            conditions.get("Failed", {}).get("message", ""),
        )

    def create(self, manifest: dict[str, Any]) -> None:
        """Create it, unless another attempt of this step has.

        Raises:
            InputError: If the cluster has no JobSets, or does not let this step create one.
        """
        metadata = {key: value for key, value in manifest["metadata"].items() if key != "generateName"}
        manifest = {**manifest, "metadata": {**metadata, "name": self.name}}
        if own := os.environ.get(_POD_VARIABLE):
            step = self._ask(self._pods.read_namespaced_pod, own, self.namespace)
            # Who removes the run removes it too; it may read and write what the step may.
            owners = [_owner(owner) for owner in step.metadata.owner_references or ()]
            manifest["metadata"]["ownerReferences"] = owners
            _pod(manifest)["serviceAccountName"] = step.spec.service_account_name
        try:
            self._ask(self._objects.create_namespaced_custom_object, *self._place, manifest)
        except MissingError as error:
            raise InputError(
                f"Cannot train on several hosts: the cluster has no JobSets ({GROUP}/{VERSION}). Install them, "
                "https://jobset.sigs.k8s.io/docs/installation, or name a machine of one host."
            ) from error

    def follow(self, poll_seconds: float) -> None:
        """Relay what host 0 prints, and the last words of a host that fails, if it can be asked, until all ended well.

        Args:
            poll_seconds: Time between two looks.

        Raises:
            InputError: If the hosts find a mistake.
            PlatformError: If the JobSet fails, or vanishes.
        """
        restarts = 0
        while True:
            state = self.state()  # Before the pods: nothing is printed after it has ended.
            self._relay()
            if state.restarts > restarts:
                restarts = state.restarts
                progress.say(_STEP, f"all hosts start again (restart {restarts})")
            if state.is_complete:
                return
            if not state.is_there:
                raise PlatformError(f"The jobset {self.name} was deleted while it trained. Run the step again.")
            self.has_failed = state.is_failed
            if state.is_failed and self._mistake:
                raise InputError(self._mistake)
            if state.is_failed:
                raise PlatformError(f"The jobset {self.name} failed: {state.reason} {self._last}".strip())
            time.sleep(poll_seconds)

    def delete(self) -> None:
        """Delete it and its pods, and wait until it is gone."""
        with contextlib.suppress(MissingError):
            self._ask(
                self._objects.delete_namespaced_custom_object, *self._place, self.name, propagation_policy="Foreground"
            )
            Backoff().until(lambda: not self.state().is_there, 1.0, _GONE_SECONDS)

    def _relay(self) -> None:
        pods = self._ask(self._pods.list_namespaced_pod, self.namespace, label_selector=f"{NAME_LABEL}={self.name}")
        for pod in pods.items:
            with contextlib.suppress(MissingError, PlatformError):  # It has not started yet, or is gone.
                if pod.metadata.labels.get(INDEX_LABEL) == "0":
                    self._print_new(pod)
                if (code := _exit_code(pod)) and pod.metadata.name not in self._told:
                    self._tell_failure(pod, code)

    def _print_new(self, pod: Any) -> None:
        printed, asked = self._printed.setdefault(pod.metadata.name, _Printed()), time.monotonic()
        # Of a long log only the end is fetched; where the node has put it away and begun another, all of that one.
        recent = {"since_seconds": math.ceil(asked - printed.asked) + _OVERLAP_SECONDS} if printed.asked else {}
        for line in printed.new(self._log(pod, timestamps=True, **recent)):
            print(printable(line), file=sys.stderr)
        printed.asked = asked

    def _tell_failure(self, pod: Any, code: int) -> None:
        self._told.add(pod.metadata.name)
        index, lines = pod.metadata.labels.get(INDEX_LABEL), self._log(pod, tail_lines=_LAST_LINES).splitlines()
        self._last = f"host {index} ended with exit code {code}: {' | '.join(lines[-_LAST_LINES:])}"
        progress.say(_STEP, self._last)
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if code == command_line.BAD_INPUT:
            self._mistake = errors[-1] if errors else self._last

    def _log(self, pod: Any, **options: Any) -> str:
        return str(self._ask(self._pods.read_namespaced_pod_log, pod.metadata.name, self.namespace, **options))

    def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what the cluster answers, once it does; that something is there already is an answer to its creation.

        Raises:
            MissingError: If there is no such thing.
            InputError: If this step may not ask.
            PlatformError: If the cluster refuses, or does not answer for long.
        """
        return Backoff(report=lambda text: progress.say(_STEP, text))(
            lambda: self._ask_once(method, *arguments, **options)
        )

    def _ask_once(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        import urllib3
        from kubernetes.client import ApiException

        try:
            return method(*arguments, **options, _request_timeout=_TIMEOUT_SECONDS)
        except urllib3.exceptions.HTTPError as error:
            raise OutageError(f"The cluster does not answer: {describe(error)}.") from error
        except ApiException as error:
            if error.status == 404:
                raise MissingError(str(error.reason)) from error
            if error.status == 409:
                return None
            if error.status in (401, 403):
                raise InputError(
                    f"Cannot train on several hosts: the service account of this step may not ask the cluster for "
                    f"{method.__name__.replace('_namespaced', '')} in namespace {self.namespace}. Grant it to get, "
                    "create and delete jobsets, and to get and list pods and their logs; pipelines/platforms/README.md "
                    "says how."
                ) from error
            if error.status == 429 or error.status >= 500:
                raise OutageError(f"The cluster answers {error.status} {error.reason}.") from error
            raise PlatformError(f"The cluster refuses: {error.status} {_message(error)}") from error


def _owner(reference: Any) -> dict[str, Any]:
    return {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
    }


def _exit_code(pod: Any) -> int:
    """Return the exit code of a pod's container; 0 while it runs."""
    states = [container.state for container in pod.status.container_statuses or ()]
    return next((int(state.terminated.exit_code) for state in states if state and state.terminated), 0)


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
