"""Execution of the fake Vertex AI's jobs: `RunOnCpu` runs them, `Simulate` only changes their states."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from google.rpc import code_pb2

from tests.support.fakes import gcsfuse, vertex_rules
from tests.support.fakes.execution_cache import ExecutionCache, Scope
from tests.support.fakes.google_api import ServiceError
from tpu_components.core.base.typed_values import whole_numbers
from tpu_components.core.files import storage

RUN_LABEL = "vertex-ai-pipelines-run"  # Of a custom job: the pipeline job that started it.
_TASK = v1.PipelineTaskDetail.State
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TRANSIENT = (6, 134, 11, 139)  # Exit codes of SIGABRT and SIGSEGV, for processes and containers.
_MOST_RESTARTS = 3


class Execution(Protocol):
    """Interface that runs the jobs of a fake, `vertex`; all methods are called under its lock."""

    def start_pipeline_job(self, vertex: Any, name: str) -> None:
        """Start a pipeline job that was created."""

    def start_custom_job(self, vertex: Any, name: str) -> None:
        """Start a custom job that has its machine."""

    def stop(self, name: str) -> None:
        """Stop a job that was cancelled, or at the end of the fake; its processes must have ended when this returns."""


def specification(job: v1.PipelineJob) -> dict[str, Any]:
    """Return the pipeline specification of a job."""
    return json_format.MessageToDict(v1.PipelineJob.pb(job))["pipelineSpec"]


def is_custom_job(spec: Mapping[str, Any], component: str) -> bool:
    """Return whether a component is a custom job that Google's launcher starts."""
    executor = spec["components"][component].get("executorLabel", "")
    arguments = spec["deploymentSpec"]["executors"].get(executor, {}).get("container", {}).get("args", [])
    return arguments[:2] == ["--type", "CustomJob"]


def launcher_arguments(
    spec: Mapping[str, Any], component: str, executor_input: Mapping[str, Any], pipeline: Mapping[str, str]
) -> dict[str, str]:
    """Return the arguments that the service passes to Google's launcher: a custom job component's, filled in.

    Args:
        spec: The pipeline specification.
        component: The component's name in it.
        executor_input: The task's inputs and outputs.
        pipeline: Values of the placeholders of the whole pipeline, such as `pipeline_root`.
    """
    container = spec["deploymentSpec"]["executors"][spec["components"][component]["executorLabel"]]["container"]
    known = executor_input["inputs"].get("parameterValues", {})
    for name, declared in spec["components"][component]["inputDefinitions"]["parameters"].items():
        known = {name: declared.get("defaultValue", ""), **known}
    known = whole_numbers(known)  # The service writes them as such, and they arrive as doubles.

    def fill(text: str) -> str:
        text = re.sub(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", lambda found: as_text(known[found[1]]), text)
        text = re.sub(
            r"\{\{\$\.outputs\.parameters\['(\w+)'\]\.output_file\}\}",
            lambda found: executor_input["outputs"]["parameters"][found[1]]["outputFile"],
            text,
        )
        for key, value in pipeline.items():
            text = text.replace("{{$." + key + "}}", value)
        return text

    def as_text(value: Any) -> str:
        return fill(value if isinstance(value, str) else json.dumps(value))

    def fill_escaped(text: str) -> str:
        """The container's own arguments are in JSON inside of an argument: their placeholders ask for an escape."""
        whole = text.replace("{{$.json_escape[1]}}", json.dumps(json.dumps(executor_input))[1:-1])
        return re.sub(
            r"(\{\{\$\.[^}]*?)\.json_escape\[1\]\}\}", lambda found: json.dumps(fill(found[1] + "}}"))[1:-1], whole
        )

    arguments = [fill_escaped(fill(argument)) for argument in container["args"]]
    values = dict(zip(arguments[::2], arguments[1::2], strict=True))
    return {key.removeprefix("--"): value for key, value in values.items()}


def create_custom_job(client: Any, arguments: Mapping[str, str]) -> v1.CustomJob:
    """Create a custom job with the functions of Google's launcher.

    Args:
        client: Object with `create_custom_job(parent, custom_job)`; the launcher itself creates a real client.
        arguments: From `launcher_arguments`.
    """
    from google_cloud_pipeline_components.container.v1.custom_job import remote_runner
    from google_cloud_pipeline_components.container.v1.gcp_launcher.utils import json_util

    payload = remote_runner.insert_system_labels_into_payload(arguments["payload"])
    job = json_util.recursive_remove_empty(json.loads(payload))
    parent = f"projects/{arguments['project']}/locations/{arguments['location']}"
    return remote_runner.create_custom_job_with_client(client, parent, job)


def pipeline_placeholders(job: v1.PipelineJob, root: str) -> dict[str, str]:
    """Return the values of the placeholders of the whole pipeline, whose root is `root`."""
    _, project, _, location, _, job_id = job.name.split("/")
    return {
        "pipeline_root": root,
        "pipeline_job_name": job_id,
        "pipeline_job_resource_name": job.name,
        "pipeline_google_cloud_project_id": project,
        "pipeline_google_cloud_location": location,
    }


def _detail(job: v1.PipelineJob, task: str, vertex: Any) -> v1.PipelineTaskDetail:
    """Return a job's details of a task; creates them if they are missing."""
    for detail in job.job_detail.task_details:
        if detail.task_name == task:
            return detail
    detail = v1.PipelineTaskDetail(task_name=task, task_id=len(job.job_detail.task_details) + 1)
    detail.create_time = detail.start_time = vertex.clock()
    detail.state = _TASK.RUNNING
    job.job_detail.task_details.append(detail)
    return job.job_detail.task_details[-1]


def _tell_artifacts(detail: v1.PipelineTaskDetail, places: Mapping[str, str]) -> None:
    # Rule: a task reports the locations of its artifacts, by output (pipeline_job.proto: PipelineTaskDetail.outputs)
    for output, uri in places.items():
        detail.outputs[output] = v1.PipelineTaskDetail.ArtifactList(artifacts=[v1.Artifact(uri=uri)])


def _fail(vertex: Any, job: v1.PipelineJob, task: str, code: int, message: str) -> None:
    """Fail a task and its job, with the service's messages."""
    detail = _detail(job, task, vertex)
    detail.state, detail.end_time = _TASK.FAILED, vertex.clock()
    detail.error.code, detail.error.message = code, message
    summary = f"The DAG failed because some tasks failed. The failed tasks are: [{task}]."
    vertex.end_pipeline_job(job.name, v1.PipelineState.PIPELINE_STATE_FAILED, 9, summary)


def _refuse(vertex: Any, job: v1.PipelineJob, task: str, error: ServiceError) -> None:
    """Fail a task whose custom job was refused at creation."""
    # Rule: a refused custom job does not exist, and the pipeline job reports the reason in these words; it is not
    # documented whether its task does too, so here it does not (GoogleCloudPlatform/vertex-ai-samples/issues/3479)
    _fail(vertex, job, task, 9, "")
    status = code_pb2.Code.Name(error.code)
    job.error.message += (
        f" Job (project_id = my-project, job_id = 1) is failed due to the above error.; "
        f"com.google.cloud.ai.platform.common.errors.AiPlatformException: code={status}, message={error}, cause=null; "
        f"Failed to create custom job for the task. Task name: {task}"
    )


class Simulate:
    """Completes every task at once without running it; custom jobs are created, and may lack capacity.

    A job with an unfinished custom job keeps running; another `start_pipeline_job` continues it.

    Args:
        promote: Decision of the gate.
        hold: Whether custom jobs run until a test ends them with `end_custom_job`.
        failures: Errors by task.
        cached: Tasks that are taken from the service's cache.
        outputs: Outputs of tasks, by task.
        cache: The service's cache; None runs all tasks of every job.
        artifacts: Locations of artifacts, by task and output.
    """

    def __init__(
        self,
        promote: bool = True,
        hold: bool = False,
        failures: Mapping[str, str] | None = None,
        cached: Sequence[str] = (),
        outputs: Mapping[str, Any] | None = None,
        cache: ExecutionCache | None = None,
        artifacts: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.outputs = {"preflight-training": "14400s", **(outputs or {})}
        self.promote, self.hold, self.failures, self.cached = promote, hold, dict(failures or {}), cached
        self.cache = cache
        self.artifacts = artifacts or {}
        self._scopes: dict[str, Scope] = {}

    def start_pipeline_job(self, vertex: Any, name: str) -> None:
        job = vertex.pipeline_jobs[name]
        job.state = v1.PipelineState.PIPELINE_STATE_RUNNING
        job.start_time = job.start_time or vertex.clock()
        spec = specification(job)
        values = json_format.MessageToDict(v1.PipelineJob.RuntimeConfig.pb(job.runtime_config)).get(
            "parameterValues", {}
        )
        scope = self._scopes.setdefault(name, Scope.of_root(spec, values))
        if self._run(vertex, job, spec, spec["root"]["dag"]["tasks"], scope):
            vertex.end_pipeline_job(name, v1.PipelineState.PIPELINE_STATE_SUCCEEDED)

    def _run(self, vertex: Any, job: v1.PipelineJob, spec: dict[str, Any], tasks: dict[str, Any], scope: Scope) -> bool:
        """Process the tasks; return whether all are done."""
        for name in in_order(tasks):
            detail = _detail(job, name, vertex)
            if detail.state in (_TASK.SUCCEEDED, _TASK.SKIPPED, _TASK.NOT_TRIGGERED):
                continue
            if name in self.failures:
                _fail(vertex, job, name, 9, self.failures[name])
                return False
            component = tasks[name]["componentRef"]["name"]
            inner, key, inputs = spec["components"][component].get("dag"), "", Scope({})
            if self.cache:
                inputs = scope.inputs_of(tasks[name])
                placeholders = pipeline_placeholders(job, job.runtime_config.gcs_output_directory)
                key = "" if inner else self.cache.key(spec, tasks[name], inputs, placeholders)
                if hit := self.cache.find(key):
                    scope.outputs[name] = hit
            _tell_artifacts(detail, self.artifacts.get(name, {}))
            if name in self.cached or name in scope.outputs:
                detail.state = _TASK.SKIPPED
                continue
            if is_custom_job(spec, component) and not self._has_trained(vertex, job, spec, name, tasks[name]):
                return False
            state = _TASK.SUCCEEDED
            if "triggerPolicy" in tasks[name] and not self.promote:
                state = _TASK.NOT_TRIGGERED
            elif inner and not self._run(vertex, job, spec, inner["tasks"], inputs):
                return False
            if self.cache and not inner:
                scope.outputs[name] = self.cache.succeed(name, key, spec, tasks[name], inputs)
            detail = _detail(job, name, vertex)
            detail.state, detail.end_time = state, vertex.clock()
        return True

    def _has_trained(
        self, vertex: Any, job: v1.PipelineJob, spec: dict[str, Any], name: str, task: dict[str, Any]
    ) -> bool:
        """Return whether the task's custom job has succeeded; creates the job if it is missing."""
        detail = _detail(job, name, vertex)
        if not detail.executor_detail.custom_job_detail.job:
            given = task["inputs"].get("parameters", {})
            values = {key: one["runtimeValue"]["constant"] for key, one in given.items() if "runtimeValue" in one}
            made = {key: one["taskOutputParameter"] for key, one in given.items() if "taskOutputParameter" in one}
            values |= {key: self.outputs[one["producerTask"]] for key, one in made.items()}
            executor_input = {
                "inputs": {"parameterValues": values},
                "outputs": {"parameters": {"gcp_resources": {"outputFile": "/gcs/none/gcp_resources"}}},
            }
            placeholders = pipeline_placeholders(job, job.runtime_config.gcs_output_directory)
            component = task["componentRef"]["name"]
            try:
                created = create_custom_job(
                    _Here(vertex), launcher_arguments(spec, component, executor_input, placeholders)
                )
            except ServiceError as error:
                _refuse(vertex, job, name, error)
                return False
            detail.executor_detail.custom_job_detail.job = created.name
        custom_job = vertex.custom_jobs[detail.executor_detail.custom_job_detail.job]
        if custom_job.state == v1.JobState.JOB_STATE_FAILED:
            _fail(vertex, job, name, custom_job.error.code, job_failed(custom_job))
        return custom_job.state == v1.JobState.JOB_STATE_SUCCEEDED

    def start_custom_job(self, vertex: Any, name: str) -> None:
        if not self.hold:
            vertex.end_custom_job(name, v1.JobState.JOB_STATE_SUCCEEDED)

    def stop(self, name: str) -> None:
        """Do nothing, because nothing runs."""


def job_failed(job: v1.CustomJob) -> str:
    """Return the service's message about a task whose custom job failed."""
    return f"Job failed with code {job.error.code} and error: {job.error.message} Job: {job.name}"


class _Here:
    """A client that calls the fake directly."""

    def __init__(self, vertex: Any) -> None:
        self._vertex = vertex

    def create_custom_job(self, parent: str, custom_job: dict[str, Any]) -> v1.CustomJob:
        return self._vertex.create_custom_job(v1.CreateCustomJobRequest(parent=parent, custom_job=custom_job))


def in_order(tasks: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tasks' names, each after its dependencies."""
    done: set[str] = set()
    while ready := [name for name in tasks.keys() - done if done.issuperset(tasks[name].get("dependentTasks", ()))]:
        yield from sorted(ready)
        done.update(ready)


class RunOnCpu:
    """Runs pipeline jobs with kfp.local, and custom jobs as processes on this machine.

    A step that is wrapped as a custom job cannot run in kfp.local, because its container is Google's launcher. It is
    replaced by `tests.support.fakes.pipeline_process launch`, which uses the launcher's functions to create the custom
    job at the fake, over HTTP, and to wait for it. The custom job runs the submitted command, with the CPU as
    accelerator.

    Attributes:
        root: Folder for artifacts and logs, with a folder for each job. Steps see it as `/gcs`, with the rules of Cloud
            Storage FUSE.
        stored: Steps whose artifacts are also stored in the job's bucket.
        attempts: Number of starts of each custom job.
    """

    def __init__(self, root: Path | None = None, stored: Sequence[str] = ()) -> None:
        self.stored = stored
        self._temporary = None if root else tempfile.TemporaryDirectory(prefix="fake-vertex-")
        self.root = root or Path(self._temporary.name)  # type: ignore[union-attr]
        self._processes: dict[str, list[subprocess.Popen[str]]] = {}
        self._stopped: set[str] = set()
        self.attempts: dict[str, int] = {}

    def start_pipeline_job(self, vertex: Any, name: str) -> None:
        job = vertex.pipeline_jobs[name]
        job.state, job.start_time = v1.PipelineState.PIPELINE_STATE_RUNNING, vertex.clock()
        folder = self.root / name.rpartition("/")[2]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        request = {
            "endpoint": vertex.url,
            "spec": specification(job),
            "parameters": json_format.MessageToDict(v1.PipelineJob.RuntimeConfig.pb(job.runtime_config)).get(
                "parameterValues", {}
            ),
            "placeholders": pipeline_placeholders(job, str(folder)),
            "root": str(folder),
            "mount": str(self.root),
        }
        path = folder / "request.json"
        path.write_text(json.dumps(request))
        labels = json.dumps({RUN_LABEL: folder.name})
        self._start(
            name,
            [sys.executable, "-m", "tests.support.fakes.pipeline_process", "run", str(path)],
            {"VERTEX_AI_PIPELINES_RUN_LABELS": labels},
            lambda line: self._follow(vertex, job, line),
            lambda code: self._end_pipeline_job(vertex, job, code),
        )

    def _follow(self, vertex: Any, job: v1.PipelineJob, line: str) -> None:
        """Update the job's tasks from a line of kfp.local's output."""
        if started := re.search(r"Executing task '([\w-]+)'", line):
            with vertex.lock:
                _detail(job, started[1], vertex)
        if ended := re.search(r"Task '([\w-]+)' finished with status (\w+)", line):
            _, number, _, _, _, job_id = job.name.split("/")
            place = f"{job.runtime_config.gcs_output_directory}/{number}/{job_id}/{ended[1]}_1"
            places = self.store(self.root / job_id, ended[1], place)
            with vertex.lock:
                self._link(vertex, job)
                for path in (self.root / job_id).glob(f"*/{ended[1]}/executor_output.json"):
                    try:
                        vertex_rules.check_outputs(ended[1], path.read_text())
                    except ServiceError as error:
                        _fail(vertex, job, ended[1], error.code, str(error))
                        self._kill(job.name)
                        return
                detail = _detail(job, ended[1], vertex)
                _tell_artifacts(detail, places)
                detail.state = _TASK.SUCCEEDED if ended[2] == "SUCCESS" else _TASK.FAILED
                detail.end_time = vertex.clock()

    def store(self, folder: Path, task: str, place: str) -> dict[str, str]:
        """Store a task's artifacts below a location in a bucket, if `stored` contains the task.

        Returns:
            The locations of its artifacts, by output.
        """
        made = [path for path in folder.glob(f"*/{task}/*") if path.is_dir()] if task in self.stored else []
        for path in made:
            storage.upload(path, f"{place}/{path.name}")
        return {path.name: f"{place}/{path.name}" for path in made}

    def _link(self, vertex: Any, job: v1.PipelineJob) -> None:
        """Link the training step to its custom job."""
        spec = specification(job)
        for name, task in spec["root"]["dag"]["tasks"].items():
            for custom_job in vertex.custom_jobs.values():
                ours = custom_job.labels.get(RUN_LABEL) == job.name.rpartition("/")[2]
                if ours and is_custom_job(spec, task["componentRef"]["name"]):
                    _detail(job, name, vertex).executor_detail.custom_job_detail.job = custom_job.name

    def _end_pipeline_job(self, vertex: Any, job: v1.PipelineJob, code: int) -> None:
        with vertex.lock:
            self._link(vertex, job)
            if job.end_time:
                return
            for detail in list(job.job_detail.task_details):
                if detail.state in (_TASK.FAILED, _TASK.RUNNING) and code:
                    custom_job = vertex.custom_jobs.get(detail.executor_detail.custom_job_detail.job)
                    if custom_job:
                        _fail(vertex, job, detail.task_name, custom_job.error.code, job_failed(custom_job))
                    else:
                        _fail(vertex, job, detail.task_name, 9, "The task's container exited with a non-zero status.")
            if code:
                vertex.end_pipeline_job(job.name, v1.PipelineState.PIPELINE_STATE_FAILED, 9, "The DAG failed.")
                return
            for name, task in specification(job)["root"]["dag"]["tasks"].items():
                if "triggerPolicy" in task:
                    inner = specification(job)["components"][task["componentRef"]["name"]]["dag"]["tasks"]
                    ran = {detail.task_name for detail in job.job_detail.task_details}
                    detail = _detail(job, name, vertex)
                    detail.state = _TASK.SUCCEEDED if ran.issuperset(inner) else _TASK.NOT_TRIGGERED
                    detail.end_time = vertex.clock()
            vertex.end_pipeline_job(job.name, v1.PipelineState.PIPELINE_STATE_SUCCEEDED)

    def start_custom_job(self, vertex: Any, name: str) -> None:
        job = vertex.custom_jobs[name]
        container = job.job_spec.worker_pool_specs[0].container_spec
        words = [*container.command, *container.args]
        place = words.index("--executor_input") + 1
        executor_input = json.loads(words[place])
        executor_input["inputs"]["parameterValues"]["accelerator"] = "cpu"
        words[place] = json.dumps(executor_input)
        base = job.job_spec.base_output_directory.output_uri_prefix
        environment = {
            **gcsfuse.environment(self.root),
            **{one.name: one.value for one in container.env},
            # Rule: a job's folders for checkpoints and logs are on gs:// (custom_job.proto: base_output_directory)
            "AIP_MODEL_DIR": f"{base}/model/",
            "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
            # Rule: a container on a TPU VM gets the node's name, as plain text and in JSON; nothing more is documented
            # about the hosts of a slice (…/training/training-with-tpu-vm: Environment variables)
            "TPU_NODE_NAME": "my-first-tpu-node",
            "TPU_CONFIG": json.dumps(
                {"project": "tenant", "zone": "us-central1-b", "tpu_node_name": "my-first-tpu-node"}
            ),
        }
        command = [word.replace("python3", sys.executable) for word in words]
        self._start_hosts(vertex, name, command, environment)

    def _start_hosts(self, vertex: Any, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start the container of a custom job on every host of its machine."""
        count = vertex_rules.hosts_of(vertex.custom_jobs[name].job_spec.worker_pool_specs[0].machine_spec)
        self._processes[name], self.attempts[name] = [], self.attempts.get(name, 0) + 1
        for index, told in enumerate(_told_hosts(count)):

            def end(code: int, index: int = index) -> None:
                # Rule: a job ends with its primary replica, and the others are shut down; host 0 of a slice is assumed
                # to be the primary replica (…/training/understanding-training-service: Successfully completing a job)
                if index == 0:
                    self._end_attempt(vertex, name, code, command, environment)

            self._start(name, command, {**environment, **told}, lambda line: None, end, f"-{index}" if index else "")

    def _end_attempt(
        self, vertex: Any, name: str, code: int, command: list[str], environment: Mapping[str, str]
    ) -> None:
        self._kill(name)
        scheduling = vertex.custom_jobs[name].job_spec.scheduling
        # Rule: a job that ends with SIGABRT or SIGSEGV is restarted up to three times
        # (…/training/understanding-training-service: Handle common errors)
        # Rule: if a worker's machine is lost, the whole job is restarted if it is configured so (custom_job.proto:
        # restart_job_on_worker_restart)
        is_lost = code < 0 and scheduling.restart_job_on_worker_restart
        with vertex.lock:
            if (code in _TRANSIENT or is_lost) and name not in self._stopped and self.attempts[name] <= _MOST_RESTARTS:
                self._start_hosts(vertex, name, command, environment)
            else:
                self._end_custom_job(vertex, name, code)

    def _end_custom_job(self, vertex: Any, name: str, code: int) -> None:
        if code:
            message = f"The replica workerpool0-0 exited with a non-zero status of {code}."
            vertex.end_custom_job(name, v1.JobState.JOB_STATE_FAILED, 3, message)  # INVALID_ARGUMENT
        else:
            vertex.end_custom_job(name, v1.JobState.JOB_STATE_SUCCEEDED)

    def _start(
        self, name: str, words: list[str], environment: Mapping[str, str], follow: Any, end: Any, suffix: str = ""
    ) -> None:
        """Run a process; a thread reports its lines and its end."""
        log = self.root / f"{name.rpartition('/')[2]}{suffix}.log"
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._processes.setdefault(name, []).append(process)

        def watch() -> None:
            with process, open(log, "a") as file:
                for line in process.stdout or ():
                    file.write(line)
                    file.flush()
                    follow(_ANSI.sub("", line))
            end(process.returncode)

        threading.Thread(target=watch, daemon=True).start()

    def lose_host(self, name: str, index: int) -> None:
        """Simulate the loss of a machine of a custom job."""
        self._processes[name][index].kill()

    def stop(self, name: str) -> None:
        self._stopped.add(name)
        self._kill(name)

    def _kill(self, name: str) -> None:
        for process in self._processes.get(name, ()):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _told_hosts(count: int) -> Iterator[dict[str, str]]:
    """Yield the environment variables of each host of a slice that describe the others."""
    if count == 1:
        yield {}
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for index in range(count):
        yield {
            # Rule: CLUSTER_SPEC lists pools and replicas, and a slice is one replica; the variables that describe its
            # hosts to each other are not documented, and are assumed to be those of TPU VMs
            # (…/training/distributed-training)
            "CLUSTER_SPEC": json.dumps(
                {
                    "cluster": {"workerpool0": ["cmle-training-workerpool0-0:2222"]},
                    "environment": "cloud",
                    "task": {"type": "workerpool0", "index": 0},
                }
            ),
            "TPU_WORKER_ID": str(index),
            "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * count),
            "JAX_COORDINATOR_PORT": str(
                port
            ),  # All are on this machine, where another training may use the usual port.
        }
