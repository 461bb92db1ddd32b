"""A fake Dataflow service over REST, for Beam's own client and for code that follows its jobs.

Tests decide when a job runs: `run` gives the staged pipeline to a worker, `end` sets another final state.
"""

import dataclasses
import datetime
import json
import re
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.fakes.local_server import LocalServer

PROJECT, REGION = "my-project", "us-central1"
# Rule: a job in one of these states has ended (googleapis google/dataflow/v1beta3/jobs.proto: JobState)
ENDED = tuple(f"JOB_STATE_{state}" for state in ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"))
# Rule: importance increases from debug, detailed, basic and warning to error; its numbers, which Beam's client sends,
# have another order (apache/beam sdks/python/apache_beam/runners/dataflow/internal/apiclient.py: list_messages)
IMPORTANCE = tuple(f"JOB_MESSAGE_{level}" for level in ("DEBUG", "DETAILED", "BASIC", "WARNING", "ERROR"))
_NUMBERS = "12534"  # messages.proto: JobMessageImportance.
_PAGE = 2  # Small, so that every listing has several pages.


class RefusedError(Exception):
    """An error response: its HTTP status and message."""


@dataclasses.dataclass
class StoredJob:
    """A job of the service: the request, its state, and its messages."""

    asked: dict[str, Any]
    id: str
    region: str
    state: str = "JOB_STATE_PENDING"
    messages: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def public(self) -> dict[str, Any]:
        """Return the job as the API shows it."""
        kept = {name: self.asked[name] for name in ("name", "type", "clientRequestId", "labels") if name in self.asked}
        return {**kept, "id": self.id, "projectId": PROJECT, "location": self.region, "currentState": self.state}


def can_boot(user: str) -> bool:
    """Return whether a worker starts in an image with this user."""
    # Rule: folders below /var/opt are mounted with root as owner, and a worker must write to them
    # (pangeo-data/pangeo-docker-images/pull/360)
    return user in ("0", "root")


class FakeDataflow(LocalServer):
    """The service, for a `with` block.

    Attributes:
        jobs: All jobs, the oldest first.
        calls: Verb and path of every request.
        on_get: Called with the job before every response to a request for a job, to let time pass.
        faults: Error statuses of the next responses; 0 for a normal response.
    """

    def __init__(self) -> None:
        super().__init__(type("Handler", (_Handler,), {"service": self}))
        self.url = self.url.replace("127.0.0.1", "localhost")  # Beam's client uses REST if this is set.
        self.jobs: list[StoredJob] = []
        self.calls: list[tuple[str, str]] = []
        self.on_get: Callable[[StoredJob], None] = lambda job: None
        self.faults: list[int] = []
        self.lock = threading.RLock()

    @property
    def made(self) -> int:
        """Number of jobs that were created."""
        return len(self.jobs)

    def end(self, job: StoredJob, state: str, *errors: str) -> None:
        """End a job."""
        with self.lock:
            # Rule: a job that has ended does not change (jobs.proto: Job.current_state)
            assert job.state not in ENDED, job.state
            job.state = state
            for text in errors:
                self.say(job, "JOB_MESSAGE_ERROR", text)

    def say(self, job: StoredJob, importance: str, text: str) -> None:
        """Add a message to a job."""
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        job.messages.append({"time": now, "messageText": text, "messageImportance": importance})

    def answer(self, verb: str, target: str, body: bytes) -> dict[str, Any]:
        """Return the JSON of a response."""
        path, _, query = target.partition("?")
        asked = {name: values[-1] for name, values in urllib.parse.parse_qs(query).items()}
        # Rule: a job belongs to a project and a region, and requests name both (jobs.proto: JobsV1Beta3)
        found = re.fullmatch(r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/]+))?(/messages)?", path)
        with self.lock:
            self.calls.append((verb, path))
            if self.faults and (status := self.faults.pop(0)):
                raise RefusedError(status, "Injected.")
            if not found or found[1] != PROJECT:
                raise RefusedError(404, f"There is no {path}.")
            _, region, job_id, messages = found.groups()
            if not job_id:
                return self._create(region, json.loads(body))
            job = next((job for job in self.jobs if (job.id, job.region) == (job_id, region)), None)
            if job is None:
                raise RefusedError(404, f"(f00): Information about job {job_id} could not be found in our system.")
            if messages:
                return self._messages(job, asked)
            if verb == "PUT":
                return self._update(job, json.loads(body))
            self.on_get(job)
            return job.public()

    def _create(self, region: str, asked: dict[str, Any]) -> dict[str, Any]:
        # Rule: a job's name consists of lower-case letters, digits and dashes (jobs.proto: Job.name)
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?", name := asked.get("name", "")):
            raise RefusedError(400, f"Invalid job name: {name!r}.")
        # Rule: temporary files must be on Cloud Storage (environment.proto: Environment.temp_storage_prefix)
        if not re.match(r"storage\.googleapis\.com/[^/]+/", asked["environment"].get("tempStoragePrefix", "")):
            raise RefusedError(400, "Temporary storage must be on Cloud Storage.")
        same = [job for job in self.jobs if (job.asked["name"], job.region) == (name, region)]
        # Rule: a request to create a job fails if a job with the same client request id and name exists (jobs.proto:
        # Job.client_request_id)
        if any(job.asked.get("clientRequestId") == asked.get("clientRequestId") for job in same):
            raise RefusedError(409, "A job with this client request id exists.")
        # Rule: a region has at most one active job of a name, and a request to create another returns that job
        # (jobs.proto: Job.name)
        if active := [job for job in same if job.state not in ENDED]:
            return active[0].public()
        job = StoredJob(asked, f"2026-11-23_00_00_00-{len(self.jobs)}", region)
        self.jobs.append(job)
        return job.public()

    def _messages(self, job: StoredJob, asked: dict[str, str]) -> dict[str, Any]:
        # Rule: a request for messages can name the lowest importance (messages.proto: ListJobMessagesRequest)
        least = _NUMBERS.index(asked.get("minimumImportance", "1"))
        told = [each for each in job.messages if IMPORTANCE.index(each["messageImportance"]) >= least]
        return _page(told, "jobMessages", asked)

    def _update(self, job: StoredJob, asked: dict[str, Any]) -> dict[str, Any]:
        # Rule: a job is cancelled by a requested state, and ends some time later (jobs.proto: Job.requested_state,
        # JOB_STATE_CANCELLING)
        if asked.get("requestedState") != 5:  # JOB_STATE_CANCELLED, by its number as Beam's client sends it.
            raise RefusedError(400, f"Cannot request {asked}.")
        # Rule: the effect of a requested state on a job that has ended is not documented, and the request is refused
        # here (jobs.proto: Job.requested_state)
        if job.state in ENDED:
            raise RefusedError(400, f"The job has ended as {job.state}.")
        job.state = "JOB_STATE_CANCELLING"
        return job.public()


def _page(items: list[Any], field: str, asked: dict[str, str]) -> dict[str, Any]:
    start = int(asked.get("pageToken", 0))
    more = {"nextPageToken": str(start + _PAGE)} if start + _PAGE < len(items) else {}
    return {field: items[start : start + _PAGE], **more}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service: FakeDataflow

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, content = 200, self.service.answer(self.command, self.path, body)
        except RefusedError as error:
            status, words = error.args
            content = {"error": {"code": status, "message": words}}
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = _respond  # noqa: N815 (named by the standard library)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
