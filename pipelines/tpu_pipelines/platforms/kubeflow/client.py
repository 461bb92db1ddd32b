"""Client of Kubeflow Pipelines: runs and recurring runs."""

import contextlib
import datetime
import functools
import json
import operator
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError, chain_of
from tpu_components.core.base.retries import ExistsError, MissingError, OutageError, message_of
from tpu_components.core.base.states import State, run_state
from tpu_components.core.base.terminal import hide_credentials
from tpu_components.core.base.typed_values import whole_numbers
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import (
    DIGEST,
    FINGERPRINTS,
    TRAINING_TASK,
    Job,
    Schedule,
    Submission,
    comparable,
    fingerprints_in,
    now,
)
from tpu_pipelines.platforms.kubeflow.limits import KUBEFLOW_LIMITS
from tpu_pipelines.platforms.limits import check_texts

# The oldest server that does everything that a compiled pipeline asks for. 2.14 collects artifacts of parallel tasks
# and gives exit tasks the final state, 2.15 has secretAsEnv.optional, 2.16 has securityContext. Older drivers ignore
# what they do not know (kubeflow/pipelines kubernetes_platform/proto/kubernetes_executor_config.proto, backend/src/v2).
MINIMUM_VERSION = (2, 16)
_TIMEOUT_SECONDS = 60
# KFP's name for the pod of every step; the step itself is the node around it. With retries, this node contains the
# attempts, each with a number.
_POD = re.compile(r"executor(\(\d+\))?")
_TO_BE_ENABLED = "tpu_pipelines_to_be_enabled: 'true'\n"  # Marks the replacement of an active schedule.
_OWN_LABELS = "tpu_pipelines_"
# Labels that are read from a description. The other ones are the run's name, or are on its pods.
_READ_LABELS = (DIGEST, *(f"{_OWN_LABELS}{part}" for part in FINGERPRINTS), f"{_OWN_LABELS}machine")
# The mark of a replaced schedule is added to its description later.
_DESCRIPTION_CHARACTERS = KUBEFLOW_LIMITS["description"].most - len(_TO_BE_ENABLED)
# KFP names a schedule's object after the schedule, without other characters than these: kubeflow/pipelines
# backend/src/apiserver/template/template.go, toSWFCRDResourceGeneratedName.
_NOT_IN_OBJECT_NAMES = re.compile(r"[^a-z0-9-]+")
# MySQL's error for a text that is longer than its column. KFP answers it with 500, but a repetition cannot succeed.
_TOO_LONG = re.compile(r"Error 1406\b|Data too long for column")


class KubeflowClient:
    """Client of Kubeflow Pipelines for runs and schedules.

    The server assigns run IDs and allows equal names, so this client uses the ID of a job as the name of its run. Two
    concurrent submissions may both start a run. In that case, the older run counts, and the next request deletes the
    newer run.

    A run is in the experiment that has the name of its configuration. The run's description contains the labels that
    this client reads later, and as many of the labels in the settings as the length limit allows. The pods have all
    labels. The server does not report why a pod waits. A missing TPU looks like a slow image pull, so
    `max_wait_seconds` must be longer than the pull. `Submission.lacks_machine` is always False.

    Args:
        settings: Settings of the platform, with `kfp_host`. Runs write to `bucket` or, if it is empty, to the server's
            default.
        now: Function that returns the time, in UTC.

    Raises:
        InputError: If settings are missing. The message lists all of them.
    """

    def __init__(self, settings: Settings, now: Callable[[], datetime.datetime] = now) -> None:
        settings.require("kfp_host")
        self._settings = settings
        self._now = now

    @property
    def _address(self) -> str:
        """Address of the server for messages, without secrets."""
        return hide_credentials(self._settings.kfp_host)

    @functools.cached_property
    def _client(self) -> Any:
        """KFP's client, which supports several ways to sign in.

        It reads a token file again for every call.
        """
        import kfp.client as sdk

        class Client(sdk.Client):
            def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
                """Call the health API once. KFP's own method retries for 30 s and prints stack traces."""
                return self.healthzs.healthz_service_get_healthz(_request_timeout=_TIMEOUT_SECONDS)

        token = os.environ.get(sdk.KF_PIPELINES_SA_TOKEN_ENV, sdk.KF_PIPELINES_SA_TOKEN_PATH)
        has_token = sdk.KF_PIPELINES_SA_TOKEN_ENV in os.environ or os.path.exists(token)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # About servers before 2.0.
            return Client(
                host=self._settings.kfp_host,
                namespace=self._settings.kfp_namespace or "kubeflow",
                credentials=sdk.ServiceAccountTokenVolumeCredentials(token) if has_token else None,
            )

    def _call(self, service: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the server. If the sign-in has expired, sign in again and repeat the call once."""

        def send() -> Any:
            call = getattr(getattr(self._client, service), f"{service.removesuffix('s')}_service_{method}")
            result = call(*arguments, **options, _request_timeout=_TIMEOUT_SECONDS)
            kind = call.__self__.api_client.last_response.getheader("Content-Type") or ""
            if "json" not in kind:  # The client would return it as an empty response.
                raise InputError(
                    f"{self._address} does not respond like Kubeflow Pipelines: expected JSON, received "
                    f"{kind or 'nothing'}. There may be a sign-in page. Check kfp_host and the sign-in."
                )
            return result

        with _translated(method.replace("_", " "), self._address):
            try:
                return send()
            except _sdk().ApiException as error:
                if error.status != 401:
                    raise
            self.__dict__.pop("_client", None)
            return send()

    def _list_similar(self, service: str, name: str) -> list[Any]:
        """Return the objects with this name, in upper or lower case, because the server ignores case."""
        condition = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
        predicates = json.dumps({"predicates": [condition]})
        page = self._call(service, f"list_{service}", filter=predicates, page_size=100, **self._where)
        return getattr(page, service) or []

    def _list(self, service: str, name: str) -> list[Any]:
        """Return the objects with exactly this name, the oldest first."""
        same = [item for item in self._list_similar(service, name) if item.display_name == name]
        return sorted(same, key=operator.attrgetter("created_at", f"{service.removesuffix('s')}_id"))

    @property
    def _where(self) -> dict[str, str]:
        with _translated("reach the server", self._address):
            namespace = self._client.get_user_namespace()
        return {"namespace": namespace} if namespace else {}

    def _url(self, page: str) -> str:
        host = os.environ.get("KF_PIPELINES_UI_ENDPOINT") or self._settings.kfp_host
        return f"{hide_credentials(host, '').rstrip('/')}/#/{page}"

    # Jobs

    def _request(self, job: Job) -> dict[str, Any]:
        """Return the fields of a request that starts a run or a recurring run, except the experiment.

        Raises:
            InputError: If a name or the description is too long for the server.
        """
        root, (spec, *platforms) = self._settings.bucket, job.specifications
        description = _description(job.labels)
        texts = {"experiment": job.name, "run": job.job_id, "description": description, "pipeline": job.package}
        check_texts(KUBEFLOW_LIMITS, texts)
        return {
            "description": description,
            # In the form that the server expects.
            "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platforms[0]} if platforms else spec,
            "runtime_config": {"parameters": {}, **({"pipeline_root": root} if root else {})},
        }

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the run that `create` would send, as JSON."""
        return {"display_name": job.job_id, **self._request(job)}

    def create(self, job: Job) -> Submission:
        """Start a run. If a run with its name exists, return that run."""
        description = self.describe(job)  # Refuses what the server could not store, before any request.
        if existing := self._find(job.job_id):
            return self._read(existing)
        run = _sdk().V2beta1Run(experiment_id=self._experiment(job.name), **description)
        created = self._call("runs", "create_run", run)
        return self._read(self._find(job.job_id) or created)

    def get(self, job_id: str) -> Submission | None:
        """Return the run with this name, or None if there is none."""
        with contextlib.suppress(MissingError):
            if existing := self._find(job_id):
                return self._read(self._call("runs", "get_run", existing.run_id))
        return None

    def latest(self, name: str) -> Submission | None:
        """Return the newest run in the experiment with this name, otherwise the run with this ID, otherwise None."""
        if experiments := self._list("experiments", name):
            newest = self._call(
                "runs",
                "list_runs",
                experiment_id=experiments[0].experiment_id,
                sort_by="created_at desc",
                page_size=1,
            )
            for run in newest.runs or ():
                return self._read(self._call("runs", "get_run", run.run_id))
        return self.get(name)

    def cancel(self, job_id: str) -> None:
        """Stop a run, unless it has ended or is being stopped."""
        existing = self._find(job_id)
        if existing is None:
            raise InputError(
                f"Cannot cancel {job_id!r} at {self._address}: there is no run with this name. Check the name."
            )
        try:
            if existing.state in ("PENDING", "RUNNING", "PAUSED", None):
                self._call("runs", "terminate_run", existing.run_id)
        except InputError:
            current = self.get(job_id)
            if current is not None and not current.state.is_final:
                raise

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the URI of a step's output.

        Return an empty string if the URI is unknown. If the run's root folder is not in an object store that this
        package reads, return the root folder.

        The server does not report the URI. Its driver builds the URI as ROOT/PIPELINE/RUN/STEP/SALT/OUTPUT or, in
        older versions, as ROOT/PIPELINE/RUN/STEP/OUTPUT (kubeflow/pipelines backend/src/v2/driver/driver.go:
        provisionOutputs). The output of a cached step is in another run's folder, so its URI is unknown.

        Raises:
            InputError: If the step has no folder.
        """
        run = self._find(job_id)
        root = Location(_root(run).partition("?")[0] if run else "").folder
        if not root.is_remote:
            return root
        spec = run.pipeline_spec.get("pipeline_spec", run.pipeline_spec)
        folder = f"{root}/{spec['pipelineInfo']['name']}/{run.run_id}/{step.replace('_', '-')}"
        names = [f"/{file.name}".rpartition(f"/{output}/") for file in storage.list_files(folder)]
        return next((f"{folder}{above}/{output}" for above, separator, _ in names if separator), "")

    def _experiment(self, name: str) -> str:
        """Return the ID of the experiment with this name. If it is missing, create it."""
        if not (experiments := self._list("experiments", name)):
            experiment = _sdk().V2beta1Experiment(display_name=name, **self._where)
            with contextlib.suppress(ExistsError):
                return str(self._call("experiments", "create_experiment", experiment).experiment_id)
            experiments = self._list("experiments", name)
        if not experiments:
            if similar := self._list_similar("experiments", name):
                raise InputError(
                    f"Cannot use the name {name!r} at {self._address}: the experiment {similar[0].display_name!r} "
                    "exists, and the server ignores case. Use that name, or a different one."
                )
            raise OutageError(f"The experiment {name!r} exists but cannot be found, because it is being deleted.")
        return str(experiments[0].experiment_id)

    def _find(self, job_id: str) -> Any:
        """Return the oldest run with this name, or None if there is none. Delete concurrent duplicates.

        The last of several concurrent callers sees all runs, and all keep the oldest one, so exactly one remains.
        """
        if not (runs := self._list("runs", job_id)):
            return None
        kept, *younger = runs
        for other in younger:
            is_same = _read_labels(other.description) == _read_labels(kept.description)
            if is_same and not run_state(other.state).is_final:
                with contextlib.suppress(MissingError):
                    self._call("runs", "delete_run", other.run_id)
        return kept

    def _read(self, run: Any) -> Submission:
        """Convert a run that the server returned to a `Submission`."""
        labels = _read_labels(run.description)
        digest = labels.get(DIGEST, "")
        tasks = sorted(
            run.run_details.task_details or () if run.run_details else (), key=lambda entry: entry.start_time
        )
        names = _step_names(run.pipeline_spec or {})
        steps = {entry.display_name: entry.state.lower() for entry in tasks if entry.display_name in names}
        training_seconds, waited_seconds, never_ran = _times_of_training(tasks, self._now())
        state = run_state(run.state)
        terminated = any(entry.state == "CANCELING" for entry in run.state_history or ())
        if state is State.FAILED and (terminated or never_ran):
            state = State.CANCELLED  # The server reports terminated runs as failed.
        failed = [name.replace("-", "_") for name, word in steps.items() if word == "failed"]
        message = (
            run.error.message if run.error else ""
        ) or f"{', '.join(failed) or 'The run'} failed. See its log for the reason."
        return Submission(
            job_id=run.display_name,
            # A job's id is the name with the digest; a scheduled run has no description.
            name=run.display_name.partition(f"-{digest}")[0] if digest else run.display_name,
            state=state,
            machine=labels.get("tpu_pipelines_machine", ""),
            url=self._url(f"runs/details/{run.run_id}"),
            logs_url=self._url(f"runs/details/{run.run_id}"),
            steps={name.replace("-", "_"): word for name, word in steps.items()},
            error=message if state is State.FAILED else "",
            waited_seconds=waited_seconds,
            fingerprints=fingerprints_in(labels),
            digest=digest,
            created=run.created_at.isoformat() if run.created_at else "",
            training_seconds=training_seconds,
        )

    # Doctor

    def has_several_users(self) -> bool:
        """Return whether the server is in multi-user mode, in which objects belong to namespaces.

        The health API of the server reports the mode.
        """
        return bool(self._call("healthzs", "get_healthz").multi_user)

    def version(self) -> str:
        """Return the server's version as its health API reports it.

        The version is empty or `unknown` if the server was built without one.

        KFP's API types lack the version (kubeflow/pipelines backend/src/apiserver/main.go: healthzResponse).
        KFP's web server may respond instead, with another name for the field (frontend/server/handlers/healthz.ts).
        """
        self._call("healthzs", "get_healthz")
        content = json.loads(self._client.healthzs.api_client.last_response.data)
        return str(content.get("tag_name") or content.get("apiServerTagName") or "")

    def check_sign_in(self) -> None:
        """Check that the sign-in is valid, by sending a request that requires it."""
        self._call("experiments", "list_experiments", page_size=1, **self._where)

    # Schedules

    def schedules(self, name: str) -> list[Schedule]:
        """Return all recurring runs with this name, the oldest first."""
        return [self._read_schedule(recurring) for recurring in self._list("recurring_runs", name)]

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return the fields that this package sets in a recurring run of the job."""
        return _content(self._recurring_run(job, cron))

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Create a recurring run."""
        return self._create_schedule(self._recurring_run(job, cron))

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Replace a recurring run by a new one, because the server cannot change it.

        The old recurring run is deleted last, so that the replacement can be repeated if the process is killed. The two
        recurring runs are never both active.
        """
        old = self._call("recurring_runs", "get_recurring_run", schedule_id)
        wanted = self._recurring_run(job, cron)
        beside = [other for other in self._list("recurring_runs", job.name) if other.recurring_run_id != schedule_id]
        begun = next((other for other in beside if _is_same(other, wanted)), None)
        to_be_enabled = old.mode == "ENABLE" or (begun is not None and _TO_BE_ENABLED in begun.description)
        if begun is None:
            wanted.mode = "DISABLE"
            if to_be_enabled:
                wanted.description += _TO_BE_ENABLED
            new_id = self._create_schedule(wanted).schedule_id
        else:
            new_id = begun.recurring_run_id
        if to_be_enabled:
            self.pause_schedule(schedule_id)
            self.resume_schedule(new_id)
        self.delete_schedule(schedule_id)
        return self._read_schedule(self._call("recurring_runs", "get_recurring_run", new_id))

    def pause_schedule(self, schedule_id: str) -> None:
        """Pause a recurring run. It does not start runs until it is resumed."""
        self._call("recurring_runs", "disable_recurring_run", schedule_id)

    def resume_schedule(self, schedule_id: str) -> None:
        """Resume a recurring run. Missed runs are not started."""
        self._call("recurring_runs", "enable_recurring_run", schedule_id)

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a recurring run, if it exists."""
        with contextlib.suppress(MissingError):
            self._call("recurring_runs", "delete_recurring_run", schedule_id)

    def _recurring_run(self, job: Job, cron: str) -> Any:
        sdk = _sdk()
        cron = _with_seconds(cron)
        check_texts(KUBEFLOW_LIMITS, {"recurring_run": job.name, "cron": cron})
        if _NOT_IN_OBJECT_NAMES.sub("", job.name.lower()).startswith("-"):
            raise InputError(
                f"Cannot schedule {job.name!r} on Kubeflow: Kubernetes does not accept this name for the object that "
                "stores the schedule. Expected a letter from a to z or a digit before the first '-'. Choose another "
                "name for the run."
            )
        return sdk.V2beta1RecurringRun(
            display_name=job.name,
            trigger=sdk.V2beta1Trigger(cron_schedule=sdk.V2beta1CronSchedule(cron=cron)),
            mode="ENABLE",
            max_concurrency="1",
            no_catchup=True,
            **self._request(job),
        )

    def _create_schedule(self, recurring_run: Any) -> Schedule:
        recurring_run.experiment_id = self._experiment(recurring_run.display_name)
        return self._read_schedule(self._call("recurring_runs", "create_recurring_run", recurring_run))

    def _read_schedule(self, recurring_run: Any) -> Schedule:
        content = _content(recurring_run)
        return Schedule(
            schedule_id=recurring_run.recurring_run_id,
            cron=content["cron"],
            is_paused=recurring_run.mode != "ENABLE",
            content=content,
            url=self._url(f"recurringrun/details/{recurring_run.recurring_run_id}"),
        )


def _step_names(whole_spec: Mapping[str, Any]) -> set[str]:
    """Return the names of all tasks of a pipeline, including nested tasks, without the nodes that KFP adds."""
    spec = whole_spec.get("pipeline_spec", whole_spec)
    parts = (spec.get("root", {}), *spec.get("components", {}).values())
    return {name for part in parts for name in part.get("dag", {}).get("tasks", ())}


def _description(labels: Mapping[str, str]) -> str:
    """Return the description of a run: labels as YAML.

    The description contains all labels in `_READ_LABELS`, and as many labels of the settings as fit.
    """
    text = yaml.safe_dump({name: labels[name] for name in _READ_LABELS if name in labels}, sort_keys=False)
    for name, value in labels.items():
        line = yaml.safe_dump({name: value})
        if not name.startswith(_OWN_LABELS) and len(text) + len(line) <= _DESCRIPTION_CHARACTERS:
            text += line
    return text


def _read_labels(description: str | None) -> dict[str, str]:
    """Return the labels in `_READ_LABELS` from the description of a run.

    Return an empty mapping if this package did not write the description. Additional labels, such as those that earlier
    versions wrote, are ignored.
    """
    with contextlib.suppress(yaml.YAMLError):
        labels = yaml.safe_load(description or "")
        if isinstance(labels, dict):
            return {name: str(labels[name]) for name in _READ_LABELS if name in labels}
    return {}


def _times_of_training(tasks: Sequence[Any], now: datetime.datetime) -> tuple[float, float, bool]:
    """Return the duration and the waiting time of the training step, in seconds, and whether its pod never ran.

    Args:
        tasks: Nodes of the run's workflow, sorted by start time. The end time of a running node is before its start.
        now: Current time.
    """
    training = next((task for task in tasks if task.display_name == TRAINING_TASK), None)
    if training is None:
        return 0.0, 0.0, False
    start, end = training.start_time, training.end_time
    seconds = ((end if end and end > start else now) - start).total_seconds()
    # The server does not report the step of a pod; no other step runs during the training.
    pods = [attempt for attempt in tasks if _POD.fullmatch(attempt.display_name) and attempt.start_time >= start]
    attempts = [attempt for attempt in pods if attempt.display_name.endswith(")")] or pods
    if training.state == "SUCCEEDED" or not attempts:
        return seconds, 0.0, False
    pod = attempts[-1]
    if pod.state == "PENDING":
        return seconds, (now - pod.start_time).total_seconds(), False
    seen = [status.state for status in pod.state_history or ()]
    if pod.state == "FAILED" and seen and "RUNNING" not in seen:
        return seconds, (pod.end_time - pod.start_time).total_seconds(), True
    return seconds, 0.0, False


def _with_seconds(cron: str) -> str:
    """Convert a cron expression to KFP's form, with a first field for seconds.

    Example:
        >>> _with_seconds("0 3 * * *"), _with_seconds("CRON_TZ=Europe/Berlin 0 3 * * 1-5")
        ('0 0 3 * * *', 'TZ=Europe/Berlin 0 0 3 * * 1-5')
    """
    match = re.fullmatch(r"(?:(?:CRON_)?(TZ=\S+\s+))?(.*)", cron)
    zone, fields = match.groups() if match else ("", cron)
    return f"{zone or ''}0 {fields}"


def _content(recurring_run: Any) -> dict[str, Any]:
    """Return the fields that define the schedule and the pipeline of a recurring run, as plain values."""
    schedule = recurring_run.trigger.cron_schedule
    return {
        "cron": re.sub(r"^(TZ=\S+\s+)?0 ", r"\1", schedule.cron) if schedule else "",
        "output": _root(recurring_run),
        # Without the settings' labels: the pods have these, so that they are in the digest.
        "labels": _read_labels(recurring_run.description),
        "pipelineSpec": whole_numbers(recurring_run.pipeline_spec or {}),
    }


def _root(item: Any) -> str:
    """Return the folder for outputs of a run or recurring run, or an empty string if the server decides."""
    config = item.runtime_config
    return (config.get("pipeline_root") if isinstance(config, dict) else config and config.pipeline_root) or ""


def _is_same(recurring_run: Any, other: Any) -> bool:
    before, after = comparable(_content(recurring_run), _content(other))
    return before == after


def _sdk() -> Any:
    """Return the module of the server's API types. The import is late because it loads all of `kfp`."""
    import kfp_server_api

    return kfp_server_api


@contextlib.contextmanager
def _translated(doing: str, host: str) -> Iterator[None]:
    """Convert errors of KFP's client to the errors that a `PlatformClient` raises."""
    import urllib3

    refused = f"Kubeflow Pipelines at {host} refused to {doing}:"
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        cause = chain_of(error)[-1]
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            raise InputError(f"The host name in {host} does not exist. Check the setting kfp_host.") from error
        reason = hide_credentials(str(cause))
        raise OutageError(f"Kubeflow Pipelines at {host} cannot be reached: {reason}") from error
    except OSError as error:
        raise InputError(
            f"Cannot sign in to {host}: the token cannot be read ({error}). Check KF_PIPELINES_SA_TOKEN_PATH."
        ) from error
    except _sdk().ApiException as error:
        message = message_of(error)
        if _TOO_LONG.search(message):
            raise InputError(
                f"{refused} {message} The server's database has a shorter column than the database of KFP's releases. "
                "Ask the server's administrator to widen the column, and to look for workflows without a run, which "
                "this error may have left in the cluster."
            ) from error
        if error.status == 429 or (error.status or 500) >= 500:
            raise OutageError(
                f"Kubeflow Pipelines at {host} cannot {doing} at the moment: {error.status} {message}"
            ) from error
        kind, hint = _REFUSALS.get(error.status, (InputError, ""))
        if error.status == 401:
            message = f"the sign-in is not valid, or has expired ({message})."
        raise kind(f"{refused} {message} {hint}".rstrip()) from error


_REFUSALS: dict[int, tuple[type[Exception], str]] = {
    401: (
        InputError,
        "Set KF_PIPELINES_SA_TOKEN_PATH to the path of a token, or sign in as your server requires.",
    ),
    403: (InputError, "Ask for the role kubeflow-edit in the namespace, and check kfp_namespace."),
    404: (MissingError, "Check the name and kfp_host."),
    409: (ExistsError, ""),
}
