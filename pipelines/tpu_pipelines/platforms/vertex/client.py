"""Client of Vertex AI: pipeline jobs and schedules."""

import contextlib
import datetime
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import ExistsError, MissingError, OutageError
from tpu_components.core.base.states import State, run_state
from tpu_components.core.files.vertex_clients import VertexService, join_errors, types
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import DIGEST, TRAINING_TASK, Job, Schedule, Submission, fingerprints_in, now
from tpu_pipelines.platforms.limits import check_texts
from tpu_pipelines.platforms.vertex.custom_job import custom_job_name
from tpu_pipelines.platforms.vertex.limits import VERTEX_LIMITS
from tpu_pipelines.platforms.vertex.settings_rules import REQUIRED

_CONSOLE = "https://console.cloud.google.com"
# Vertex's messages about missing capacity or quota.
_NO_CAPACITY = re.compile(
    r"RESOURCE_EXHAUSTED|STOCKOUT|RESOURCE_POOL_EXHAUSTED|resources are insufficient|no more capacity"
    r"|exceed quota limits",
    re.IGNORECASE,
)
# The message of a failed program, which had its machine. It quotes the program's output, such as exhausted TPU memory.
_PROGRAM_ENDED = re.compile(r"exited with a non-zero status")
_OURS_OF_A_JOB = ("labels", "serviceAccount", "network", "encryptionSpec", "pscInterfaceConfig", "pipelineSpec")
_ACTIVE_RUNS = 1  # Limit of a schedule, so that runs do not queue up while one waits for a machine.
_RESOURCE_EXHAUSTED = 8  # https://grpc.io/docs/guides/status-codes


class VertexClient:
    """Client of Vertex AI for runs and schedules.

    It uses the service's generated clients instead of `aiplatform.PipelineJob`, which creates missing buckets, requests
    the project's number, and keeps global settings.

    Args:
        settings: Settings of the platform, with project, region and bucket.
        service: Client of the service. None creates a client with the environment's credentials.
        now: Function that returns the time, in UTC.

    Raises:
        InputError: If settings are missing. The message lists all of them.
    """

    def __init__(
        self, settings: Settings, service: VertexService | None = None, now: Callable[[], datetime.datetime] = now
    ) -> None:
        settings.require(*REQUIRED)
        self._settings = settings
        self._now = now
        self._service = service or VertexService(settings.project, settings.region, settings.vertex_endpoint)
        self._parent = self._service.parent

    def _call(self, method: str, request: Any, kind: str = "PipelineService") -> Any:
        """Call the service once, and convert its errors to the errors that a `PlatformClient` raises."""
        return self._service.call(kind, method, request)

    # Jobs

    def _request(self, job: Job) -> Any:
        v1 = types()
        settings = self._settings
        texts = {"pipeline_job_id": job.job_id, "pipeline_job": job.name, "custom_job": custom_job_name(job.job_id)}
        check_texts(VERTEX_LIMITS, texts)
        return v1.CreatePipelineJobRequest(
            parent=self._parent,
            pipeline_job_id=job.job_id,
            pipeline_job=v1.PipelineJob(
                display_name=job.name,
                pipeline_spec=job.specifications[0],
                runtime_config=v1.PipelineJob.RuntimeConfig(gcs_output_directory=settings.bucket),
                labels=job.labels,
                service_account=settings.service_account,
                network=settings.network,
                **({"encryption_spec": {"kms_key_name": settings.encryption_key}} if settings.encryption_key else {}),
                **(
                    {"psc_interface_config": {"network_attachment": settings.network_attachment}}
                    if settings.network_attachment
                    else {}
                ),
            ),
        )

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the request that `create` would send, as JSON."""
        from google.protobuf import json_format

        return json_format.MessageToDict(types().CreatePipelineJobRequest.pb(self._request(job)))

    def create(self, job: Job) -> Submission:
        """Start a job and add it to the experiment in the settings. If a job with its ID exists, return that job.

        A job is added to an experiment through the job's context, which the service creates only when the job starts.
        Until then, this method raises OutageError if an experiment is set. A repeated call finds the existing job.
        """
        with contextlib.suppress(ExistsError):
            created = self._call("create_pipeline_job", self._request(job))
            if not self._settings.experiment:
                return self._read(created)
        try:
            existing = self._call("get_pipeline_job", {"name": f"{self._parent}/pipelineJobs/{job.job_id}"})
        except MissingError as error:
            raise OutageError(f"{job.job_id} exists but cannot be found, because it is being deleted.") from error
        if self._settings.experiment:
            self._put_into_experiment(existing)
        return self._read(existing)

    def _put_into_experiment(self, job: Any) -> None:
        """Add a job to the experiment of the settings, unless it is there already or never ran.

        This method works like Google's SDK: aiplatform/metadata/experiment_resources.py, `_log_pipeline_job`.
        """
        run = job.job_detail.pipeline_run_context.name
        if not run and not run_state(job.state.name).is_final:
            raise OutageError(
                f"{job.name.rpartition('/')[2]} has not started yet, so it cannot be added to the experiment."
            )
        if run:
            store = run.rpartition("/contexts/")[0]
            experiment = self._settings.experiment
            context = {
                "display_name": experiment,
                "schema_title": "system.Experiment",
                "schema_version": "0.0.1",
                "metadata": {"experiment_deleted": False},
            }
            request = {"parent": store, "context_id": experiment, "context": context}
            with contextlib.suppress(ExistsError):
                self._call("create_context", request, "MetadataService")
            children = {"context": f"{store}/contexts/{experiment}", "child_contexts": [run]}
            self._call("add_context_children", children, "MetadataService")

    def get(self, job_id: str) -> Submission | None:
        """Return the job with this ID, or None if there is none."""
        with contextlib.suppress(MissingError):
            return self._read(self._call("get_pipeline_job", {"name": f"{self._parent}/pipelineJobs/{job_id}"}))
        return None

    def latest(self, name: str) -> Submission | None:
        """Return the newest job with this name, otherwise the job with this ID, otherwise None."""
        if re.fullmatch(r"[\w.-]+", name):
            condition = f'display_name="{name}" AND labels.tpu_pipelines_run:*'
            request = {"parent": self._parent, "filter": condition, "order_by": "create_time desc", "page_size": 1}
            for job in self._call("list_pipeline_jobs", request):  # The first page is loaded.
                # A listing lacks the states of steps. None if the job was deleted meanwhile.
                return self.get(job.name.rpartition("/")[2])
        return self.get(name) if re.fullmatch(r"[a-z][-a-z0-9]*", name) else None

    def cancel(self, job_id: str) -> None:
        """Stop a job, unless it has ended."""
        try:
            self._call("cancel_pipeline_job", {"name": f"{self._parent}/pipelineJobs/{job_id}"})
        except InputError:
            existing = self.get(job_id)
            if existing is None or not existing.state.is_final:
                raise

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the URI of a step's output, or an empty string if there is none. The step may be cached."""
        job = self._call("get_pipeline_job", {"name": f"{self._parent}/pipelineJobs/{job_id}"})
        for task in job.job_detail.task_details:
            if task.task_name.replace("-", "_") == step and output in task.outputs:
                return next((str(artifact.uri) for artifact in task.outputs[output].artifacts), "")
        return ""

    def _read(self, job: Any) -> Submission:
        """Convert a pipeline job of the service, with its custom job, to a `Submission`."""
        job_id = job.name.rpartition("/")[2]
        tasks = {task.task_name: task for task in job.job_detail.task_details}
        state = run_state(job.state.name)
        training = tasks.get(TRAINING_TASK)
        query = f"?project={self._settings.project}"
        url = logs_url = f"{_CONSOLE}/vertex-ai/locations/{self._settings.region}/pipelines/runs/{job_id}{query}"
        training_seconds = waited_seconds = 0.0
        if training and training.start_time:
            training_seconds = ((training.end_time or self._now()) - training.start_time).total_seconds()
        custom_job = self._custom_job(job) if training and state is not State.SUCCEEDED else None
        if custom_job:
            if not custom_job.start_time:
                end = custom_job.end_time or self._now()
                waited_seconds = (end - custom_job.create_time).total_seconds()
            where = f'resource.labels.job_id="{custom_job.name.rpartition("/")[2]}"'
            logs_url = f"{_CONSOLE}/logs/query;query={urllib.parse.quote(where)}{query}"
        error, lacks_machine = _failure(job, tasks, custom_job) if state is State.FAILED else ("", False)
        return Submission(
            job_id=job_id,
            name=job.display_name,
            state=state,
            machine=job.labels.get("tpu_pipelines_machine", ""),
            url=url,
            logs_url=logs_url,
            steps={
                # Vertex reports cached steps as skipped.
                name.replace("-", "_"): State.CACHED if task.state.name == "SKIPPED" else task.state.name.lower()
                for name, task in tasks.items()
            },
            error=error,
            lacks_machine=lacks_machine,
            waited_seconds=waited_seconds,
            fingerprints=fingerprints_in(job.labels),
            digest=job.labels.get(DIGEST, ""),
            created=job.create_time.isoformat() if job.create_time else "",
            training_seconds=training_seconds,
        )

    def _custom_job(self, job: Any) -> Any:
        """Return the latest custom job of a pipeline job, or None if there is none."""
        region = job.labels.get("tpu_pipelines_region") or self._settings.region
        request = {
            "parent": f"projects/{self._settings.project}/locations/{region}",
            "filter": f'display_name="{custom_job_name(job.name.rpartition("/")[2])}"',
        }
        jobs = self._service.list("JobService", "list_custom_jobs", request, region)
        return max(jobs, key=lambda custom_job: custom_job.create_time, default=None)

    # Schedules

    def schedules(self, name: str) -> list[Schedule]:
        """Return all schedules with this name, the oldest first."""
        request = {"parent": self._parent, "filter": f'display_name="{name}"'}
        schedules = self._service.list("ScheduleService", "list_schedules", request)
        return [
            self._read_schedule(schedule)
            for schedule in sorted(schedules, key=lambda schedule: (schedule.create_time, schedule.name))
        ]

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return the fields that this package sets in a schedule of the job."""
        return self._read_schedule(self._schedule(job, cron)).content

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Create a schedule."""
        request = {"parent": self._parent, "schedule": self._schedule(job, cron)}
        return self._read_schedule(self._call("create_schedule", request, "ScheduleService"))

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Change the job and the cron expression of a schedule."""
        schedule = self._schedule(job, cron)
        schedule.name = self._schedule_name(schedule_id)
        fields = ["cron", "create_pipeline_job_request", "max_concurrent_active_run_count"]
        request = {"schedule": schedule, "update_mask": {"paths": fields}}
        return self._read_schedule(self._call("update_schedule", request, "ScheduleService"))

    def pause_schedule(self, schedule_id: str) -> None:
        """Pause a schedule. It does not start runs until it is resumed."""
        self._call("pause_schedule", {"name": self._schedule_name(schedule_id)}, "ScheduleService")

    def resume_schedule(self, schedule_id: str) -> None:
        """Resume a schedule. Missed runs are not started."""
        request = {"name": self._schedule_name(schedule_id), "catch_up": False}
        self._call("resume_schedule", request, "ScheduleService")

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, if it exists."""
        with contextlib.suppress(MissingError):
            self._call("delete_schedule", {"name": self._schedule_name(schedule_id)}, "ScheduleService")

    def _schedule_name(self, schedule_id: str) -> str:
        return f"{self._parent}/schedules/{schedule_id}"

    def _schedule(self, job: Job, cron: str) -> Any:
        request = self._request(job)
        check_texts(VERTEX_LIMITS, {"schedule": job.name})
        request.pipeline_job_id = ""  # Every run gets its own id.
        return types().Schedule(
            display_name=job.name,
            cron=cron,
            max_concurrent_run_count=1,  # Required; limits start requests only.
            max_concurrent_active_run_count=_ACTIVE_RUNS,
            create_pipeline_job_request=request,
        )

    def _read_schedule(self, schedule: Any) -> Schedule:
        from google.protobuf import json_format

        job = schedule.create_pipeline_job_request.pipeline_job
        plain = json_format.MessageToDict(type(job).pb(job))
        content = {
            "cron": schedule.cron,
            "active_runs": schedule.max_concurrent_active_run_count,
            "output": job.runtime_config.gcs_output_directory,
            **{key: plain.get(key, "") for key in _OURS_OF_A_JOB},
        }
        schedule_id = schedule.name.rpartition("/")[2]
        next_run = schedule.next_run_time
        return Schedule(
            schedule_id=schedule_id,
            cron=schedule.cron,
            is_paused=schedule.state.name == "PAUSED",
            content=content,
            next_run=f"{next_run:%Y-%m-%d %H:%M} UTC" if next_run else "",
            url=f"{_CONSOLE}/vertex-ai/locations/{self._settings.region}/pipelines/schedules/{schedule_id}"
            f"?project={self._settings.project}",
        )


def _failure(job: Any, tasks: Mapping[str, Any], custom_job: Any) -> tuple[str, bool]:
    """Return the error message of a failed pipeline job, and whether no machine was available for training."""
    errors = {name: task.error for name, task in tasks.items() if task.state.name == "FAILED"}
    lacking = [errors[TRAINING_TASK]] if TRAINING_TASK in errors else []
    if custom_job and custom_job.error.message:
        errors = {TRAINING_TASK: custom_job.error}
        lacking = [custom_job.error]
    elif lacking and custom_job is None:  # Refused at creation, for example for quota.
        lacking.append(job.error)
    message = join_errors(errors) or job.error.message
    return message, any(is_out_of_capacity(error.code, error.message) for error in lacking)


def is_out_of_capacity(code: int, message: str) -> bool:
    """Return whether an error of a training job means that its machine is not available.

    Example:
        >>> is_out_of_capacity(9, "Resources are insufficient in region: us-west1.")
        True
        >>> is_out_of_capacity(3, "The replica workerpool0-0 exited with a non-zero status of 1: RESOURCE_EXHAUSTED")
        False
    """
    if _PROGRAM_ENDED.search(message):
        return False
    return code == _RESOURCE_EXHAUSTED or bool(_NO_CAPACITY.search(message))
