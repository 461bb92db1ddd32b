"""Messages to a webhook about runs that did not succeed."""

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, OutageError, PlatformError
from tpu_components.core.base.states import State, run_state
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.files.vertex_clients import VertexService, join_errors

_CONSOLE = "https://console.cloud.google.com/vertex-ai/locations"
_TIMEOUT_SECONDS = 30
_PATIENCE_SECONDS = 300
_ADVICE = "Check TPU_PIPELINES_NOTIFY."
# KFP computes the final state whenever the pod of a step ends. It is still RUNNING if no pod ended last: after a step
# from the cache, a branch that was not taken, a killed step, or a cancelled run (kubeflow/pipelines at 7b70c7b,
# backend/src/v2/driver/resolve.go: TaskFinalStatus; backend/src/v2/component/launcher_v2.go: Execute).
_UNKNOWN_OUTCOME = "has ended, but Kubeflow does not report how"


def message(run: str, state: str, error: str, resource: str, page: str) -> str:
    """Return the message to send about a run that ended, or an empty string if the run succeeded.

    There is also a message for cancelled runs. On Kubeflow, an exit task, which runs at the end of every run, sends it.
    Cancelling a run only sets its deadline to 0, and deadlines do not apply to exit tasks (kubeflow/pipelines
    backend/src/common/util/execution_spec.go: GetTerminatePatch; argoproj/argo-workflows at f016ad8,
    workflow/controller/exec_control.go and workflowpod.go).

    Args:
        run: Name of the run.
        state: Final state, as the platform names it.
        error: Message of the platform. Empty if unknown.
        resource: Name of the pipeline job on Vertex AI, `projects/…/locations/…/pipelineJobs/…`. The message links to
            the job's page. Names of another form are ignored.
        page: Address of the run's page, for runs on another platform.

    Example:
        >>> print(message("digits", "FAILED", "train-model: no TPU", "", "https://kubeflow/#/runs/details/1"))
        digits failed: train-model: no TPU
        https://kubeflow/#/runs/details/1
    """
    ended = run_state(state)
    if ended is State.SUCCEEDED:
        return ""
    if job_of(resource):
        project, region, job = job_of(resource)
        page = f"{_CONSOLE}/{region}/pipelines/runs/{job}?project={project}"
    outcome = state.lower() if ended.is_final else _UNKNOWN_OUTCOME
    return "\n".join(filter(None, [f"{run} {outcome}" + (f": {error}" if error else ""), page]))


def job_of(resource: str) -> tuple[str, ...]:
    """Return the project, region and ID of a pipeline job on Vertex AI, from the name of its resource.

    Return an empty tuple for a run on another platform.
    """
    match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/([^/]+)", resource)
    return match.groups() if match else ()


def reasons(resource: str) -> str:
    """Return the error messages of the steps of a Vertex AI pipeline job, as one text.

    Return an empty string on Kubeflow, or if the request for the job fails.

    The task that notifies the user does not receive the steps' error messages, so it calls this function. On Kubeflow,
    KFP's API does not report them either (kubeflow/pipelines backend/src/v2/driver/resolve.go).
    """
    if not job_of(resource):
        return ""
    project, region, _ = job_of(resource)
    try:
        job = VertexService(project, region).call("PipelineService", "get_pipeline_job", {"name": resource})
    except (InputError, PlatformError):
        return ""
    return join_errors({task.task_name: task.error for task in job.job_detail.task_details})


class _Refusing(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirects.

    For a redirect, urllib would drop the body and send the request to another host.
    """

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that urllib raises an HTTPError for the redirect."""


def post(address: str, text: str, backoff: Backoff | None = None) -> None:
    """Send a message to a webhook as the JSON that chat services accept: `{"text": …}`.

    Args:
        address: The webhook's URL. If the URL is a secret, pass the path of a file on gs:// or s3:// that contains it.
        text: The message.
        backoff: Retry policy; the default gives up after 5 minutes.

    Raises:
        InputError: If the URL is malformed, or the webhook rejects or redirects the message.
        PlatformError: If the webhook does not respond.
    """
    url = (
        storage.read_bytes(address).decode(errors="replace").strip("\ufeff \r\n\t")
        if Location(address).is_remote
        else address
    )
    host = _host_of(url, address)  # The rest of the URL must not appear in a log.
    opener = urllib.request.build_opener(_Refusing)
    body = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json"}

    def send() -> None:
        try:
            with opener.open(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 429 or error.code >= 500:
                raise OutageError(f"The webhook at {host} failed: {error.code} {error.reason}.") from error
            if 300 <= error.code < 400:
                raise InputError(
                    f"The webhook at {host} redirects to another address ({error.code} {error.reason}), so the message "
                    f"was not sent. {_ADVICE} Use the final URL."
                ) from error
            raise InputError(
                f"The webhook at {host} rejected the message: {error.code} {error.reason}. {_ADVICE}"
            ) from error
        except OSError as error:
            raise OutageError(f"The webhook at {host} does not respond: {error}") from error
        except (http.client.HTTPException, ValueError) as error:  # ValueError: a host name that DNS cannot hold.
            kind = type(error).__name__  # The message may contain the URL.
            raise InputError(f"The webhook at {host} did not send a valid HTTP response ({kind}). {_ADVICE}") from None

    (backoff or Backoff(patience_seconds=_PATIENCE_SECONDS))(send)


def _host_of(url: str, address: str) -> str:
    """Return the host of a webhook's URL.

    Args:
        url: The URL.
        address: The URL, or the path of the file that contains it. A path is not secret, so the message names it.

    Raises:
        InputError: If the URL is not a valid URL of a webhook. The message does not contain the URL, which may be a
            secret.
    """
    fault = ""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            fault = "it does not begin with https:// or http://"
        elif not parts.hostname or parts.port == 0:
            fault = "it has no host"
        elif "@" in parts.netloc:
            fault = "it has a user name"
        elif not url.isascii() or not url.isprintable() or " " in url:
            fault = "it has spaces, several lines or characters that are not allowed in a URL"
    except ValueError:  # A bracket, or a port that is not a number.
        fault = "its host or port is malformed"
    if fault:
        place = address if Location(address).is_remote else "the setting notify"
        raise InputError(
            f"Cannot send the message: {place} must contain only the URL of a webhook, https://HOST/PATH, but "
            f"{fault}. The URL is not shown, because it may be a secret. {_ADVICE}"
        )
    return str(parts.hostname)
