"""Jobs of Google Cloud's Dataflow: found by their names, followed to their ends, and cancelled.

Asked over REST with Google's own sign-in. What makes a job is Apache Beam's client, whose dependencies the steps' image
cannot hold; what asks about one needs none of it.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, MissingError, OutageError, PlatformError
from tpu_components.core.base.termination import Terminated
from tpu_components.core.files.vertex_clients import sign_in

ADDRESS = "https://dataflow.googleapis.com"
DONE, FAILED, CANCELLED, CANCELLING = (f"JOB_STATE_{name}" for name in ("DONE", "FAILED", "CANCELLED", "CANCELLING"))
# In these a job changes no more: googleapis google/dataflow/v1beta3/jobs.proto, JobState.
_ENDED = (DONE, FAILED, CANCELLED, "JOB_STATE_UPDATED", "JOB_STATE_DRAINED")
_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 10.0
# The reason of a failure takes some 30 s to show up: apache/beam runners/dataflow/dataflow_runner.py,
# poll_for_job_completion.
_LATE_SECONDS, _LATE_POLL_SECONDS = 60.0, 5.0
_CANCEL_SECONDS = 15.0  # A platform kills what it ends after 30.
_MOST_MESSAGES, _MOST_CHARACTERS = 3, 2000
_MISTAKE = re.compile(r"tpu_components\.core\.base\.errors\.InputError: (.+?)(?: \[while running |\\n|\n|$)")


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, as it was when the service was asked: its id, its name and its state."""

    id: str
    name: str
    state: str

    @property
    def has_ended(self) -> bool:
        """Whether its state is its last one."""
        return self.state in _ENDED


def mistake_in(text: str) -> InputError | None:
    """Return the user's mistake that a worker has met, by the words of its stack trace; None where it met none.

    Example:
        >>> mistake_in("…tpu_components.core.base.errors.InputError: Images differ in size. [while running 'Write']")
        InputError('Images differ in size.')
        >>> mistake_in("MemoryError")
    """
    match = _MISTAKE.search(text)
    return InputError(match[1]) if match else None


class Dataflow:
    """Dataflow in one project and region.

    Args:
        project: Google Cloud project.
        region: Region, which knows its own jobs alone.
        address: Address of the service, where it is not Google's.
        credentials: Google's; the environment's if not given.
        backoff: Time for which an outage is waited out.
    """

    def __init__(
        self, project: str, region: str, address: str = "", credentials: Any = None, backoff: Backoff | None = None
    ) -> None:
        self._place, self._given, self._backoff = (project, region), credentials, backoff or Backoff()
        self._jobs = f"{(address or ADDRESS).rstrip('/')}/v1b3/projects/{project}/locations/{region}/jobs"

    @functools.cached_property
    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._given or sign_in())

    def find(self, name: str) -> Job | None:
        """Return the job of a name that has not ended, of which there is one at most; None where there is none."""
        # Not those that the service calls active: it counts a job that has not started yet among the others.
        jobs = [_job(each) for each in self._listed("", "jobs", {"name": name})]
        return next((job for job in jobs if job.name == name and not job.has_ended), None)

    def get(self, job_id: str) -> Job:
        """Return a job as it is now."""
        return _job(self._ask("GET", f"/{job_id}"))

    def errors(self, job_id: str) -> list[str]:
        """Return what the job says of its errors, oldest first, each once."""
        asked = {"minimumImportance": "JOB_MESSAGE_ERROR"}
        messages = self._listed(f"/{job_id}/messages", "jobMessages", asked)
        return list(dict.fromkeys(message.get("messageText", "") for message in messages))

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job; it ends some time later."""
        self._ask("PUT", f"/{job_id}", json={"requestedState": CANCELLED})

    def link(self, job_id: str) -> str:
        """Return the address of the page that shows a job."""
        project, region = self._place
        return f"https://console.cloud.google.com/dataflow/jobs/{region}/{job_id}?project={project}"

    def run(self, name: str, submit: Callable[[], str], step: str) -> None:
        """Have the job of a name done: the one that runs already, or else one that is made now.

        It is cancelled where this process is told to end; where it is killed, the next one finds the job.

        Args:
            name: Name of the job.
            submit: Makes it; returns its id, or "" where there was one of that name all at once.
            step: Name of the step that says how the job goes.

        Raises:
            PlatformError: If the job fails or is cancelled; repeats its own messages.
            InputError: If a worker met a user's mistake, or the service refuses what it is asked.
        """
        job_id = ""
        try:
            job = self._backoff(lambda: self.find(name))
            if (
                job and job.state == CANCELLING
            ):  # That of a step that was cancelled: its name is free once it has ended.
                self._wait(job.id, step)
                job = None
            if job:
                progress.say(step, f"following the job {job.name}, which runs already: {self.link(job.id)}")
            job_id = job.id if job else submit() or self._that_was_faster(name)
            if not job:
                progress.say(step, f"started the job {name}: {self.link(job_id)}")
            self._require_done(self._wait(job_id, step))
        except (Terminated, KeyboardInterrupt):
            self._cancel_now(job_id, name, step)
            raise

    def _that_was_faster(self, name: str) -> str:
        job = self._backoff(lambda: self.find(name))
        if job is None:
            raise PlatformError(f"The Dataflow job {name} was there, and has ended all at once. Run the step again.")
        return job.id

    def _wait(self, job_id: str, step: str) -> Job:
        """Ask for a job until it has ended; says every change of its state."""
        seen = [""]

        def has_ended() -> bool:
            try:
                job = self.get(job_id)
            except MissingError as error:
                # The service says so of jobs that are there, as new ones: https://github.com/apache/beam/issues/19350,
                # for which Beam's own client tries again (apiclient.py: get_job).
                raise OutageError(str(error)) from error
            if job.state != seen[-1]:
                seen.append(job.state)
                progress.say(step, f"the job is {job.state.removeprefix('JOB_STATE_').lower().replace('_', ' ')}")
            return job.has_ended

        self._backoff.until(has_ended, _POLL_SECONDS, float("inf"))
        return self._backoff(lambda: self.get(job_id))

    def _require_done(self, job: Job) -> None:
        if job.state == DONE:
            return
        if job.state == CANCELLED:
            raise PlatformError(
                f"The Dataflow job {job.name} was cancelled, and not by this step. What it has written stays: run the "
                f"step again to go on. {self.link(job.id)}"
            )
        self._backoff.until(lambda: bool(self.errors(job.id)), _LATE_POLL_SECONDS, _LATE_SECONDS)
        errors = self._backoff(lambda: self.errors(job.id))
        if mistake := next(filter(None, map(mistake_in, errors)), None):
            raise mistake
        told = " | ".join(text.strip() for text in errors[-_MOST_MESSAGES:])[-_MOST_CHARACTERS:]
        raise PlatformError(
            f"The Dataflow job {job.name} has ended as {job.state}. It says: {told or 'nothing'}. What it has written "
            f"stays: run the step again to go on. {self.link(job.id)}"
        )

    def _cancel_now(self, job_id: str, name: str, step: str) -> None:
        """Cancel a job whose step ends, as far as that can be done in the time that is left."""
        hurry = dataclasses.replace(self._backoff, max_seconds=2.0, patience_seconds=_CANCEL_SECONDS)
        try:
            if not job_id and (job := hurry(lambda: self.find(name))):
                job_id = job.id
            if job_id:
                hurry(lambda: self.cancel(job_id))
                progress.say(step, f"cancelled the job {name}")
        except (PlatformError, InputError) as error:
            progress.say(step, f"the job {name} could not be cancelled: {error}")

    def _listed(self, path: str, field: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            page = self._ask("GET", path, params={**query, **({"pageToken": token} if token else {})})
            yield from page.get(field, ())
            if not (token := page.get("nextPageToken", "")):
                return

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Send one request; returns its answer.

        Raises:
            OutageError: If the same request may succeed later.
            MissingError: If there is no such job.
            InputError: If the service refuses for another reason; repeats its message.
        """
        import requests
        from google.auth import exceptions

        project, region = self._place
        try:
            response = self._session.request(method, self._jobs + path, timeout=_TIMEOUT_SECONDS, **options)
        except (requests.RequestException, exceptions.TransportError) as error:
            raise OutageError(f"Dataflow cannot be reached: {error}") from error
        except exceptions.GoogleAuthError as error:
            raise InputError(
                f"Cannot ask Dataflow: the sign-in is not, or no longer, valid ({error}). Run `gcloud auth "
                "application-default login`."
            ) from error
        if response.ok:
            return dict(response.json())
        raise refusal(response.status_code, _message(response), f"{project}, {region}")


def refusal(status: int, message: str, where: str) -> Exception:
    """Return what an answer of the service means for whoever asked; `where` is the project and the region."""
    if status == 429 or status >= 500:
        return OutageError(f"Dataflow cannot answer now: {status} {message}")
    if status == 404:
        return MissingError(f"Dataflow has no such job or place in {where}: {message}. Check the region.")
    advice = {
        401: "Run `gcloud auth application-default login`.",
        403: "Switch on dataflow.googleapis.com, and give this account the role roles/dataflow.developer.",
    }.get(status, "Check beam_options.")
    return InputError(f"Dataflow refused in {where}: {message} {advice}")


def _job(raw: Mapping[str, Any]) -> Job:
    return Job(raw["id"], raw.get("name", ""), raw.get("currentState", ""))


def _message(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason}"
