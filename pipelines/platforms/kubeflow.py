"""Kubeflow Pipelines: runs, and recurring runs."""

import contextlib
import datetime
import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import ExistsError, MissingError, OutageError
from tpu_components.core.base.typed_values import whole_numbers
from tpu_components.core.files import storage
from tpu_pipelines.config.settings import TARGET_SETTINGS, Settings, hide_credentials
from tpu_pipelines.platforms.jobs import DIGEST, Job, State, Submission, fingerprints_in, now
from tpu_pipelines.platforms.schedules import Schedule, comparable

_TIMEOUT_SECONDS = 60
_TRAINING_TASK = "train-model"
# KFP calls the pod of every step so: the step itself is a node of the workflow that has this one in it. With retries it
# is the node of all of them, and each has a number.
_POD = re.compile(r"executor(\(\d+\))?")
_STATES = {
    "SUCCEEDED": State.SUCCEEDED,
    "SKIPPED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "CANCELED": State.CANCELLED,
    "RUNNING": State.RUNNING,
    "CANCELING": State.RUNNING,
}
_TO_BE_ENABLED = "tpu_pipelines_to_be_enabled"  # Of a schedule that takes the place of an active one.


class Kubeflow:
    """Kubeflow Pipelines as a `Submitter` and a `Scheduler`.

    The server gives every run an id of its own and lets many have one name, so a job's id is the name of its run. Two
    who submit at the same moment may both start one: of these the older counts, and whoever sees the other deletes it.

    A run is in the experiment of its configuration's name, and its description holds the job's labels. What the server
    does not say: why a pod waits. One that no node has a TPU for looks like one whose image is being pulled, so
    `max_wait_seconds` must leave time for that; a run never `lacks_machine`, it only waits for it.

    Args:
        settings: Must have `kfp_host`. Runs write under `bucket` if there is one, else where the server lets them.
        now: The time, in UTC.

    Raises:
        InputError: If settings are missing; names them all.
    """

    def __init__(self, settings: Settings, now: Callable[[], datetime.datetime] = now) -> None:
        settings.require(*TARGET_SETTINGS["kubeflow"])
        self._settings, self._now = settings, now

    @property
    def _address(self) -> str:
        """The server's, as it may be shown."""
        return hide_credentials(self._settings.kfp_host)

    @functools.cached_property
    def _client(self) -> Any:
        """KFP's own client, which knows several ways to sign in; a token in a file is read anew for every call."""
        import kfp.client as sdk

        class Client(sdk.Client):
            def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
                """Ask once; the client's own would try again for half a minute, and print stack traces."""
                return self.healthzs.healthz_service_get_healthz(_request_timeout=_TIMEOUT_SECONDS)

        token = os.environ.get(sdk.KF_PIPELINES_SA_TOKEN_ENV, sdk.KF_PIPELINES_SA_TOKEN_PATH)
        has_token = sdk.KF_PIPELINES_SA_TOKEN_ENV in os.environ or os.path.exists(token)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # That servers before 2.0 will not do.
            return Client(
                host=self._settings.kfp_host,
                namespace=self._settings.kfp_namespace or "kubeflow",
                credentials=sdk.ServiceAccountTokenVolumeCredentials(token) if has_token else None,
            )

    def _call(self, service: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the server once, and once more with a new sign-in if it does not take the old one any longer."""

        def send() -> Any:
            call = getattr(getattr(self._client, service), f"{service.removesuffix('s')}_service_{method}")
            result = call(*arguments, **options, _request_timeout=_TIMEOUT_SECONDS)
            kind = call.__self__.api_client.last_response.getheader("Content-Type") or ""
            if "json" not in kind:  # The client would take it for an answer that is empty.
                raise InputError(
                    f"{self._address} answers, but not as Kubeflow Pipelines: expected JSON, received "
                    f"{kind or 'nothing'}. A page to sign in at may be in front of it. Check kfp_host and the sign-in."
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

    def _list(self, service: str, name: str) -> list[Any]:
        """Return what has exactly this name, the oldest first."""
        condition = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
        page = self._call(
            service,
            f"list_{service}",
            filter=json.dumps({"predicates": [condition]}),
            page_size=100,
            **self._where,
        )
        same = [item for item in getattr(page, service) or () if item.display_name == name]  # The server ignores case.
        return sorted(same, key=lambda item: (item.created_at, _id(item)))

    @property
    def _where(self) -> dict[str, str]:
        with _translated("reach the server", self._address):
            namespace = self._client.get_user_namespace()
        return {"namespace": namespace} if namespace else {}

    def _url(self, page: str) -> str:
        host = os.environ.get("KF_PIPELINES_UI_ENDPOINT") or self._settings.kfp_host
        return f"{hide_credentials(host, '').rstrip('/')}/#/{page}"

    # Submitter

    def _request(self, job: Job) -> dict[str, Any]:
        """Return what a run and a recurring run have in common, but for the experiment."""
        root = self._settings.bucket
        return {
            "description": yaml.safe_dump(dict(job.labels)),
            "pipeline_spec": _whole_spec(job.package),
            "runtime_config": {"parameters": {}, **({"pipeline_root": root} if root else {})},
        }

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the run that `create` sends, as JSON; its experiment is called like the configuration."""
        return {"display_name": job.job_id, **self._request(job)}

    def create(self, job: Job) -> Submission:
        """Start a run; where there is one of its name already, find that."""
        if existing := self._find(job.job_id):
            return self._read(existing)
        run = _sdk().V2beta1Run(experiment_id=self._experiment(job.name), **self.describe(job))
        created = self._call("runs", "create_run", run)
        return self._read(self._find(job.job_id) or created)

    def get(self, job_id: str) -> Submission | None:
        """Return a run, if there is one of that name."""
        with contextlib.suppress(MissingError):
            if existing := self._find(job_id):
                return self._read(self._call("runs", "get_run", existing.run_id))
        return None

    def latest(self, name: str) -> Submission | None:
        """Return the newest run in the experiment of that name, or the run that has this id."""
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
        """Stop a run; nothing happens to one that has ended, or is being stopped."""
        existing = self._find(job_id)
        if existing is None:
            raise InputError(f"Cannot cancel {job_id!r} at {self._address}: there is no run of that name.")
        try:
            if existing.state in ("PENDING", "RUNNING", "PAUSED", None):
                self._call("runs", "terminate_run", existing.run_id)
        except InputError:
            current = self.get(job_id)
            if current is not None and not current.state.is_final:
                raise

    def find_output(self, job_id: str, step: str, output: str) -> str:
        """Return the place of what a step has written; empty where runs write at the server's own place.

        The server does not say it, but its driver always makes it so: ROOT/PIPELINE/RUN/STEP/SALT/OUTPUT, once without
        a salt (kubeflow/pipelines backend/src/v2/driver/driver.go: provisionOutputs). Of a step that the cache has
        answered it is in another run's folder.

        Raises:
            InputError: If nothing is there.
        """
        run = self._find(job_id)
        root = _root(run).partition("?")[0].rstrip("/") if run else ""
        if not storage.is_remote(root):
            return root
        spec = run.pipeline_spec.get("pipeline_spec", run.pipeline_spec)
        folder = f"{root}/{spec['pipelineInfo']['name']}/{run.run_id}/{step.replace('_', '-')}"
        names = [f"/{file.name}".rpartition(f"/{output}/") for file in storage.list_files(folder)]
        return next((f"{folder}{above}/{output}" for above, separator, _ in names if separator), "")

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment of that name; creates it."""
        if not (experiments := self._list("experiments", name)):
            experiment = _sdk().V2beta1Experiment(display_name=name, **self._where)
            with contextlib.suppress(ExistsError):
                return str(self._call("experiments", "create_experiment", experiment).experiment_id)
            experiments = self._list("experiments", name)
        if not experiments:
            raise OutageError(f"The experiment {name!r} exists, and cannot be found: somebody is deleting it.")
        return str(experiments[0].experiment_id)

    def _find(self, job_id: str) -> Any:
        """Return the run of that name, if there is one; others that were started at the same moment are deleted.

        Whoever comes last sees all of them, and all agree on the oldest, so that one stays.
        """
        if not (runs := self._list("runs", job_id)):
            return None
        kept, *younger = runs
        for other in younger:
            if other.description == kept.description and not _STATES.get(other.state, State.PENDING).is_final:
                with contextlib.suppress(MissingError):
                    self._call("runs", "delete_run", other.run_id)
        return kept

    def _read(self, run: Any) -> Submission:
        """Read a run of the server."""
        labels = _labels(run.description)
        tasks = sorted(
            run.run_details.task_details or () if run.run_details else (), key=lambda entry: entry.start_time
        )
        names = _step_names(run.pipeline_spec or {})
        steps = {entry.display_name: entry.state.lower() for entry in tasks if entry.display_name in names}
        waited_seconds, never_ran = _wait_of_training(tasks, self._now())
        state = _STATES.get(run.state, State.PENDING)
        terminated = any(entry.state == "CANCELING" for entry in run.state_history or ())
        if state is State.FAILED and (terminated or never_ran):
            state = State.CANCELLED  # The server calls what was terminated failed.
        failed = [name.replace("-", "_") for name, word in steps.items() if word == "failed"]
        said = (run.error.message if run.error else "") or f"{', '.join(failed) or 'The run'} failed; its log says why."
        return Submission(
            job_id=run.display_name,
            name=labels.get("tpu_pipelines_run", run.display_name),
            state=state,
            machine=labels.get("tpu_pipelines_machine", ""),
            url=self._url(f"runs/details/{run.run_id}"),
            logs_url=self._url(f"runs/details/{run.run_id}"),
            steps={name.replace("-", "_"): word for name, word in steps.items()},
            error=said if state is State.FAILED else "",
            waited_seconds=waited_seconds,
            fingerprints=fingerprints_in(labels),
            digest=labels.get(DIGEST, ""),
            created=run.created_at.isoformat() if run.created_at else "",
            training_seconds=_seconds_of_training(tasks, self._now()),
        )

    # Doctor

    def has_several_users(self) -> bool:
        """Ask the server's API for its health, and whether everything there belongs to a namespace."""
        return bool(self._call("healthzs", "get_healthz").multi_user)

    def check_sign_in(self) -> None:
        """Ask as whoever is signed in for what only they may see."""
        self._call("experiments", "list_experiments", page_size=1, **self._where)

    # Scheduler

    def schedules(self, name: str) -> list[Schedule]:
        """Return all recurring runs of a name, the oldest first."""
        return [self._read_schedule(recurring) for recurring in self._list("recurring_runs", name)]

    def schedule_content(self, job: Job, cron: str) -> Mapping[str, Any]:
        """Return what a recurring run says that is ours to say."""
        return _content(self._recurring_run(job, cron))

    def create_schedule(self, job: Job, cron: str) -> Schedule:
        """Return a new recurring run."""
        return self._create_schedule(self._recurring_run(job, cron))

    def update_schedule(self, schedule_id: str, job: Job, cron: str) -> Schedule:
        """Return a recurring run in the place of this one: the server cannot change one.

        The old one goes last, so that whoever is killed half-way can do it again; never are both active.
        """
        old = self._call("recurring_runs", "get_recurring_run", schedule_id)
        wanted = self._recurring_run(job, cron)
        beside = [other for other in self._list("recurring_runs", job.name) if other.recurring_run_id != schedule_id]
        begun = next((other for other in beside if _is_same(other, wanted)), None)
        to_be_enabled = old.mode == "ENABLE" or (begun is not None and _TO_BE_ENABLED in begun.description)
        if begun is None:
            wanted.mode = "DISABLE"
            if to_be_enabled:
                wanted.description += f"{_TO_BE_ENABLED}: 'true'\n"
            new_id = self._create_schedule(wanted).schedule_id
        else:
            new_id = begun.recurring_run_id
        if to_be_enabled:
            self.pause_schedule(schedule_id)
            self.resume_schedule(new_id)
        self.delete_schedule(schedule_id)
        return self._read_schedule(self._call("recurring_runs", "get_recurring_run", new_id))

    def pause_schedule(self, schedule_id: str) -> None:
        """Start no more runs."""
        self._call("recurring_runs", "disable_recurring_run", schedule_id)

    def resume_schedule(self, schedule_id: str) -> None:
        """Start runs again; those that were missed stay so."""
        self._call("recurring_runs", "enable_recurring_run", schedule_id)

    def delete_schedule(self, schedule_id: str) -> None:
        """Forget a recurring run; nothing happens to one that is not there."""
        with contextlib.suppress(MissingError):
            self._call("recurring_runs", "delete_recurring_run", schedule_id)

    def _recurring_run(self, job: Job, cron: str) -> Any:
        sdk = _sdk()
        return sdk.V2beta1RecurringRun(
            display_name=job.name,
            trigger=sdk.V2beta1Trigger(cron_schedule=sdk.V2beta1CronSchedule(cron=_with_seconds(cron))),
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
            name=recurring_run.display_name,
            cron=content["cron"],
            is_paused=recurring_run.mode != "ENABLE",
            content=content,
            url=self._url(f"recurringrun/details/{recurring_run.recurring_run_id}"),
        )


def connect(settings: Settings) -> Kubeflow:
    """Connect to Kubeflow Pipelines, with the sign-in that its client finds."""
    return Kubeflow(settings)


def _id(item: Any) -> str:
    """Return the id of a run, recurring run or experiment."""
    names = ("run_id", "recurring_run_id", "experiment_id")
    return next(str(getattr(item, name)) for name in names if name in item.openapi_types)


@functools.lru_cache(maxsize=16)
def _whole_spec(package: str) -> dict[str, Any]:
    """Return the pipeline, and what it says of Kubernetes, as the server takes them."""
    spec, *platforms = yaml.safe_load_all(package)
    return {"pipeline_spec": spec, "platform_spec": platforms[0]} if platforms else spec


def _step_names(whole_spec: Mapping[str, Any]) -> set[str]:
    """Return the tasks of a pipeline, in whatever part: not the nodes that KFP adds to its workflow."""
    spec = whole_spec.get("pipeline_spec", whole_spec)
    parts = (spec.get("root", {}), *spec.get("components", {}).values())
    return {name for part in parts for name in part.get("dag", {}).get("tasks", ())}


def _labels(description: str | None) -> dict[str, str]:
    """Return the labels in a description; none if it is not one of ours."""
    with contextlib.suppress(yaml.YAMLError):
        labels = yaml.safe_load(description or "")
        if isinstance(labels, dict):
            return {str(key): str(value) for key, value in labels.items()}
    return {}


def _seconds_of_training(tasks: Sequence[Any], now: datetime.datetime) -> float:
    """Return how long the training's node has been there; one that goes on ends before it begins."""
    training = next((task for task in tasks if task.display_name == _TRAINING_TASK), None)
    if training is None:
        return 0.0
    end = training.end_time if training.end_time and training.end_time > training.start_time else now
    return float((end - training.start_time).total_seconds())


def _wait_of_training(tasks: Sequence[Any], now: datetime.datetime) -> tuple[float, bool]:
    """Return how many seconds the training's pod waited without ever running, and whether that has ended.

    Args:
        tasks: The nodes of the run's workflow, by start.
        now: The time.
    """
    training = next((task for task in tasks if task.display_name == _TRAINING_TASK), None)
    if training is None or training.state == "SUCCEEDED":
        return 0, False
    # The server does not say whose a pod is; while the training goes on no other step does.
    pods = [
        attempt
        for attempt in tasks
        if _POD.fullmatch(attempt.display_name) and attempt.start_time >= training.start_time
    ]
    attempts = [attempt for attempt in pods if attempt.display_name.endswith(")")] or pods
    if not attempts:
        return 0, False
    pod = attempts[-1]
    if pod.state == "PENDING":
        return (now - pod.start_time).total_seconds(), False
    seen = [status.state for status in pod.state_history or ()]
    if pod.state == "FAILED" and seen and "RUNNING" not in seen:
        return (pod.end_time - pod.start_time).total_seconds(), True
    return 0, False


def _with_seconds(cron: str) -> str:
    """Return a cron expression as KFP has it, with a field for the second in front.

    Example:
        >>> _with_seconds("0 3 * * *"), _with_seconds("CRON_TZ=Europe/Berlin 0 3 * * 1-5")
        ('0 0 3 * * *', 'TZ=Europe/Berlin 0 0 3 * * 1-5')
    """
    match = re.fullmatch(r"(?:(?:CRON_)?(TZ=\S+\s+))?(.*)", cron)
    zone, fields = match.groups() if match else ("", cron)
    return f"{zone or ''}0 {fields}"


def _content(recurring_run: Any) -> dict[str, Any]:
    """Return what decides what a recurring run does when, in plain values."""
    labels = _labels(recurring_run.description)
    labels.pop(_TO_BE_ENABLED, None)
    schedule = recurring_run.trigger.cron_schedule
    return {
        "cron": re.sub(r"^(TZ=\S+\s+)?0 ", r"\1", schedule.cron) if schedule else "",
        "output": _root(recurring_run),
        "labels": labels,
        "pipelineSpec": whole_numbers(recurring_run.pipeline_spec or {}),
    }


def _root(item: Any) -> str:
    """Return where a run or recurring run writes; empty where the server decides."""
    config = item.runtime_config
    return (config.get("pipeline_root") if isinstance(config, dict) else config and config.pipeline_root) or ""


def _is_same(recurring_run: Any, other: Any) -> bool:
    """Return whether two recurring runs do the same."""
    before, after = comparable(_content(recurring_run), _content(other))
    return before == after


def _sdk() -> Any:
    """Return the types of the server's API; the client and all of `kfp` come with them only when a call is made."""
    import kfp_server_api

    return kfp_server_api


@contextlib.contextmanager
def _translated(doing: str, host: str) -> Iterator[None]:
    """Turn the errors of KFP's client into ours."""
    import urllib3

    refused = f"Kubeflow Pipelines at {host} refused to {doing}:"
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        reason = hide_credentials(str(error))
        raise OutageError(f"Kubeflow Pipelines at {host} cannot be reached to {doing}: {reason}") from error
    except OSError as error:
        raise InputError(
            f"Cannot sign in to {host}: the token cannot be read ({error}). Check KF_PIPELINES_SA_TOKEN_PATH."
        ) from error
    except _sdk().ApiException as error:
        message = _message(error)
        if error.status == 429 or (error.status or 500) >= 500:
            raise OutageError(f"Kubeflow Pipelines at {host} cannot {doing} now: {error.status} {message}") from error
        if error.status == 404:
            raise MissingError(f"{refused} {message} Check the name and kfp_host.") from error
        if error.status == 409:
            raise ExistsError(f"{refused} {message}") from error
        if error.status == 401:
            raise InputError(
                f"{refused} the sign-in is not, or no longer, valid ({message}). Put a token into a file and its path "
                "into KF_PIPELINES_SA_TOKEN_PATH, or sign in as your server asks for."
            ) from error
        if error.status == 403:
            raise InputError(
                f"{refused} {message} Ask for the role kubeflow-edit in the namespace, and check kfp_namespace."
            ) from error
        raise InputError(f"{refused} {message}") from error


def _message(error: Any) -> str:
    """Return what the server says of an error; the reason alone where that is a page and no message of the API."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        body = json.loads(error.body)
        return str(body.get("message") or body.get("error") or error.reason)
    return str(error.reason)
