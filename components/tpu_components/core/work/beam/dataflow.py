"""Jobs on Google Cloud Dataflow. A step starts its job once, waits for it to end, and cancels it on SIGTERM."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import Backoff, PlatformError
from tpu_components.core.base.termination import Terminated, put_off
from tpu_components.core.files.vertex_clients import google_errors

_POLL_SECONDS = 10.0
# The reason for a failure is available only some 30 s after it: apache/beam runners/dataflow/dataflow_runner.py,
# poll_for_job_completion.
_LATE_SECONDS, _LATE_POLL_SECONDS = 60.0, 5.0
_MOST_MESSAGES, _MOST_CHARACTERS = 3, 2000
_MISTAKE = re.compile(r"tpu_components\.core\.base\.errors\.InputError: (.+?)(?: \[while running |\\n|\n|$)")


def mistake_in(text: str) -> InputError | None:
    """Return the InputError (a user's mistake) in a worker's stack trace, or None if there is none.

    Example:
        >>> mistake_in("…tpu_components.core.base.errors.InputError: Images differ in size. [while running 'Write']")
        InputError('Images differ in size.')
        >>> mistake_in("MemoryError")
    """
    match = _MISTAKE.search(text)
    return InputError(match[1]) if match else None


class DataflowJob:
    """The Dataflow job of a pipeline: the active job with the name `options["job_name"]`, or a new job.

    Dataflow allows at most one active job with a given name.

    Beam's client submits, polls and cancels the job, and retries transient errors. The client's `wait_until_finish` is
    not used: while a job is being cancelled, it gives up after 50 s with an AssertionError, and it reports only one of
    several errors (version 2.77, dataflow_runner.py: poll_for_job_completion). The client cannot find a job by its name
    before the job runs (apiclient.py: job_id_for_name). Therefore, a new job is always submitted. If a job with this
    name is already active, the service rejects the new job with an error that contains the ID of the active job.

    Args:
        pipeline: Beam's pipeline.
        options: Options of the pipeline.
        step: Name of the step in log messages.
        backoff: Retry policy for transient errors that Beam's client reports after its own retries.
    """

    def __init__(self, pipeline: Any, options: Mapping[str, str], step: str, backoff: Backoff | None = None) -> None:
        self._pipeline = pipeline
        self._name = options["job_name"]
        self._step = step
        self._project = options["project"]
        self._region = options["region"]
        self._backoff = backoff or Backoff()
        self._result: Any = None

    def run(self) -> None:
        """Run the job and wait for it to end.

        The job is cancelled if this process receives SIGTERM. If the process is killed, its job continues, and the next
        process finds the job.

        Raises:
            PlatformError: If the job fails or is cancelled. The message contains the job's error messages.
            InputError: If a worker reports a user's mistake, or the service rejects the job.
        """
        try:
            is_new = self._submit()
            if not is_new and self._state() == "CANCELLING":  # Its name can be used again after it has ended.
                self._wait()
                is_new = self._submit()
            what = f"started the job {self._name}" if is_new else f"following the running job {self._name}"
            progress.say(self._step, f"{what}: {self._link}")
            state = self._wait()
        except (Terminated, KeyboardInterrupt):
            self._cancel()
            raise
        if state != "DONE":
            raise self._failure(state)

    @property
    def _link(self) -> str:
        """URL of the job's page."""
        job_id = self._result.job_id()
        return f"https://console.cloud.google.com/dataflow/jobs/{self._region}/{job_id}?project={self._project}"

    def _submit(self) -> bool:
        """Start the job, or find the active job with its name. Return whether the job is new."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult
        from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

        def submit() -> bool:
            with self._translated():
                try:
                    self._result = self._pipeline.run()
                    return True
                except DataflowJobAlreadyExistsError as error:
                    job_id = str(error).partition("with id: ")[2].partition(". ")[0]
                    runner = self._pipeline.runner
                    self._result = DataflowPipelineResult(runner.dataflow_client.get_job(job_id), runner)
                    return False

        with put_off():  # Delays signals until the id of the job is known, so that it can be cancelled.
            return self._backoff(submit)

    def _state(self) -> str:
        with self._translated():
            return str(self._result.state)

    def _wait(self) -> str:
        """Wait for the job and log every change of its state. Return the last state."""
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
                f"The Dataflow job {self._name} was cancelled, but not by this step. Its finished work is kept: run "
                f"the step again to continue. {self._link}"
            )
        self._backoff.until(lambda: bool(self._errors()), _LATE_POLL_SECONDS, _LATE_SECONDS)
        errors = self._backoff(self._errors)
        if mistake := next(filter(None, map(mistake_in, errors)), None):
            return mistake
        told = " | ".join(text.strip() for text in errors[-_MOST_MESSAGES:])[-_MOST_CHARACTERS:]
        return PlatformError(
            f"The Dataflow job {self._name} ended in the state {state}. Its messages: {told or 'none'}. Its finished "
            f"work is kept: run the step again to continue. {self._link}"
        )

    def _errors(self) -> list[str]:
        """Return the job's error messages, oldest first and without duplicates."""
        client = self._pipeline.runner.dataflow_client
        texts = list[str]()
        token = None
        with self._translated():
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
            with self._translated():
                self._result.cancel()
            progress.say(self._step, f"cancelled the job {self._name}")
        except (PlatformError, InputError) as error:
            progress.say(self._step, f"the job {self._name} could not be cancelled: {error}")

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        advice = "Enable dataflow.googleapis.com, and give this account the role roles/dataflow.developer."
        return google_errors(
            "Dataflow", "run the job", f"{self._project}, {self._region}", advice, " Check beam_options."
        )
