"""A fake Kubeflow Pipelines server in this process: stateful, with the v2beta1 API over HTTP, for the real client.

    with FakeKubeflow() as kubeflow:
        client = kfp.Client(host=kubeflow.url)

Requests are mapped to methods by the client's generated code, and parsed by the types of `kfp_server_api`. State, by
id, as these types: `experiments`, `pipelines`, `versions`, `runs`, `recurring_runs`.

A task with a retry policy has an additional node, as in Argo: `executor` stands for the retries, and its pods are
`executor(0)`, `executor(1)`… `preempt` takes a pod away from the training; `retry_policy` decides what is retried.

As in the service: the server assigns ids, several runs and recurring runs may have the same name, times are whole
seconds, filters ignore case, the details of a run are the nodes of Argo's workflow (a step, its driver, and a pod named
`executor`), a node that has not ended has an end in the year 1, and a run that was terminated ends as failed.

`execution` processes the runs: `RunOnCpu`, the default, really runs the submitted pipeline; `Simulate` only changes the
states. A pod may first have to wait for nodes: `scarce`.

Faults, from `GoogleApiServer`: `fail_next`, `drop_next`, `require_tokens`, `expire_tokens`, `go_down`.
"""

import contextlib
import copy
import datetime
import functools
import inspect
import itertools
import json
import re
import shutil
import sys
import types
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import kfp_server_api as sdk
from google.rpc import code_pb2

from tests.support.fakes import execution, kubeflow_rules
from tests.support.fakes.execution_cache import ExecutionCache, Scope
from tests.support.fakes.google_api import GoogleApiServer, ServiceError

RUN_DONE = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_NEVER = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
_SERVICES = ("Experiment", "Healthz", "Pipeline", "RecurringRun", "Run")
_CODEC = sdk.ApiClient()
_Request = dict[str, Any]


class Execution(Protocol):
    """Interface that executes the runs of a fake, `kubeflow`; all methods are called under its lock."""

    def start_run(self, kubeflow: Any, run_id: str) -> None:
        """Start or continue a run."""

    def stop(self, run_id: str) -> None:
        """Stop a run that was terminated, or when the fake ends; its processes must have ended on return."""


@functools.cache
def _routes() -> tuple[tuple[str, re.Pattern[str], str, str, str], ...]:
    """Return verb, path, method, and name and type of the body, for all methods of the services; cached."""
    return tuple(_read_routes())


def _read_routes() -> Iterator[tuple[str, re.Pattern[str], str, str, str]]:
    for service in _SERVICES:
        source = inspect.getsource(getattr(sdk, f"{service}ServiceApi"))
        for method, code in re.findall(r"def (\w+)_with_http_info\(self(.*?)(?=\n    def |\Z)", source, re.DOTALL):
            path, verb = re.search(r"'(/apis/[^']+)', '(\w+)'", code).groups()  # type: ignore[union-attr]
            body = re.search(r"body_params = local_var_params\['(\w+)'\]", code)
            kind = re.search(rf":type {body[1]}: (\w+)", code) if body else None
            pattern = re.sub(r"\\\{([\w.]+)\\\}", r"(?P<\1>[^/:]+)", re.escape(path).replace(r"\_", "_"))
            with contextlib.suppress(re.error):  # Dotted names belong to updates, which no test sends.
                yield verb, re.compile(pattern), method, body[1] if body else "", kind[1] if kind else ""


def _decode(content: Any, kind: str) -> Any:
    """Convert JSON to one of the service's types; unknown fields are refused."""
    known = set(getattr(sdk, kind).attribute_map.values())
    if not isinstance(content, dict) or (unknown := set(content) - known):
        wrong = sorted(unknown) if isinstance(content, dict) else content
        raise ServiceError("INVALID_ARGUMENT", f"{kind} has no field {wrong}.")
    try:
        return _CODEC.deserialize(types.SimpleNamespace(data=json.dumps(content)), kind)
    except (ValueError, sdk.ApiException) as error:
        raise ServiceError("INVALID_ARGUMENT", f"Cannot parse {kind}: {error}") from error


class FakeKubeflow(GoogleApiServer):
    """A fake server; see the module.

    Args:
        execution: Executes runs; called in the request that creates them.
        clock: The server's time; by default the system's, in UTC.
        multi_user: Whether all requests must name a namespace.

    Attributes:
        columns: Characters that the columns of its database have; those of MySQL and MariaDB.
        secrets: Secrets of Kubernetes by their names, and their keys and values.
        retry_policy: Argo's policy for steps that ask for retries: the one of KFP 2.17; before, it is OnFailure.
        version: Version that the server reports; `unknown` if it was built without one.
        is_behind_web_server: Whether KFP's web server answers requests for the server's health.
        scarce: TPUs, for example `tpu-v5-lite-podslice`, for which pods wait forever.
        canceling_seconds: Time from the termination of a run to its end.
        terminated_state: Final state of terminated runs; the API has `CANCELED`, but servers report `FAILED`.
    """

    def __init__(
        self,
        execution: Execution | None = None,
        clock: Callable[[], datetime.datetime] | None = None,
        multi_user: bool = False,
    ) -> None:
        super().__init__()
        self._kfp_routes = _routes()
        self.execution = execution or RunOnCpu()
        self._clock = clock or (lambda: datetime.datetime.now(datetime.UTC))
        self.multi_user = multi_user
        self.experiments: dict[str, sdk.V2beta1Experiment] = {}
        self.pipelines: dict[str, sdk.V2beta1Pipeline] = {}
        self.versions: dict[str, sdk.V2beta1PipelineVersion] = {}
        self.runs: dict[str, sdk.V2beta1Run] = {}
        self.recurring_runs: dict[str, sdk.V2beta1RecurringRun] = {}
        self.columns = dict(kubeflow_rules.COLUMNS)
        self.version = "2.17.0"
        self.is_behind_web_server = False
        self.secrets: dict[str, dict[str, str]] = {}
        self.retry_policy = "OnError"
        self.scarce: set[str] = set()
        self.terminated_state = "FAILED"
        # With the system's time a test really waits; with a fake clock it must call `sleep`.
        self.canceling_seconds = 30.0 if clock else 0.0
        self._ending: list[tuple[datetime.datetime, sdk.V2beta1Run]] = []
        self._numbers = itertools.count(1)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            for run_id in self.runs:
                self.execution.stop(run_id)
        super().__exit__(*error)

    def clock(self) -> datetime.datetime:
        """Return the time, in whole seconds."""
        return self._clock().replace(microsecond=0)

    # Differences from Google's APIs

    def _parse(self, verb: str, path: str, query: str, body: bytes) -> tuple[str, _Request]:
        for route_verb, pattern, method, name, kind in self._kfp_routes:
            if route_verb == verb and (match := pattern.fullmatch(path)):
                request: _Request = {key: values[-1] for key, values in urllib.parse.parse_qs(query).items()}
                request.update(match.groupdict())
                if name:
                    request[name] = _decode(json.loads(body or b"{}"), kind)
                return method, request
        raise ServiceError("UNIMPLEMENTED", f"No method at {verb} {path}.")

    def encode(self, response: Any) -> dict[str, Any]:
        """Return a response as JSON."""
        return _CODEC.sanitize_for_serialization(response) if response else {}

    def answer(self, verb: str, target: str, body: bytes, token: str) -> tuple[int, dict[str, Any], str]:
        """Return a response like the base class, with errors in the form of this server's gateway."""
        with self.lock:
            self._catch_up()
        status, content, drop = super().answer(verb, target, body, token)
        if status >= 400 and content:
            error = content["error"]
            code = code_pb2.Code.Value(error["status"])
            content = {"error": error["message"], "code": code, "message": error["message"], "details": []}
        return status, content, drop

    def _select(self, items: Mapping[str, Any], request: _Request, id_field: str) -> tuple[list[Any], str]:
        """Return the items that a list request asks for, and the token of its next page.

        Understands EQUALS and IS_SUBSTRING of a text, and one field to sort by; anything else is refused.
        """
        found = list(items.values())
        if experiment := request.get("experiment_id"):
            found = [item for item in found if item.experiment_id == experiment]
        else:
            found = [item for item in found if self._namespace_of(item) == self._namespace(request.get("namespace"))]
        for predicate in json.loads(request.get("filter") or "{}").get("predicates", ()):
            value = str(predicate.get("stringValue", predicate.get("string_value"))).lower()
            key, operation = predicate["key"], predicate["operation"]
            if key not in ("display_name", "description", "state") or operation not in ("EQUALS", "IS_SUBSTRING"):
                raise ServiceError("INVALID_ARGUMENT", f"Invalid filter: {predicate}.")
            matches = str.__eq__ if operation == "EQUALS" else str.__contains__
            found = [item for item in found if matches((getattr(item, key) or "").lower(), value)]
        field, _, direction = (request.get("sort_by") or id_field).partition(" ")
        if field not in ("created_at", "display_name", id_field):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid sort_by: {field!r}.")
        # Ids break ties, as in the service: they are random.
        found.sort(key=lambda item: (getattr(item, field), getattr(item, id_field)), reverse=direction == "desc")
        # Rule: a page has 20 items by default, and at most 200 (kubeflow/pipelines backend/src/apiserver/list/list.go:
        # validatePageSize)
        start = int(request.get("page_token") or 0)
        end = start + min(int(request.get("page_size") or 20), 200)
        return found[start:end], str(end) if end < len(found) else ""

    def _namespace(self, given: str | None) -> str:
        if self.multi_user and not given:
            raise ServiceError("INVALID_ARGUMENT", "Namespace is empty in multi-user mode.")
        return given or ""

    def _namespace_of(self, item: Any) -> str:
        if isinstance(item, sdk.V2beta1Run | sdk.V2beta1RecurringRun):
            item = self.experiments[item.experiment_id]
        return item.namespace or ""

    # Experiments, pipelines, health

    def healthz_service_get_healthz(self, _: _Request) -> Any:
        # Rule: the server reports its image's version in addition to the fields of the API (kubeflow/pipelines
        # backend/src/apiserver/main.go: healthzResponse; backend/Dockerfile: TAG_NAME)
        # Rule: KFP's web server may answer instead, with another name for the version field (kubeflow/pipelines
        # frontend/server/handlers/healthz.ts: HealthzStats)
        name = "apiServerTagName" if self.is_behind_web_server else "tag_name"
        return {"multi_user": self.multi_user, name: self.version}

    def experiment_service_create_experiment(self, request: _Request) -> Any:
        experiment = request["experiment"]
        experiment.namespace = self._namespace(experiment.namespace)
        kubeflow_rules.check_experiment(experiment.display_name, experiment.namespace)
        for other in self.experiments.values():
            is_same = kubeflow_rules.is_same_name(other.display_name, experiment.display_name)
            if is_same and other.namespace == experiment.namespace:
                raise ServiceError("ALREADY_EXISTS", f"Experiment {other.display_name} already exists.")
        experiment.experiment_id, experiment.created_at = str(uuid.uuid4()), self.clock()
        experiment.storage_state = "AVAILABLE"
        self.experiments[experiment.experiment_id] = experiment
        return experiment

    def experiment_service_get_experiment(self, request: _Request) -> Any:
        return _get(self.experiments, request["experiment_id"])

    def experiment_service_list_experiments(self, request: _Request) -> Any:
        found, token = self._select(self.experiments, request, "experiment_id")
        return sdk.V2beta1ListExperimentsResponse(experiments=found, next_page_token=token)

    def pipeline_service_create_pipeline(self, request: _Request) -> Any:
        pipeline = request["pipeline"]
        if any(other.display_name == pipeline.display_name for other in self.pipelines.values()):
            raise ServiceError("ALREADY_EXISTS", f"Pipeline {pipeline.display_name} already exists.")
        pipeline.pipeline_id, pipeline.created_at = str(uuid.uuid4()), self.clock()
        self.pipelines[pipeline.pipeline_id] = pipeline
        return pipeline

    def pipeline_service_get_pipeline(self, request: _Request) -> Any:
        return _get(self.pipelines, request["pipeline_id"])

    def pipeline_service_create_pipeline_version(self, request: _Request) -> Any:
        version = request["pipeline_version"]
        version.pipeline_id = _get(self.pipelines, request["pipeline_id"]).pipeline_id
        version.pipeline_version_id, version.created_at = str(uuid.uuid4()), self.clock()
        _check_spec(version.pipeline_spec)
        self.versions[version.pipeline_version_id] = version
        return version

    def pipeline_service_get_pipeline_version(self, request: _Request) -> Any:
        return _get(self.versions, request["pipeline_version_id"])

    # Runs

    def _take_spec(self, item: Any) -> None:
        """Check a run or recurring run, and fill in a pipeline that it only names."""
        if not item.display_name:
            raise ServiceError("INVALID_ARGUMENT", "display_name is required.")
        if not item.experiment_id:
            raise ServiceError("INVALID_ARGUMENT", "This fake has no default experiment: experiment_id is required.")
        _get(self.experiments, item.experiment_id)
        if item.pipeline_version_reference:
            version = _get(self.versions, item.pipeline_version_reference.pipeline_version_id)
            item.pipeline_spec = version.pipeline_spec
        _check_spec(item.pipeline_spec)
        kubeflow_rules.check_size(json.dumps(item.pipeline_spec))
        if self.version[:1].isdecimal():
            kubeflow_rules.check_fields(item.pipeline_spec, self.version)
        for name in tasks_of(item.pipeline_spec):
            config = executor_config(item.pipeline_spec, name)
            kubeflow_rules.check_mounts(config)
            kubeflow_rules.check_names(config, variables_of(item.pipeline_spec, name))

    def run_service_create_run(self, request: _Request) -> Any:
        run = request["run"]
        self._take_spec(run)
        texts = {"DisplayName": run.display_name, "Description": run.description}
        kubeflow_rules.check_columns("create a run", texts, self.columns)
        run.run_id = str(uuid.uuid4())
        run.created_at = run.scheduled_at = self.clock()
        run.finished_at, run.storage_state = _NEVER, "AVAILABLE"
        run.run_details = sdk.V2beta1RunDetails(task_details=[])
        self._move(run, "PENDING")
        self.runs[run.run_id] = run
        created = copy.deepcopy(run)
        self.execution.start_run(self, run.run_id)
        return created

    def run_service_get_run(self, request: _Request) -> Any:
        return _get(self.runs, request["run_id"])

    def run_service_list_runs(self, request: _Request) -> Any:
        found, token = self._select(self.runs, request, "run_id")
        return sdk.V2beta1ListRunsResponse(runs=found, next_page_token=token, total_size=len(found))

    def run_service_terminate_run(self, request: _Request) -> None:
        run = _get(self.runs, request["run_id"])
        if run.state not in ("PENDING", "RUNNING", "PAUSED"):
            raise ServiceError("INVALID_ARGUMENT", f"Failed to terminate a run {run.run_id}. Row not found.")
        # Rule: a run stays in the state of cancellation until its workflow has ended, and its history does not show
        # this (kubeflow/pipelines backend/src/apiserver/storage/run_store.go: TerminateRun)
        run.state = "CANCELING"
        self._ending.append((self.clock() + datetime.timedelta(seconds=self.canceling_seconds), run))

    def _catch_up(self) -> None:
        """End the runs whose termination is due."""
        ready = [run for time, run in self._ending if time <= self.clock()]
        self._ending = [one for one in self._ending if one[0] > self.clock()]
        for run in ready:
            self.execution.stop(run.run_id)
            for node in run.run_details.task_details:
                if node.end_time == _NEVER:
                    self.end_node(node, "FAILED")
            if run.state not in RUN_DONE:
                self._end(run, self.terminated_state)

    def run_service_retry_run(self, request: _Request) -> None:
        run = _get(self.runs, request["run_id"])
        if run.state not in ("FAILED", "CANCELED"):
            raise ServiceError("INVALID_ARGUMENT", f"Run {run.run_id} cannot be retried: it is {run.state}.")
        run.run_details.task_details = [node for node in run.run_details.task_details if node.state == "SUCCEEDED"]
        run.finished_at, run.error = _NEVER, None
        self._move(run, "RUNNING")
        self.execution.start_run(self, run.run_id)

    def run_service_delete_run(self, request: _Request) -> None:
        run = _get(self.runs, request["run_id"])
        self.execution.stop(run.run_id)
        del self.runs[run.run_id]

    def _move(self, item: Any, state: str) -> None:
        """Set the state of a run or a node."""
        item.state = state
        status = sdk.V2beta1RuntimeStatus(update_time=self.clock(), state=state)
        item.state_history = [*(item.state_history or ()), status]

    def start_run(self, run_id: str) -> Any:
        """Start a run; return the run, or None if it has ended or was deleted."""
        run = self.runs.get(run_id)
        if run is None or run.state in RUN_DONE:
            return None
        if run.state == "PENDING":
            self._move(run, "RUNNING")
        return run

    def end_run(self, run_id: str, state: str) -> None:
        """End a run, unless it has ended."""
        with self.lock:
            run = self.runs.get(run_id)
            if run is not None and run.state not in RUN_DONE:
                self._end(run, state)

    def _end(self, run: Any, state: str) -> None:
        run.finished_at = self.clock()
        self._move(run, state)

    def node(self, run: Any, name: str, state: str, pod_of: str = "") -> Any:
        """Return a node of a run's workflow (a step, its driver, or the pod of a step); creates it if it is missing."""
        for node in run.run_details.task_details:
            if (node.display_name, node.parent_task_id) == (name, pod_of):
                return node
        node = sdk.V2beta1PipelineTaskDetail(
            run_id=run.run_id,
            task_id=str(uuid.uuid4()),
            display_name=name,
            create_time=run.created_at,
            start_time=self.clock(),
            end_time=_NEVER,
            parent_task_id=pod_of,
        )
        self._move(node, state)
        run.run_details.task_details.append(node)
        return node

    def start_step(self, run: Any, name: str) -> tuple[Any, Any]:
        """Start a step, unless it has started: its node, and that of its pod, which runs if a machine is available."""
        self.end_node(self.node(run, f"{name}-driver", "RUNNING"), "SUCCEEDED")
        step = self.node(run, name, "RUNNING")
        if retry_policy(run.pipeline_spec, name):
            self.node(run, "executor", "RUNNING", pod_of=name)
            attempts = self._attempts(run, name)
            pod = attempts[-1] if attempts else self.node(run, "executor(0)", "PENDING", pod_of=name)
        else:
            pod = self.node(run, "executor", "PENDING", pod_of=name)
        # Rule: a pod does not start while a required secret, or a required key of a secret, is missing
        # (https://kubernetes.io/docs/concepts/configuration/secret/#restriction-secret-must-exist; kubeflow/pipelines
        # backend/src/v2/driver/k8s.go: SecretKeyRef)
        _, lacking = self.pod_environment(run.pipeline_spec, name)
        scarce = self.scarce & set(node_selectors(run.pipeline_spec, name).values())
        if pod.state == "PENDING" and not scarce and not lacking:
            self._move(pod, "RUNNING")
        return step, pod

    def pod_environment(self, pipeline_spec: dict[str, Any], task: str) -> tuple[dict[str, str], list[str]]:
        """Return the variables that a task's pod gets from secrets, and the secrets and keys that it lacks."""
        values, lacking = dict[str, str](), []
        for named in executor_config(pipeline_spec, task).get("secretAsEnv", ()):
            secret = self.secrets.get(named["secretName"], {})
            for pair in named["keyToEnv"]:
                if pair["secretKey"] in secret:
                    values[pair["envVar"]] = secret[pair["secretKey"]]
                elif not named.get("optional"):
                    lacking.append(f"{named['secretName']}/{pair['secretKey']}")
        return values, lacking

    def _attempts(self, run: Any, name: str) -> list[Any]:
        nodes = run.run_details.task_details
        return [node for node in nodes if node.parent_task_id == name and node.display_name.startswith("executor(")]

    def preempt(self, run_id: str, name: str = "train-model", is_deleted: bool = False) -> None:
        """Take the node of a step's pod away; with `is_deleted`, the pod disappears before its end is observed."""
        # Rule: a pod that its node evicts or shuts down has failed, with a message; a deleted pod is an error
        # (argoproj/argo-workflows workflow/controller/operator.go at f016ad8: inferFailedReason, podReconciliation)
        # Rule: KFP 2.17 gives all steps the policy OnError, even those that request retries, because KFP sets no policy
        # for them; OnError retries errors, not failures (kubeflow/pipelines
        # manifests/kustomize/third-party/argo/base/workflow-controller-configmap-patch.yaml since 2dea6fd, and
        # backend/src/v2/compiler/argocompiler/container.go at 7b70c7b: getTaskRetryStrategyFromInput;
        # argoproj/argo-workflows workflow/controller/operator.go: mergedTemplateDefaultsInto, processNodeRetries)
        # Rule: the default policy is OnFailure, which does not retry errors (argoproj/argo-workflows
        # pkg/apis/workflow/v1alpha1/workflow_types.go: RetryPolicyActual)
        # Rule: a step is retried up to limit times, but not later than maxDuration after the start of its first attempt
        # (argoproj/argo-workflows workflow/controller/operator.go)
        # Rule: limit and maxDuration come from the task's retry policy (kubeflow/pipelines
        # backend/src/v2/compiler/argocompiler/container.go)
        with self.lock:
            run = self.runs[run_id]
            step, pod = self.start_step(run, name)
            self.end_node(pod, "FAILED")
            self.execution.stop(run_id)
            policy, attempts = retry_policy(run.pipeline_spec, name), self._attempts(run, name)
            late = attempts and (self.clock() - attempts[0].start_time).total_seconds() > float(
                policy.get("backoffMaxDuration", "0s").removesuffix("s")
            )
            is_retried = self.retry_policy in ("Always", "OnError" if is_deleted else "OnFailure")
            if late or not is_retried or len(attempts) > policy.get("maxRetryCount", 0) or not attempts:
                self.end_node(step, "FAILED")
                self.end_run(run_id, "FAILED")
                return
            self.node(run, f"executor({len(attempts)})", "PENDING", pod_of=name)
            self.execution.start_run(self, run_id)

    def end_node(self, node: Any, state: str) -> None:
        """End a node, unless it has ended."""
        if node.end_time == _NEVER:
            node.end_time = self.clock()
            self._move(node, state)

    # Recurring runs

    def recurring_run_service_create_recurring_run(self, request: _Request) -> Any:
        recurring_run = request["recurring_run"]
        self._take_spec(recurring_run)
        schedule = recurring_run.trigger and recurring_run.trigger.cron_schedule
        fields = re.sub(r"^TZ=\S+ ", "", schedule.cron).split() if schedule else []
        if len(fields) != 6 or not all(re.fullmatch(r"[\w*/,?-]+", field) for field in fields):
            raise ServiceError("INVALID_ARGUMENT", "Schedule cron is not a supported format.")
        if not 1 <= int(recurring_run.max_concurrency or 0) <= 10:
            raise ServiceError("INVALID_ARGUMENT", "Max concurrency of a recurring run must be at least 1, at most 10.")
        kubeflow_rules.check_object_name(recurring_run.display_name)
        texts = {"DisplayName": recurring_run.display_name, "Description": recurring_run.description}
        kubeflow_rules.check_columns("create a recurring run", {**texts, "Schedule": schedule.cron}, self.columns)
        recurring_run.recurring_run_id, recurring_run.created_at = str(uuid.uuid4()), self.clock()
        recurring_run.namespace = self._namespace_of(recurring_run)
        self._set_mode(recurring_run, recurring_run.mode or "DISABLE")
        self.recurring_runs[recurring_run.recurring_run_id] = recurring_run
        return recurring_run

    def _set_mode(self, recurring_run: Any, mode: str) -> None:
        recurring_run.mode, recurring_run.status, recurring_run.updated_at = mode, f"{mode}D", self.clock()

    def recurring_run_service_get_recurring_run(self, request: _Request) -> Any:
        return _get(self.recurring_runs, request["recurring_run_id"])

    def recurring_run_service_list_recurring_runs(self, request: _Request) -> Any:
        found, token = self._select(self.recurring_runs, request, "recurring_run_id")
        return sdk.V2beta1ListRecurringRunsResponse(recurring_runs=found, next_page_token=token)

    def recurring_run_service_enable_recurring_run(self, request: _Request) -> None:
        self._set_mode(_get(self.recurring_runs, request["recurring_run_id"]), "ENABLE")

    def recurring_run_service_disable_recurring_run(self, request: _Request) -> None:
        self._set_mode(_get(self.recurring_runs, request["recurring_run_id"]), "DISABLE")

    def recurring_run_service_delete_recurring_run(self, request: _Request) -> None:
        del self.recurring_runs[_get(self.recurring_runs, request["recurring_run_id"]).recurring_run_id]

    def fire(self, recurring_run_id: str) -> Any:
        """Trigger a recurring run; return the run that it starts, if it is enabled."""
        with self.lock:
            recurring_run = self.recurring_runs[recurring_run_id]
            # Rule: a recurring run has at most max_concurrency active runs (kubeflow/pipelines
            # backend/src/crd/controller/scheduledworkflow/util/scheduled_workflow.go: GetNextScheduledEpoch)
            active = [run for run in self.runs.values() if run.recurring_run_id == recurring_run_id]
            active = [run for run in active if run.state not in RUN_DONE]
            if recurring_run.mode != "ENABLE" or len(active) >= int(recurring_run.max_concurrency):
                return None
            run = sdk.V2beta1Run(
                display_name=f"{recurring_run.display_name}-{next(self._numbers)}",
                experiment_id=recurring_run.experiment_id,
                recurring_run_id=recurring_run_id,
                pipeline_spec=recurring_run.pipeline_spec,
                runtime_config=recurring_run.runtime_config,
            )
            return self.run_service_create_run({"run": run})


def _get(items: Mapping[str, Any], id_: str) -> Any:
    if id_ not in items:
        raise ServiceError("NOT_FOUND", f"{id_} not found.")
    return items[id_]


def split_spec(pipeline_spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a submitted pipeline into the pipeline itself and its Kubernetes options."""
    kubernetes = pipeline_spec.get("platform_spec", {}).get("platforms", {}).get("kubernetes", {})
    return pipeline_spec.get("pipeline_spec", pipeline_spec), kubernetes


def _check_spec(pipeline_spec: Any) -> None:
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2 as pb

    try:
        spec, kubernetes = split_spec(pipeline_spec or {})
        json_format.ParseDict(spec, pb.PipelineSpec())
        json_format.ParseDict({"platforms": {"kubernetes": kubernetes}}, pb.PlatformSpec())
    except (json_format.ParseError, AttributeError) as error:
        raise ServiceError("INVALID_ARGUMENT", f"Invalid pipeline spec: {error}") from error
    if not spec.get("root"):
        raise ServiceError("INVALID_ARGUMENT", "Invalid pipeline spec: it is empty.")


def retry_policy(pipeline_spec: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the retry policy of a task of the root DAG; empty if it is never retried."""
    spec, _ = split_spec(pipeline_spec)
    return dict(spec["root"]["dag"]["tasks"].get(task, {}).get("retryPolicy", {}))


def tasks_of(pipeline_spec: dict[str, Any]) -> dict[str, Any]:
    """Return all tasks of a pipeline, nested ones included, by name."""
    spec, _ = split_spec(pipeline_spec)
    parts = (spec["root"], *spec.get("components", {}).values())
    return {name: task for part in parts for name, task in part.get("dag", {}).get("tasks", {}).items()}


def executor_config(pipeline_spec: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the Kubernetes options of a task."""
    spec, kubernetes = split_spec(pipeline_spec)
    tasks = tasks_of(pipeline_spec)
    component = spec["components"][tasks[task]["componentRef"]["name"]] if task in tasks else {}
    return kubernetes.get("deploymentSpec", {}).get("executors", {}).get(component.get("executorLabel"), {})


def variables_of(pipeline_spec: dict[str, Any], task: str) -> list[str]:
    """Return the names of the environment variables of a task's container."""
    spec, _ = split_spec(pipeline_spec)
    component = spec["components"][tasks_of(pipeline_spec)[task]["componentRef"]["name"]]
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    container = executors.get(component.get("executorLabel"), {}).get("container", {})
    return [one["name"] for one in container.get("env", ())]


def node_selectors(pipeline_spec: dict[str, Any], task: str) -> dict[str, str]:
    """Return the node labels that a task requests."""
    return executor_config(pipeline_spec, task).get("nodeSelector", {}).get("labels", {})


def may_write(pipeline_spec: dict[str, Any], task: str) -> bool:
    """Return whether a task whose image's user is not root can write to its volumes."""
    # Rule: KFP does not set fsGroup, and a new disk belongs to root; a task runs as the user that it requests, or else
    # as its image's user (kubeflow/pipelines/issues/3866; backend/src/v2/driver/k8s.go at 7b70c7b: SecurityContext)
    config = executor_config(pipeline_spec, task)
    mounts = config.get("pvcMount") or config.get("genericEphemeralVolume")
    return not mounts or int(config.get("securityContext", {}).get("runAsUser", 1000)) == 0


class Simulate:
    """Completes every step at once without running it, when its pod has a machine.

    A run with an unfinished training keeps running; another `start_run` continues it.

    Args:
        promote: Decision of the gate.
        hold: Whether trainings run until a test sets this to False.
        failures: Steps that fail.
        cache: The server's cache; None runs all steps of every run.
    """

    def __init__(
        self,
        promote: bool = True,
        hold: bool = False,
        failures: tuple[str, ...] = (),
        cache: ExecutionCache | None = None,
    ) -> None:
        self.promote, self.hold, self.failures, self.cache = promote, hold, failures, cache
        self._scopes: dict[str, Scope] = {}

    def start_run(self, kubeflow: FakeKubeflow, run_id: str) -> None:
        run = kubeflow.start_run(run_id)
        if run:
            spec, _ = split_spec(run.pipeline_spec)
            values = (run.runtime_config and run.runtime_config.parameters) or {}
            scope = self._scopes.setdefault(run_id, Scope.of_root(spec, values))
            if self._run(kubeflow, run, spec, spec["root"]["dag"]["tasks"], scope):
                kubeflow.end_run(run_id, "SUCCEEDED")

    def _run(self, kubeflow: FakeKubeflow, run: Any, spec: dict[str, Any], tasks: dict[str, Any], scope: Scope) -> bool:
        """Process the tasks; return whether all are done."""
        for name in execution.in_order(tasks):
            inputs = scope.inputs_of(tasks[name]) if self.cache else Scope({})
            if inner := spec["components"][tasks[name]["componentRef"]["name"]].get("dag"):
                promoted = "triggerPolicy" not in tasks[name] or self.promote
                if promoted and not self._run(kubeflow, run, spec, inner["tasks"], inputs):
                    return False
                kubeflow.end_node(kubeflow.node(run, name, "RUNNING"), "SUCCEEDED" if promoted else "SKIPPED")
                continue
            if name in scope.outputs:
                continue
            key = self.cache.key(spec, tasks[name], inputs, {"pipeline_job_name": run.run_id}) if self.cache else ""
            if self.cache and (hit := self.cache.find(key)):
                # Rule: a cached step has no pod (kubeflow/pipelines backend/src/v2/compiler/argocompiler/container.go)
                scope.outputs[name] = hit
                kubeflow.end_node(kubeflow.node(run, name, "RUNNING"), "SUCCEEDED")
                continue
            step, pod = kubeflow.start_step(run, name)
            if pod.state == "PENDING" or (pod.state == "RUNNING" and self.hold and name == "train-model"):
                return False
            is_failed = name in self.failures or not may_write(run.pipeline_spec, name)
            end = "FAILED" if is_failed else "SUCCEEDED"
            for node in run.run_details.task_details:
                if node.parent_task_id == name:
                    kubeflow.end_node(node, end)
            kubeflow.end_node(step, end)
            if end == "FAILED":
                kubeflow.end_run(run.run_id, "FAILED")
                return False
            if self.cache:
                scope.outputs[name] = self.cache.succeed(name, key, spec, tasks[name], inputs)
        return True

    def stop(self, run_id: str) -> None:
        """Do nothing, because nothing runs."""


class RunOnCpu(execution.RunOnCpu):
    """Runs a submitted pipeline with kfp.local in a separate process, with the CPU as accelerator.

    Attributes:
        root: Folder for the artifacts and logs of runs, with a folder for each run.
    """

    def start_run(self, kubeflow: FakeKubeflow, run_id: str) -> None:
        run = kubeflow.start_run(run_id)
        folder = self.root / run_id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spec = copy.deepcopy(split_spec(run.pipeline_spec)[0])
        for task in spec["root"]["dag"]["tasks"].values():
            if "accelerator" in task.get("inputs", {}).get("parameters", {}):
                task["inputs"]["parameters"]["accelerator"] = {"runtimeValue": {"constant": "cpu"}}
        parameters = (run.runtime_config and run.runtime_config.parameters) or {}
        path = folder / "request.json"
        pods = {
            spec["components"][task["componentRef"]["name"]].get("executorLabel", ""): kubeflow.pod_environment(
                run.pipeline_spec, name
            )[0]
            for name, task in tasks_of(run.pipeline_spec).items()
        }
        request = {"spec": spec, "parameters": parameters, "root": str(folder), "pods": pods}
        path.write_text(json.dumps(request))
        self._start(
            run_id,
            [sys.executable, "-m", "tests.support.fakes.pipeline_process", "run", str(path)],
            {},
            lambda line: self._follow_run(kubeflow, run, line),
            lambda code: self._end_run(kubeflow, run, code),
        )

    def _follow_run(self, kubeflow: FakeKubeflow, run: Any, line: str) -> None:
        """Update the run's nodes from a line of kfp.local's output."""
        with kubeflow.lock:
            if started := re.search(r"Executing task '([\w-]+)'", line):
                kubeflow.start_step(run, started[1])
            if ended := re.search(r"Task '([\w-]+)' finished with status (\w+)", line):
                # Rule: an artifact has the path ROOT/PIPELINE/RUN/TASK/SALT/OUTPUT (kubeflow/pipelines
                # backend/src/v2/driver/driver.go: provisionOutputs)
                name = split_spec(run.pipeline_spec)[0]["pipelineInfo"]["name"]
                place = f"{run.runtime_config.pipeline_root}/{name}/{run.run_id}/{ended[1]}/{uuid.uuid4()}"
                self.store(self.root / run.run_id, ended[1], place)
                for node in kubeflow.start_step(run, ended[1]):
                    kubeflow.end_node(node, "SUCCEEDED" if ended[2] == "SUCCESS" else "FAILED")

    def _end_run(self, kubeflow: FakeKubeflow, run: Any, code: int) -> None:
        with kubeflow.lock:
            for node in run.run_details.task_details:
                kubeflow.end_node(node, "FAILED")
            kubeflow.end_run(run.run_id, "FAILED" if code else "SUCCEEDED")


def outputs(root: Path, run_id: str, name: str) -> list[Path]:
    """Return the files with this name that a run of `RunOnCpu` has written."""
    return sorted((root / run_id).rglob(name))
