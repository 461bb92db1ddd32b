"""A job of Google Cloud's Dataflow, by Beam's own client: made once, followed to its end, cancelled with its step."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, MissingError, OutageError, PlatformError
from tpu_components.core.base.termination import Terminated, put_off

_POLL_SECONDS = 10.0
# The reason of a failure takes some 30 s to show up: apache/beam runners/dataflow/dataflow_runner.py,
# poll_for_job_completion.
_LATE_SECONDS, _LATE_POLL_SECONDS = 60.0, 5.0
_MOST_MESSAGES, _MOST_CHARACTERS = 3, 2000
_MISTAKE = re.compile(r"tpu_components\.core\.base\.errors\.InputError: (.+?)(?: \[while running |\\n|\n|$)")


def mistake_in(text: str) -> InputError | None:
    """Return the user's mistake that a worker has met, by the words of its stack trace; None where it met none.

    Example:
        >>> mistake_in("…tpu_components.core.base.errors.InputError: Images differ in size. [while running 'Write']")
        InputError('Images differ in size.')
        >>> mistake_in("MemoryError")
    """
    match = _MISTAKE.search(text)
    return InputError(match[1]) if match else None


class DataflowJob:
    """The job of a pipeline: the active one of its name, or else a new one. Dataflow has one of a name at most.

    Beam's client submits, asks, cancels and repeats what failed. Its `wait_until_finish` does not follow: of a job that
    is being cancelled it gives up after 50 s with an AssertionError, and of a job's errors it keeps one (version 2.77,
    dataflow_runner.py: poll_for_job_completion). Nor can it find a job by its name before the job runs (apiclient.py:
    job_id_for_name), so that a second one is submitted, which the service refuses with the id of the first.

    Args:
        pipeline: Beam's pipeline.
        options: Options of the pipeline.
        step: Name of the step that says how the job goes.
        backoff: Time for which transient errors are retried, beyond what Beam's client retries itself.
    """

    def __init__(self, pipeline: Any, options: Mapping[str, str], step: str, backoff: Backoff | None = None) -> None:
        self._pipeline, self._name, self._step = pipeline, options["job_name"], step
        self._project, self._region = options["project"], options["region"]
        self._backoff = backoff or Backoff()
        self._result: Any = None

    def run(self) -> None:
        """Have the job done. It is cancelled where this process is told to end; the next one finds a killed one's job.

        Raises:
            PlatformError: If the job fails or is cancelled; repeats its own messages.
            InputError: If a worker met a user's mistake, or the service refuses what it is asked.
        """
        try:
            is_new = self._submit()
            if not is_new and self._state() == "CANCELLING":  # The name is free once that job has ended.
                self._wait()
                is_new = self._submit()
            what = f"started the job {self._name}" if is_new else f"following the job {self._name}, which runs already"
            progress.say(self._step, f"{what}: {self._link}")
            state = self._wait()
        except (Terminated, KeyboardInterrupt):
            self._cancel()
            raise
        if state != "DONE":
            raise self._failure(state)

    @property
    def _link(self) -> str:
        """Address of the page that shows the job."""
        job_id = self._result.job_id()
        return f"https://console.cloud.google.com/dataflow/jobs/{self._region}/{job_id}?project={self._project}"

    def _submit(self) -> bool:
        """Make the job, or find the active one of its name; returns whether it is new."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult
        from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

        def submit() -> bool:
            with self._naming_refusals():
                try:
                    self._result = self._pipeline.run()
                    return True
                except DataflowJobAlreadyExistsError as error:
                    job_id = str(error).partition("with id: ")[2].partition(". ")[0]
                    runner = self._pipeline.runner
                    self._result = DataflowPipelineResult(runner.dataflow_client.get_job(job_id), runner)
                    return False

        with put_off():  # Until the job is known that is to be cancelled.
            return self._backoff(submit)

    def _state(self) -> str:
        with self._naming_refusals():
            return str(self._result.state)

    def _wait(self) -> str:
        """Follow the job, say every change of its state, and return its last one."""
        seen = [""]

        def has_ended() -> bool:
            if (state := self._state()) != seen[-1]:
                seen.append(state)
                progress.say(self._step, f"the job is {state.lower().replace('_', ' ')}")
            return bool(self._result.is_in_terminal_state())

        self._backoff.until(has_ended, _POLL_SECONDS, float("inf"))
        return seen[-1]

    def _failure(self, state: str) -> Exception:
        if state == "CANCELLED":
            return PlatformError(
                f"The Dataflow job {self._name} was cancelled, and not by this step. What it has written stays: run "
                f"the step again to go on. {self._link}"
            )
        self._backoff.until(lambda: bool(self._errors()), _LATE_POLL_SECONDS, _LATE_SECONDS)
        errors = self._backoff(self._errors)
        if mistake := next(filter(None, map(mistake_in, errors)), None):
            return mistake
        told = " | ".join(text.strip() for text in errors[-_MOST_MESSAGES:])[-_MOST_CHARACTERS:]
        return PlatformError(
            f"The Dataflow job {self._name} has ended as {state}. It says: {told or 'nothing'}. What it has written "
            f"stays: run the step again to go on. {self._link}"
        )

    def _errors(self) -> list[str]:
        """Return what the job says of its errors, oldest first, each once."""
        client, texts, token = self._pipeline.runner.dataflow_client, list[str](), None
        with self._naming_refusals():
            while token != "":
                page, token = client.list_messages(
                    self._result.job_id(), page_token=token, minimum_importance="JOB_MESSAGE_ERROR"
                )
                texts += [message.message_text for message in page]
        return list(dict.fromkeys(texts))

    def _cancel(self) -> None:
        if self._result is None:
            return
        try:
            with self._naming_refusals():
                self._result.cancel()
            progress.say(self._step, f"cancelled the job {self._name}")
        except (PlatformError, InputError) as error:
            progress.say(self._step, f"the job {self._name} could not be cancelled: {error}")

    @contextlib.contextmanager
    def _naming_refusals(self) -> Iterator[None]:
        """Turn what Beam's client raises into what it means for whoever asked.

        Raises:
            OutageError: If the same may succeed later.
            InputError: If the service refuses for another reason; repeats its message.
        """
        import requests
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth import exceptions

        try:
            yield
        except GoogleAPICallError as error:
            words = re.sub(r"^[A-Z]+ \S+: ", "", str(error.message))  # It begins with what was asked, and where.
            raise _refusal(int(error.code or 500), words, f"{self._project}, {self._region}") from error
        except (requests.RequestException, exceptions.TransportError) as error:
            raise OutageError(f"Dataflow cannot be reached: {error}") from error
        except exceptions.GoogleAuthError as error:
            raise InputError(
                f"Cannot ask Dataflow: the sign-in is not, or no longer, valid ({error}). Run `gcloud auth "
                "application-default login`."
            ) from error


def _refusal(status: int, message: str, where: str) -> Exception:
    if status == 429 or status >= 500:
        return OutageError(f"Dataflow cannot answer now: {status} {message}")
    if status == 404:
        return MissingError(f"Dataflow has no such job or place in {where}: {message}. Check the region.")
    advice = {
        401: "Run `gcloud auth application-default login`.",
        403: "Switch on dataflow.googleapis.com, and give this account the role roles/dataflow.developer.",
    }.get(status, "Check beam_options.")
    return InputError(f"Dataflow refused in {where}: {message} {advice}")
