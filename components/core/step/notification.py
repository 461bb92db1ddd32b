"""Message about a run that did not succeed, sent to a webhook."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, OutageError, PlatformError
from tpu_components.core.base.states import State, run_state
from tpu_components.core.files import storage
from tpu_components.core.files.vertex_clients import VertexService, join_errors

_CONSOLE = "https://console.cloud.google.com/vertex-ai/locations"
_TIMEOUT_SECONDS = 30
_PATIENCE_SECONDS = 300


def message(run: str, state: str, error: str, resource: str, page: str) -> str:
    """Return the message about a run that ended; empty if it succeeded.

    Args:
        run: Name of the run.
        state: Final state, as the platform names it.
        error: Message of the platform; empty if unknown.
        resource: Name of the pipeline job on Vertex AI, `projects/…/locations/…/pipelineJobs/…`.
        page: Address of the run's page on another platform.

    Example:
        >>> print(message("digits", "FAILED", "train-model: no TPU", "", "https://kubeflow/#/runs/details/1"))
        digits failed: train-model: no TPU
        https://kubeflow/#/runs/details/1
    """
    if run_state(state) is State.SUCCEEDED:
        return ""
    if job_of(resource):
        project, region, job = job_of(resource)
        page = f"{_CONSOLE}/{region}/pipelines/runs/{job}?project={project}"
    return "\n".join(filter(None, [f"{run} {state.lower()}" + (f": {error}" if error else ""), page]))


def job_of(resource: str) -> tuple[str, ...]:
    """Return project, region and id of a pipeline job on Vertex AI; empty for another platform's run."""
    match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/([^/]+)", resource)
    return match.groups() if match else ()


def reasons(resource: str) -> str:
    """Return the error messages of a Vertex AI job's steps; empty on Kubeflow, or if the service does not answer.

    An exit task does not receive the steps' messages. KFP's API does not report them either (kubeflow/pipelines
    backend/src/v2/driver/resolve.go).
    """
    if not job_of(resource):
        return ""
    project, region, _ = job_of(resource)
    try:
        job = VertexService(project, region).call("PipelineService", "get_pipeline_job", {"name": resource})
    except (InputError, PlatformError):
        return ""
    return join_errors({task.task_name: task.error for task in job.job_detail.task_details})


def post(address: str, text: str, backoff: Backoff | None = None) -> None:
    """Send a message to a webhook, as the JSON that chat services accept: `{"text": …}`.

    Args:
        address: The webhook's URL, or a file on gs:// or s3:// that holds it: the URL of a chat's webhook is a secret.
        text: The message.
        backoff: Retry policy; the default gives up after 5 minutes.

    Raises:
        InputError: If the webhook refuses the message.
        PlatformError: If the webhook does not answer.
    """
    url = storage.read_bytes(address).decode().strip() if storage.is_remote(address) else address
    host = urllib.parse.urlsplit(url).hostname  # No more of the URL goes into a log.
    body, headers = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}

    def send() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 429 or error.code >= 500:
                raise OutageError(f"The webhook at {host} answers {error.code} {error.reason}.") from error
            raise InputError(
                f"The webhook at {host} refused the message: {error.code} {error.reason}. Check TPU_PIPELINES_NOTIFY."
            ) from error
        except OSError as error:
            raise OutageError(f"The webhook at {host} does not answer: {error}") from error

    (backoff or Backoff(patience_seconds=_PATIENCE_SECONDS))(send)
