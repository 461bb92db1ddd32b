"""A fake Vertex AI in this process: stateful, over HTTP, for the real clients.

    with FakeVertex() as vertex:
        client = aiplatform_v1.PipelineServiceClient(
            client_options={"api_endpoint": vertex.url}, transport="rest", credentials=AnonymousCredentials()
        )

or `aiplatform.init(api_endpoint=vertex.url, api_transport="rest", credentials=AnonymousCredentials(), …)`.

State, by full resource name, as the service's own types: `pipeline_jobs`, `custom_jobs`, `schedules`, `models` (a list
of versions each), `endpoints`, `evaluations`, `operations`. As in the service, names carry the project's number, and a
project may be named by its id or number.

`execution` processes the jobs: `tests.support.fakes.execution.RunOnCpu`, the default, really runs the submitted
specification; `Simulate` only changes the states. Custom jobs may lack capacity: `stock_out`, `scarce`.

Models are served by `serve`, called with the `Model` that is deployed: it returns the URL to which predictions are
posted, or a function `(instances, parameters) -> predictions`; raising makes the deployment fail.

Faults, from `GoogleApiServer`: `fail_next`, `drop_next`, `go_down` and `come_back`, `require_tokens`, `expire_tokens`.
What arrived is in `calls`. `environment` is for the command line.
"""

import contextvars
import datetime
import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2, field_mask_pb2, json_format

from tests.support.fakes import vertex_rules as rules
from tests.support.fakes.execution import Execution, RunOnCpu
from tests.support.fakes.google_api import GoogleApiServer, ServiceError, select
from tests.support.fakes.google_cloud import GoogleCloud
from tpu_components.core.base.container_images import LOCAL_IMAGE

PROJECT_NUMBER = "123456789012"
_SERVICES = (
    "pipeline_service",
    "job_service",
    "schedule_service",
    "model_service",
    "endpoint_service",
    "prediction_service",
    "metadata_service",
    "tensorboard_service",
)
DEFAULT_ACCOUNT = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
SERVICE_AGENT = f"service-{PROJECT_NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
PIPELINE_DONE = (
    v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
    v1.PipelineState.PIPELINE_STATE_FAILED,
    v1.PipelineState.PIPELINE_STATE_CANCELLED,
)
JOB_DONE = (v1.JobState.JOB_STATE_SUCCEEDED, v1.JobState.JOB_STATE_FAILED, v1.JobState.JOB_STATE_CANCELLED)
_PIPELINE_JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,126}")
# Rule: a model's id has at most 63 lower-case letters, digits, _ and -, and does not begin with a digit or -
# (model_service.proto: model_id)
_MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
# Rule: an endpoint's id has at most 63 lower-case letters, digits and -, or 9 digits (endpoint_service.proto:
# endpoint_id)
_ENDPOINT_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8}")
# Rule: a deployment's id has 1 to 10 digits (endpoint.proto: DeployedModel.id)
_DEPLOYED_ID = re.compile(r"[0-9]{1,10}")
# The endpoint's own address at which a request has arrived; empty for the service's.
_ARRIVED_AT: contextvars.ContextVar[str] = contextvars.ContextVar("arrived_at", default="")
_OF_AN_ENDPOINT = re.compile(r"(/of/[^/]+)(/.*)")
Predict = Callable[[list[Any], Any], list[Any]]


def _copy(item: Any) -> Any:
    return type(item)(item)


class FakeVertex(GoogleApiServer):
    """A fake Vertex AI; see the module.

    Args:
        execution: Runs pipeline jobs, and custom jobs that have a machine; called in the request that creates them.
        serve: Starts the server of a deployed model.
        clock: The service's time; by default the system's, in UTC.

    Attributes:
        cloud: State of the project's other APIs.
        stock_out: Unavailable machine types, `ct5lp-hightpu-4t` or `us-west1/ct5lp-hightpu-4t`: jobs fail.
        scarce: Machine types for which jobs wait forever.
        served: Number of requests that each deployment of an endpoint has answered.
        without_quota: Machine types without quota: their custom jobs are refused at creation.
        traffic_seconds: Time until a changed traffic split takes effect for predictions.
        not_acted_as: Service accounts that the caller may not act as; `DEFAULT_ACCOUNT` if a request names none.
        unreadable: Locations on gs:// and images that the service's own account may not read.
        local_images: Images that count as in a registry, such as the image of a compilation without a setting.
        unusable_keys: Encryption keys that the service's own account may not use.
        queued_seconds: Time that a pipeline job is queued.
        cancelling_seconds: Time from the cancellation of a job to its end.
        operation_seconds: Duration of an operation; until its end, only its name is taken.
    """

    def __init__(
        self,
        execution: Execution | None = None,
        serve: Callable[[v1.Model], Predict | str] | None = None,
        clock: Callable[[], datetime.datetime] | None = None,
    ) -> None:
        super().__init__(*(f"google.cloud.aiplatform_v1.{service}" for service in _SERVICES))
        self.execution = execution or RunOnCpu()
        self.serve = serve
        self.cloud = GoogleCloud()
        self.clock = clock or (lambda: datetime.datetime.now(datetime.UTC))
        self.pipeline_jobs: dict[str, v1.PipelineJob] = {}
        self.custom_jobs: dict[str, v1.CustomJob] = {}
        self.schedules: dict[str, v1.Schedule] = {}
        self.models: dict[str, list[v1.Model]] = {}
        self.evaluations: dict[str, v1.ModelEvaluation] = {}
        self.endpoints: dict[str, v1.Endpoint] = {}
        self.contexts: dict[str, v1.Context] = {}
        self.operations: dict[str, operations_pb2.Operation] = {}
        self.tensorboards: dict[str, v1.Tensorboard] = {}
        self.stock_out: set[str] = set()
        self.scarce: set[str] = set()
        self.without_quota: set[str] = set()
        self.traffic_seconds = 0.0
        self.not_acted_as: set[str] = set()
        self.unreadable: set[str] = set()
        self.local_images = {LOCAL_IMAGE}
        self.unusable_keys: set[str] = set()
        self._deleted: dict[str, datetime.datetime] = {}
        self.queued_seconds = 0.0
        # With the system's time a test really waits; with a fake clock it must call `sleep`.
        self.cancelling_seconds = 30.0 if clock else 0.2
        self.operation_seconds = 0.0
        self._under_way: list[tuple[datetime.datetime, Callable[[], Any]]] = []
        self._changing: dict[str, str] = {}
        self._reserved: set[str] = set()
        self._predictors: dict[tuple[str, str], Predict] = {}
        self.served: dict[str, dict[str, int]] = {}
        self._routed: dict[str, list[tuple[datetime.datetime, dict[str, int]]]] = {}
        self._version_numbers: dict[str, int] = {}
        self._numbers = itertools.count(1_000_000_000)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables that make the command line sign in to this fake, like a CI system.

        A token of the system's own, in a file below `folder`, is exchanged for tokens of the service.
        """
        (folder / "subject").write_text("a CI system's own token")
        credentials = {
            "type": "external_account",
            "audience": "ci",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.url}/token",
            "credential_source": {"file": str(folder / "subject")},
        }
        (folder / "credentials.json").write_text(json.dumps(credentials))
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "credentials.json"),
            "NO_GCE_CHECK": "true",
            "TPU_PIPELINES_PROJECT": "my-project",
            "TPU_PIPELINES_REGION": "us-central1",
            "TPU_PIPELINES_BUCKET": "gs://my-bucket/pipelines",
            "TPU_PIPELINES_VERTEX_ENDPOINT": self.url,
            "TPU_PIPELINES_GOOGLE_ENDPOINT": f"{self.url}/{{host}}",
            "TPU_PIPELINES_IMAGE": f"europe-docker.pkg.dev/my-project/images/steps@sha256:{'0' * 64}",
        }

    def __exit__(self, *error: object) -> None:
        with self.lock:
            for job in (*self.pipeline_jobs, *self.custom_jobs):
                self.execution.stop(job)
        super().__exit__(*error)

    def answer(self, verb: str, target: str, body: bytes, token: str) -> tuple[int, dict[str, Any], str]:
        """Return a response like the base class, also for the other APIs and for operations."""
        if asked := self.cloud.answer(verb, target, body):
            return *asked, ""
        with self.lock:
            self._catch_up()
        of_an_endpoint = _OF_AN_ENDPOINT.fullmatch(target)
        address, target = of_an_endpoint.groups() if of_an_endpoint else ("", target)
        _ARRIVED_AT.set(address and f"{self.url}{address}")
        target = re.sub(r"^/(v1|ui)/projects/[^/]+", f"/v1/projects/{PROJECT_NUMBER}", target)
        path = target.partition("?")[0].removeprefix("/v1/")
        if verb == "GET" and "/operations/" in path:
            with self.lock:
                if path not in self.operations:
                    message = f"Operation not found: {path}"
                    return 404, {"error": {"code": 404, "message": message, "status": "NOT_FOUND"}}, ""
                return 200, json_format.MessageToDict(self._operation(path)), ""
        return super().answer(verb, target, body, token)

    def _new_name(self, parent: str, kind: str, id_: str = "") -> str:
        return f"{canonical(parent)}/{kind}/{id_ or next(self._numbers)}"

    def _operate(self, parent: str, work: Callable[[], Any], metadata: Any = None) -> operations_pb2.Operation:
        """Return a long-running operation: `work` returns its response, or raises a `ServiceError`."""
        name = self._new_name("/".join(canonical(parent).split("/")[:4]), "operations")
        operation = operations_pb2.Operation(name=name)
        operation.metadata.Pack(_pb(metadata)) if metadata is not None else None
        self.operations[name] = operation
        if "/endpoints/" in parent:
            self._changing[canonical(parent)] = name

        def end() -> None:
            try:
                operation.response.Pack(_pb(work()))
            except ServiceError as error:
                operation.error.code, operation.error.message = error.code, str(error)
            operation.done = True

        self._later(self.operation_seconds, end)
        return self._operation(name)

    def _later(self, seconds: float, work: Callable[[], Any]) -> None:
        """Schedule work after a delay; without a delay, do it at once."""
        self._under_way.append((self.clock() + datetime.timedelta(seconds=seconds), work))
        self._catch_up()

    def _catch_up(self) -> None:
        """Do the work that is due."""
        now = self.clock()
        ready = [work for time, work in self._under_way if time <= now]
        self._under_way = [one for one in self._under_way if one[0] > now]
        for work in ready:
            work()

    def _check_unchanging(self, endpoint: str) -> None:
        # Rule: while an operation changes an endpoint, other operations are refused (not documented;
        # users of the service report FAILED_PRECONDITION in these words)
        name = self._changing.get(endpoint, "")
        if name and not self.operations[name].done:
            raise ServiceError(
                "FAILED_PRECONDITION",
                f'There are other operations running on the resource "{endpoint}". Operation(s): {name}.',
            )

    def _check_account(self, account: str) -> None:
        # Rule: the user who starts a workload must be allowed to act as its service account; else INVALID_ARGUMENT in
        # these words (pipeline_job.proto: service_account; googleapis/python-aiplatform/issues/1073)
        account = account or DEFAULT_ACCOUNT
        if account in self.not_acted_as:
            rules.refuse(f"You do not have permission to act as service_account: {account}. (or it may not exist).")

    def _check_readable(self, place: str, reader: str, what: str) -> None:
        # Rule: the service's own account must be able to read the files of a resource; else FAILED_PRECONDITION in
        # these words (GoogleCloudPlatform/vertex-ai-samples/issues/3710; statmike/vertex-ai-mlops/issues/60)
        if rules.below(self.unreadable, place):
            raise ServiceError(
                "FAILED_PRECONDITION",
                f"Service account `{reader}` does not have `[storage.objects.get]` IAM permission(s) to the {what} "
                f'"{place}". Please either copy the files to the Google Cloud Storage bucket owned by your project, or '
                "grant the required IAM permission(s) to the service account.",
            )

    def _check_key(self, key: str) -> None:
        # Rule: the service's own account must be able to use a key (…/general/cmek; the wording of the
        # refusal is not documented)
        if key in self.unusable_keys:
            raise ServiceError("PERMISSION_DENIED", f"The service account {SERVICE_AGENT} may not use the key {key}.")

    def _reserve(self, name: str) -> None:
        """Reserve the name of a resource that an operation will create."""
        if name in self._reserved:
            raise ServiceError("ALREADY_EXISTS", f"{name} already exists: an operation under way creates it.")
        self._reserved.add(name)

    def _operation(self, name: str) -> operations_pb2.Operation:
        operation = self.operations[name]
        if operation.done:
            return operation
        return operations_pb2.Operation(
            name=name, metadata=any_pb2.Any.FromString(operation.metadata.SerializeToString())
        )

    # Pipeline jobs

    def create_pipeline_job(self, request: v1.CreatePipelineJobRequest) -> v1.PipelineJob:
        job = _copy(request.pipeline_job)
        job_id = request.pipeline_job_id or f"job-{next(self._numbers)}"
        # Rule: a job's id has fewer than 128 lower-case letters, digits and - (pipeline_service.proto: pipeline_job_id)
        if not _PIPELINE_JOB_ID.fullmatch(job_id):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid pipeline job id: {job_id!r}.")
        name = self._new_name(request.parent, "pipelineJobs", job_id)
        # Rule: a job's id is unique; creating a second job with it returns 409 ALREADY_EXISTS (pipeline_service.proto:
        # pipeline_job_id)
        if name in self.pipeline_jobs:
            raise ServiceError("ALREADY_EXISTS", f"Pipeline job {name} already exists.")
        if not job.pipeline_spec or "root" not in job.pipeline_spec:
            raise ServiceError("INVALID_ARGUMENT", "pipeline_job.pipeline_spec is required.")
        # Rule: a job's output directory is on Cloud Storage (pipeline_job.proto: gcs_output_directory)
        if not job.runtime_config.gcs_output_directory.startswith("gs://"):
            raise ServiceError("INVALID_ARGUMENT", "runtime_config.gcs_output_directory must be a gs:// path.")
        plain = json_format.MessageToDict(v1.PipelineJob.pb(job))
        rules.check_parameters(plain["pipelineSpec"], plain["runtimeConfig"].get("parameterValues", {}))
        rules.check_artifacts(plain["pipelineSpec"])
        rules.check_display_name(job.display_name, "pipeline_job")
        rules.check_labels(job.labels)
        rules.check_network(job.network)
        location = request.parent.split("/")[3]
        rules.check_attachment(job.psc_interface_config.network_attachment, location, job.network)
        rules.check_key(job.encryption_spec.kms_key_name, location)
        self._check_key(job.encryption_spec.kms_key_name)
        self._check_account(job.service_account)
        account = job.service_account or DEFAULT_ACCOUNT
        self._check_readable(job.runtime_config.gcs_output_directory, account, "bucket")
        # Rule: the service fills in the account that a job runs as, and adds a label (pipeline_job.proto:
        # service_account, labels)
        job.service_account = account
        job.labels["vertex-ai-pipelines-run-billing-id"] = str(next(self._numbers))
        # Rule: a job is queued before it is prepared (pipeline_state.proto)
        job.name, job.state = name, v1.PipelineState.PIPELINE_STATE_QUEUED
        job.create_time = job.update_time = self.clock()
        self.pipeline_jobs[name] = job
        created = _copy(job)
        self._later(self.queued_seconds, lambda: self._start_pipeline_job(name))
        return created

    def _start_pipeline_job(self, name: str) -> None:
        job = self.pipeline_jobs.get(name)
        if job is not None and job.state == v1.PipelineState.PIPELINE_STATE_QUEUED:
            job.state = v1.PipelineState.PIPELINE_STATE_PENDING
            # Rule: the context of a run exists only after the run has started (python-aiplatform
            # google/cloud/aiplatform/pipeline_jobs.py: "PipelineJob context is created asynchronously")
            context = v1.Context(
                name=f"{'/'.join(name.split('/')[:4])}/metadataStores/default/contexts/{job_id_of(name)}"
            )
            context.schema_title = "system.PipelineRun"
            self.contexts[context.name] = job.job_detail.pipeline_run_context = context
            self.execution.start_pipeline_job(self, name)

    # Metadata

    def create_context(self, request: v1.CreateContextRequest) -> v1.Context:
        context = _copy(request.context)
        # Rule: a context's id has 4 to 128 lower-case letters, digits and - (metadata_service.proto: context_id)
        if not re.fullmatch(r"[a-z0-9-]{4,128}", request.context_id):
            rules.refuse(f"Invalid context id: {request.context_id!r}.")
        rules.check_display_name(context.display_name, "context")
        context.name = self._new_name(request.parent, "contexts", request.context_id)
        if context.name in self.contexts:
            raise ServiceError("ALREADY_EXISTS", f"Context {context.name} already exists.")
        self.contexts[context.name] = context
        return context

    def add_context_children(self, request: v1.AddContextChildrenRequest) -> v1.AddContextChildrenResponse:
        # Rule: a child that is already in the context is skipped (metadata_service.proto: AddContextChildren)
        parent = _find(self.contexts, request.context)
        for name in request.child_contexts:
            child = _find(self.contexts, name)
            if parent.name not in child.parent_contexts:
                child.parent_contexts.append(parent.name)
        return v1.AddContextChildrenResponse()

    def get_pipeline_job(self, request: v1.GetPipelineJobRequest) -> v1.PipelineJob:
        return _find(self.pipeline_jobs, request.name)

    def list_pipeline_jobs(self, request: v1.ListPipelineJobsRequest) -> v1.ListPipelineJobsResponse:
        jobs, token = select(self.pipeline_jobs.values(), request)
        jobs = [_copy(job) for job in jobs]
        # Rule: a job's details are "not available in the list view" (pipeline_job.proto: job_detail)
        for job in jobs:
            job.job_detail = None
        return v1.ListPipelineJobsResponse(pipeline_jobs=jobs, next_page_token=token)

    def cancel_pipeline_job(self, request: v1.CancelPipelineJobRequest) -> empty_pb2.Empty:
        job = _find(self.pipeline_jobs, request.name)
        if job.state in PIPELINE_DONE:
            raise ServiceError("FAILED_PRECONDITION", f"Pipeline job {job.name} is in the state {job.state.name}.")
        # Rule: cancelling is asynchronous: a job is cancelled some time later, and may still succeed
        # (pipeline_service.proto: CancelPipelineJob; pipeline_state.proto)
        job.state = v1.PipelineState.PIPELINE_STATE_CANCELLING
        for task in job.job_detail.task_details:
            if not task.end_time:
                task.state = v1.PipelineTaskDetail.State.CANCEL_PENDING
        self._later(self.cancelling_seconds, lambda: self._end_cancelled(job))
        return empty_pb2.Empty()

    def _end_cancelled(self, job: v1.PipelineJob) -> None:
        if job.state in PIPELINE_DONE:
            return
        for task in job.job_detail.task_details:
            custom_job = self.custom_jobs.get(task.executor_detail.custom_job_detail.job)
            if custom_job and custom_job.state not in JOB_DONE:
                self._end_cancelled_training(custom_job.name)
            if not task.end_time:
                task.state, task.end_time = v1.PipelineTaskDetail.State.CANCELLED, self.clock()
        # Rule: a cancelled job has an error with code 1 (pipeline_service.proto: CancelPipelineJob; job_service.proto:
        # CancelCustomJob)
        self.end_pipeline_job(job.name, v1.PipelineState.PIPELINE_STATE_CANCELLED, 1, "The job was cancelled.")
        self.execution.stop(job.name)

    def delete_pipeline_job(self, request: v1.DeletePipelineJobRequest) -> operations_pb2.Operation:
        job = _find(self.pipeline_jobs, request.name)
        if job.state not in PIPELINE_DONE:
            raise ServiceError("FAILED_PRECONDITION", f"Pipeline job {job.name} is in the state {job.state.name}.")
        del self.pipeline_jobs[job.name]
        return self._operate(job.name, empty_pb2.Empty)

    def end_pipeline_job(self, name: str, state: v1.PipelineState, code: int = 0, message: str = "") -> None:
        """End a pipeline job, unless it has ended."""
        with self.lock:
            job = self.pipeline_jobs.get(name)
            if job is None or job.state in PIPELINE_DONE:
                return
            job.state, job.end_time, job.update_time = state, self.clock(), self.clock()
            job.error.code, job.error.message = code, message

    # Custom jobs

    def create_custom_job(self, request: v1.CreateCustomJobRequest) -> v1.CustomJob:
        job = _copy(request.custom_job)
        location = request.parent.split("/")[3]
        rules.check_custom_job(job, location, self.local_images)
        self._check_account(job.job_spec.service_account or DEFAULT_ACCOUNT)
        self._check_key(job.encryption_spec.kms_key_name)
        # Rule: buckets of training jobs are regional; the behaviour for other buckets is not documented
        # (…/general/locations: Cloud Storage bucket requirements; …/training/cloud-storage-file-system)
        place = job.job_spec.base_output_directory.output_uri_prefix.removeprefix("gs://").partition("/")[0]
        if place in self.cloud.buckets and self.cloud.buckets[place].location_type != "region":
            rules.refuse(f"The bucket {place} is not regional.")
        pool = job.job_spec.worker_pool_specs[0]
        # Rule: TPU7x requires Python 3.12 or later; the behaviour for older versions is not documented
        # (…/training/configure-compute: TPU 7x)
        python = [int(number) for number in self.cloud.python.split(".")[:2] if number]
        if rules.generation_of(pool.machine_spec) == "7x" and python and python < [3, 12]:
            rules.refuse(f"TPU7x requires Python 3.12. Received: {self.cloud.python}.")
        names = {pool.machine_spec.machine_type, f"{location}/{pool.machine_spec.machine_type}"}
        # Rule: a job without quota is refused at creation, with 429 in these words (google-deepmind/xmanager/issues/29)
        if names & self.without_quota:
            metric = rules.quota_metric(pool.machine_spec)
            raise ServiceError("RESOURCE_EXHAUSTED", f"The following quota metrics exceed quota limits: {metric}")
        # Rule: a custom job is stopped after 7 days unless it sets another time (custom_job.proto: Scheduling.timeout)
        job.job_spec.scheduling.timeout = job.job_spec.scheduling.timeout or datetime.timedelta(days=7)
        # Rule: a machine has 100 GB of disk unless it sets another size (machine_resources.proto: boot_disk_size_gb)
        pool.disk_spec.boot_disk_size_gb = pool.disk_spec.boot_disk_size_gb or 100
        job.name = self._new_name(request.parent, "customJobs")
        job.state, job.create_time = v1.JobState.JOB_STATE_PENDING, self.clock()
        self.custom_jobs[job.name] = job
        created = _copy(job)
        if rules.below(self.unreadable, pool.container_spec.image_uri):
            # Rule: the service's own account pulls images, not the job's account (…/general/custom-service-account;
            # GoogleCloudPlatform/vertex-ai-samples/issues/2176; the wording is not documented)
            message = f"{SERVICE_AGENT} does not have permission to pull {pool.container_spec.image_uri}."
            self.end_custom_job(job.name, v1.JobState.JOB_STATE_FAILED, 7, message)
        elif names & self.stock_out:
            self.end_custom_job(
                job.name,
                v1.JobState.JOB_STATE_FAILED,
                8,  # RESOURCE_EXHAUSTED
                f"Resources are insufficient in region: {location}. Please try a different region or use a different "
                "accelerator.",
            )
        elif not names & self.scarce:
            job.state, job.start_time = v1.JobState.JOB_STATE_RUNNING, self.clock()
            self.execution.start_custom_job(self, job.name)
        return created

    def get_custom_job(self, request: v1.GetCustomJobRequest) -> v1.CustomJob:
        return _find(self.custom_jobs, request.name)

    def list_custom_jobs(self, request: v1.ListCustomJobsRequest) -> v1.ListCustomJobsResponse:
        jobs, token = select(self.custom_jobs.values(), request)
        return v1.ListCustomJobsResponse(custom_jobs=jobs, next_page_token=token)

    def cancel_custom_job(self, request: v1.CancelCustomJobRequest) -> empty_pb2.Empty:
        job = _find(self.custom_jobs, request.name)
        if job.state not in JOB_DONE:
            job.state = v1.JobState.JOB_STATE_CANCELLING
            self._later(self.cancelling_seconds, lambda: self._end_cancelled_training(job.name))
        return empty_pb2.Empty()

    def _end_cancelled_training(self, name: str) -> None:
        self.end_custom_job(name, v1.JobState.JOB_STATE_CANCELLED, 1, "The job was cancelled.")
        self.execution.stop(name)

    def end_custom_job(self, name: str, state: v1.JobState, code: int = 0, message: str = "") -> None:
        """End a custom job, unless it has ended."""
        with self.lock:
            job = self.custom_jobs[name]
            if job.state not in JOB_DONE:
                job.state, job.end_time = state, self.clock()
                job.error.code, job.error.message = code, message

    # Schedules

    def create_schedule(self, request: v1.CreateScheduleRequest) -> v1.Schedule:
        schedule = _copy(request.schedule)
        rules.check_schedule(schedule)
        schedule.name = self._new_name(request.parent, "schedules")
        schedule.state = v1.Schedule.State.ACTIVE
        schedule.create_time = schedule.update_time = schedule.start_time = self.clock()
        self.schedules[schedule.name] = schedule
        return schedule

    def get_schedule(self, request: v1.GetScheduleRequest) -> v1.Schedule:
        return _find(self.schedules, request.name)

    def list_schedules(self, request: v1.ListSchedulesRequest) -> v1.ListSchedulesResponse:
        schedules, token = select(self.schedules.values(), request)
        return v1.ListSchedulesResponse(schedules=schedules, next_page_token=token)

    def update_schedule(self, request: v1.UpdateScheduleRequest) -> v1.Schedule:
        schedule = _copy(_find(self.schedules, request.schedule.name))
        _merge(schedule, request.schedule, request.update_mask)
        rules.check_schedule(schedule)
        schedule.update_time = self.clock()
        self.schedules[schedule.name] = schedule
        return schedule

    def pause_schedule(self, request: v1.PauseScheduleRequest) -> empty_pb2.Empty:
        schedule = _find(self.schedules, request.name)
        schedule.state, schedule.last_pause_time = v1.Schedule.State.PAUSED, self.clock()
        return empty_pb2.Empty()

    def resume_schedule(self, request: v1.ResumeScheduleRequest) -> empty_pb2.Empty:
        schedule = _find(self.schedules, request.name)
        schedule.state, schedule.catch_up = v1.Schedule.State.ACTIVE, request.catch_up
        schedule.last_resume_time = self.clock()
        return empty_pb2.Empty()

    def delete_schedule(self, request: v1.DeleteScheduleRequest) -> operations_pb2.Operation:
        del self.schedules[_find(self.schedules, request.name).name]
        return self._operate(request.name, empty_pb2.Empty)

    def fire(self, name: str) -> v1.PipelineJob | None:
        """Trigger a schedule; return the job that it creates, if it is active and below its limit."""
        # Rule: max_concurrent_run_count limits requests that start runs, which are answered at once;
        # max_concurrent_active_run_count limits active runs, and further runs are skipped (schedule.proto)
        with self.lock:
            self._catch_up()
            schedule = self.schedules[name]
            most = schedule.max_concurrent_active_run_count
            active = [job for job in self.pipeline_jobs.values() if job.schedule_name == name]
            active = [job for job in active if job.state not in PIPELINE_DONE]
            if schedule.state != v1.Schedule.State.ACTIVE or (most and len(active) >= most):
                return None
            schedule.started_run_count += 1
            job = self.create_pipeline_job(_copy(schedule.create_pipeline_job_request))
            self.pipeline_jobs[job.name].schedule_name = name
            return job

    # Models

    def upload_model(self, request: v1.UploadModelRequest) -> operations_pb2.Operation:
        model = _copy(request.model)
        rules.check_display_name(model.display_name, "model")
        rules.check_labels(model.labels)
        rules.check_aliases(model.version_aliases)
        rules.check_image(model.container_spec.image_uri, "model.container_spec.image_uri")
        rules.check_variables(model.container_spec.env)
        rules.check_key(model.encryption_spec.kms_key_name, request.parent.split("/")[3])
        self._check_key(model.encryption_spec.kms_key_name)
        # Rule: the service's own account ingests a model's image "upon UploadModel" (model.proto:
        # ModelContainerSpec.image_uri)
        self._check_readable(model.container_spec.image_uri, SERVICE_AGENT, "image")
        self._check_readable(model.artifact_uri, SERVICE_AGENT, "directory")
        if not model.artifact_uri.startswith("gs://"):
            raise ServiceError("INVALID_ARGUMENT", "model.artifact_uri must be a gs:// path.")
        if request.model_id and not _MODEL_ID.fullmatch(request.model_id):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid model id: {request.model_id!r}.")
        if request.parent_model:
            model.name = canonical(request.parent_model)
            _find(self.models, model.name)
        else:
            model.name = self._new_name(request.parent, "models", request.model_id)
            if model.name in self.models:
                raise ServiceError("ALREADY_EXISTS", f"Model {model.name} already exists.")
            self._reserve(model.name)

        def upload() -> v1.UploadModelResponse:
            self._reserved.discard(model.name)
            versions = self.models.setdefault(model.name, [])
            self._version_numbers[model.name] = self._version_numbers.get(model.name, 0) + 1
            model.version_id = str(self._version_numbers[model.name])
            model.create_time = model.update_time = model.version_create_time = model.version_update_time = self.clock()
            model.supported_deployment_resources_types = [v1.Model.DeploymentResourcesType.DEDICATED_RESOURCES]
            # Rule: the first version of a model gets the alias default, and one version always has it (model.proto:
            # version_aliases)
            aliases = [*model.version_aliases, *(() if versions else ("default",))]
            model.version_aliases = []
            versions.append(model)
            _move_aliases(versions, model, aliases)
            return v1.UploadModelResponse(model=model.name, model_version_id=model.version_id)

        return self._operate(model.name, upload, v1.UploadModelOperationMetadata())

    def get_model(self, request: v1.GetModelRequest) -> v1.Model:
        return self.find_model(request.name)

    def list_models(self, request: v1.ListModelsRequest) -> v1.ListModelsResponse:
        models, token = select([self.find_model(name) for name in self.models], request)
        return v1.ListModelsResponse(models=models, next_page_token=token)

    def list_model_versions(self, request: v1.ListModelVersionsRequest) -> v1.ListModelVersionsResponse:
        versions, token = select(_find(self.models, request.name.partition("@")[0]), request)
        return v1.ListModelVersionsResponse(models=versions, next_page_token=token)

    def merge_version_aliases(self, request: v1.MergeVersionAliasesRequest) -> v1.Model:
        if not re.search(r"@\d+$", request.name):
            raise ServiceError("INVALID_ARGUMENT", f"The name must include a version id: {request.name!r}.")
        model = self.find_model(request.name)
        rules.check_aliases([alias.removeprefix("-") for alias in request.version_aliases])
        if "-default" in request.version_aliases:
            raise ServiceError("INVALID_ARGUMENT", "The alias 'default' can be moved, not removed.")
        _move_aliases(self.models[model.name], model, request.version_aliases)
        model.version_update_time = self.clock()
        return model

    def update_model(self, request: v1.UpdateModelRequest) -> v1.Model:
        model = self.find_model(request.model.name)
        _merge(model, request.model, request.update_mask)
        model.update_time = self.clock()
        return model

    def delete_model(self, request: v1.DeleteModelRequest) -> operations_pb2.Operation:
        name = canonical(request.name)
        _find(self.models, name)
        self._check_not_deployed(name)
        del self.models[name]
        return self._operate(name, empty_pb2.Empty)

    def delete_model_version(self, request: v1.DeleteModelVersionRequest) -> operations_pb2.Operation:
        model = self.find_model(request.name)
        if "default" in model.version_aliases:
            raise ServiceError("FAILED_PRECONDITION", "The default version cannot be deleted.")
        self._check_not_deployed(f"{model.name}@{model.version_id}")
        self.models[model.name].remove(model)
        return self._operate(model.name, empty_pb2.Empty)

    def import_model_evaluation(self, request: v1.ImportModelEvaluationRequest) -> v1.ModelEvaluation:
        model = self.find_model(request.parent)
        evaluation = _copy(request.model_evaluation)
        evaluation.name = f"{model.name}@{model.version_id}/evaluations/{next(self._numbers)}"
        evaluation.create_time = self.clock()
        self.evaluations[evaluation.name] = evaluation
        return evaluation

    def list_model_evaluations(self, request: v1.ListModelEvaluationsRequest) -> v1.ListModelEvaluationsResponse:
        model = self.find_model(request.parent)
        request.parent = f"{model.name}@{model.version_id}"
        evaluations, token = select(self.evaluations.values(), request)
        return v1.ListModelEvaluationsResponse(model_evaluations=evaluations, next_page_token=token)

    def find_model(self, name: str) -> v1.Model:
        """Return a version of a model: `…/models/ID@VERSION`, `@ALIAS`, or the default version."""
        name, _, version = canonical(name).partition("@")
        for model in _find(self.models, name):
            if (version or "default") in (model.version_id, *model.version_aliases):
                return model
        raise ServiceError("NOT_FOUND", f"Model {name} has no version {version!r}.")

    def _check_not_deployed(self, name: str) -> None:
        for endpoint in self.endpoints.values():
            if any(name in (deployed.model, deployed.model.partition("@")[0]) for deployed in endpoint.deployed_models):
                raise ServiceError("FAILED_PRECONDITION", f"Model {name} is deployed to {endpoint.name}.")

    # TensorBoards

    def get_tensorboard(self, request: v1.GetTensorboardRequest) -> v1.Tensorboard:
        return _find(self.tensorboards, request.name)

    # Endpoints

    def create_endpoint(self, request: v1.CreateEndpointRequest) -> operations_pb2.Operation:
        endpoint = _copy(request.endpoint)
        rules.check_endpoint(endpoint, request.parent.split("/")[3])
        self._check_key(endpoint.encryption_spec.kms_key_name)
        endpoint.name = self._new_name(request.parent, "endpoints", request.endpoint_id)
        if endpoint.name in self.endpoints:
            raise ServiceError("ALREADY_EXISTS", f"Endpoint {endpoint.name} already exists.")
        if request.endpoint_id and not _ENDPOINT_ID.fullmatch(request.endpoint_id):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid endpoint id: {request.endpoint_id!r}.")
        # Rule: the name of a deleted endpoint cannot be reused for up to 7 days; documented for private endpoints, and
        # assumed for all (…/predictions/private-service-connect: Limitations)
        if endpoint.name in self._deleted and self.clock() < self._deleted[endpoint.name] + datetime.timedelta(days=7):
            raise ServiceError("ALREADY_EXISTS", f"Endpoint {endpoint.name} already exists: it was deleted lately.")
        # Rule: a dedicated endpoint has its own address (endpoint.proto: dedicated_endpoint_dns)
        if endpoint.dedicated_endpoint_enabled:
            endpoint.dedicated_endpoint_dns = f"{self.url}/of/{job_id_of(endpoint.name)}"
        self._reserve(endpoint.name)

        def create() -> v1.Endpoint:
            self._reserved.discard(endpoint.name)
            endpoint.create_time = self.clock()
            self._keep(endpoint)
            return endpoint

        return self._operate(endpoint.name, create, v1.CreateEndpointOperationMetadata())

    def _keep(self, endpoint: v1.Endpoint) -> None:
        """Store an endpoint with a new etag, so that earlier reads are outdated."""
        endpoint.update_time, endpoint.etag = self.clock(), f"etag-{next(self._numbers)}"
        self.endpoints[endpoint.name] = endpoint
        effective = self.clock() + datetime.timedelta(seconds=self.traffic_seconds)
        self._routed.setdefault(endpoint.name, []).append((effective, dict(endpoint.traffic_split)))

    def get_endpoint(self, request: v1.GetEndpointRequest) -> v1.Endpoint:
        return _find(self.endpoints, request.name)

    def list_endpoints(self, request: v1.ListEndpointsRequest) -> v1.ListEndpointsResponse:
        endpoints, token = select(self.endpoints.values(), request)
        return v1.ListEndpointsResponse(endpoints=endpoints, next_page_token=token)

    def update_endpoint(self, request: v1.UpdateEndpointRequest) -> v1.Endpoint:
        endpoint = _copy(_find(self.endpoints, request.endpoint.name))
        self._check_unchanging(endpoint.name)
        # Rule: an update with an etag fails with 409 if the resource has changed since it was read (endpoint.proto:
        # etag)
        if request.endpoint.etag not in ("", endpoint.etag):
            raise ServiceError("ABORTED", f"Endpoint {endpoint.name} has changed: its etag is {endpoint.etag}.")
        _merge(endpoint, request.endpoint, request.update_mask)
        rules.check_traffic(endpoint)
        self._keep(endpoint)
        return endpoint

    def delete_endpoint(self, request: v1.DeleteEndpointRequest) -> operations_pb2.Operation:
        endpoint = _find(self.endpoints, request.name)
        self._check_unchanging(endpoint.name)
        if endpoint.deployed_models:
            raise ServiceError("FAILED_PRECONDITION", f"Endpoint {endpoint.name} has deployed models.")
        del self.endpoints[endpoint.name], self._routed[endpoint.name]
        self._deleted[endpoint.name] = self.clock()
        self.served.pop(endpoint.name, None)
        return self._operate(endpoint.name, empty_pb2.Empty)

    def deploy_model(self, request: v1.DeployModelRequest) -> operations_pb2.Operation:
        name = _find(self.endpoints, request.endpoint).name
        self._check_unchanging(name)
        model = self.find_model(request.deployed_model.model)
        deployed = _copy(request.deployed_model)
        if deployed.id and not _DEPLOYED_ID.fullmatch(deployed.id):
            raise ServiceError("INVALID_ARGUMENT", f"Invalid deployed model id: {deployed.id!r}.")
        rules.check_display_name(deployed.display_name, "deployed_model")
        rules.check_replicas(deployed.dedicated_resources)
        # Rule: the user who deploys must be allowed to act as the container's service account, if one is set
        # (endpoint.proto: DeployedModel.service_account)
        if deployed.service_account:
            self._check_account(deployed.service_account)
        # Rule: the default name of a deployment is the model's, and its default maximum of replicas is the minimum
        # (endpoint.proto: DeployedModel.display_name; machine_resources.proto: max_replica_count)
        deployed.display_name = deployed.display_name or model.display_name
        resources = deployed.dedicated_resources
        resources.max_replica_count = resources.max_replica_count or resources.min_replica_count
        deployed.id = deployed.id or str(next(self._numbers))
        deployed.model, deployed.model_version_id = f"{model.name}@{model.version_id}", model.version_id
        deployed.create_time = self.clock()

        def changed() -> v1.Endpoint:
            endpoint = _copy(_find(self.endpoints, name))
            if any(other.id == deployed.id for other in endpoint.deployed_models):
                raise ServiceError("ALREADY_EXISTS", f"Deployed model {deployed.id} already exists.")
            endpoint.deployed_models.append(deployed)
            # Rule: "0" is the model that a request deploys; without a split, the traffic does not change
            # (endpoint_service.proto: DeployModelRequest.traffic_split)
            if request.traffic_split:
                split = {deployed.id if key == "0" else key: value for key, value in request.traffic_split.items()}
                endpoint.traffic_split = split
            rules.check_traffic(endpoint)
            return endpoint

        def deploy() -> v1.DeployModelResponse:
            self._reserved.discard(f"{name}/{deployed.id}")
            endpoint = changed()
            try:
                self._predictors[name, deployed.id] = self._start_serving(model)
            except Exception as error:  # Whatever the container died of.
                raise ServiceError("FAILED_PRECONDITION", f"Model server never became ready: {error}") from error
            self._keep(endpoint)
            return v1.DeployModelResponse(deployed_model=deployed)

        changed()
        self._reserve(f"{name}/{deployed.id}")
        return self._operate(name, deploy, v1.DeployModelOperationMetadata())

    def _start_serving(self, model: v1.Model) -> Predict:
        if self.serve is None:
            raise RuntimeError("this fake was given nothing that serves: FakeVertex(serve=…)")
        served = self.serve(model)
        if not isinstance(served, str):
            return served

        def post(instances: list[Any], parameters: Any) -> list[Any]:
            body = json.dumps({"instances": instances, "parameters": parameters}).encode()
            request = urllib.request.Request(served, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["predictions"]

        return post

    def undeploy_model(self, request: v1.UndeployModelRequest) -> operations_pb2.Operation:
        endpoint = _copy(_find(self.endpoints, request.endpoint))
        self._check_unchanging(endpoint.name)
        kept = [deployed for deployed in endpoint.deployed_models if deployed.id != request.deployed_model_id]
        if len(kept) == len(endpoint.deployed_models):
            raise ServiceError("NOT_FOUND", f"Deployed model {request.deployed_model_id} not found.")
        # Rule: a model with traffic can only be undeployed if the request gives its traffic to others
        # (endpoint_service.proto: UndeployModelRequest.traffic_split)
        endpoint.deployed_models = kept
        split = dict(request.traffic_split or endpoint.traffic_split)
        endpoint.traffic_split = {key: value for key, value in split.items() if value} if kept else {}
        rules.check_traffic(endpoint)
        self._keep(endpoint)
        del self._predictors[endpoint.name, request.deployed_model_id]
        return self._operate(endpoint.name, v1.UndeployModelResponse, v1.UndeployModelOperationMetadata())

    def predict(self, request: v1.PredictRequest) -> v1.PredictResponse:
        endpoint = _find(self.endpoints, request.endpoint)
        rules.check_asked_where_it_is(endpoint, _ARRIVED_AT.get())
        rules.check_size(endpoint, request)
        # Whoever is furthest behind its share is next: a split of 90 and 10 is kept over every ten requests.
        splits = [split for effective, split in self._routed[endpoint.name] if effective <= self.clock()]
        there = {deployed.id for deployed in endpoint.deployed_models}
        shares = {key: share for key, share in (splits[-1] if splits else {}).items() if share and key in there}
        # Rule: an endpoint without traffic answers with FAILED_PRECONDITION in these words
        # (GoogleCloudPlatform/explainable_ai_sdk/issues/3)
        if not shares:
            raise ServiceError("FAILED_PRECONDITION", f"Endpoint {endpoint.name} doesn't have traffic_split.")
        served = self.served.setdefault(endpoint.name, {})
        chosen = min(shares, key=lambda key: (served.get(key, 0) + 1) / shares[key])
        served[chosen] = served.get(chosen, 0) + 1
        (deployed,) = (one for one in endpoint.deployed_models if one.id == chosen)
        body = json_format.MessageToDict(v1.PredictRequest.pb(request))
        try:
            predictions = self._predictors[endpoint.name, chosen](body.get("instances", []), body.get("parameters"))
        except urllib.error.HTTPError as error:
            status = "INVALID_ARGUMENT" if error.code < 500 else "INTERNAL"
            raise ServiceError(status, error.read().decode(errors="replace")) from error
        except OSError as error:
            raise ServiceError("UNAVAILABLE", f"The model server does not answer: {error}") from error
        response = v1.PredictResponse(
            deployed_model_id=chosen,
            model=deployed.model.partition("@")[0],
            model_version_id=deployed.model_version_id,
        )
        for prediction in predictions:
            json_format.ParseDict(prediction, v1.PredictResponse.pb(response).predictions.add())
        return response


def job_id_of(name: str) -> str:
    """Return the last part of a job's resource name."""
    return name.rpartition("/")[2]


def canonical(name: str) -> str:
    """Return a resource name with the project's number instead of its id."""
    return re.sub(r"^projects/[^/]+", f"projects/{PROJECT_NUMBER}", name)


def _pb(item: Any) -> Any:
    return type(item).pb(item) if hasattr(type(item), "pb") else item


def _find(items: Mapping[str, Any], name: str) -> Any:
    if canonical(name) not in items:
        raise ServiceError("NOT_FOUND", f"{canonical(name)} is not found.")
    return items[canonical(name)]


def _merge(item: Any, change: Any, mask: field_mask_pb2.FieldMask) -> None:
    """Replace the fields that the mask names by those of `change`, even if they are maps or messages."""
    if not mask.paths:
        raise ServiceError("INVALID_ARGUMENT", "update_mask is required.")
    for path in mask.paths:
        if path not in type(item).meta.fields:
            raise ServiceError("INVALID_ARGUMENT", f"update_mask has an unknown field: {path!r}.")
        _pb(item).ClearField(path)
        setattr(item, path, getattr(change, path))


def _move_aliases(versions: list[v1.Model], model: v1.Model, aliases: Any) -> None:
    """Give the model these aliases, and take them from the other versions; `-alias` takes it from the model."""
    for alias in aliases:
        plain = alias.removeprefix("-")
        for other in versions:
            if plain in other.version_aliases and (other is model or plain == alias):
                other.version_aliases.remove(plain)
        if plain == alias:
            model.version_aliases.append(alias)
