"""The commands `status` and `cancel` for jobs on a platform, and functions with which other commands follow a job."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import DONE, FAILED, REJECTED, InputError
from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import NOT_PROMOTED, State
from tpu_components.core.base.terminal import hide_credentials
from tpu_pipelines.cli.output import show, show_text, tell_error, tell_hint
from tpu_pipelines.config.settings import Settings, load_settings
from tpu_pipelines.platforms.jobs import Retrying, Submission
from tpu_pipelines.platforms.platform import PLATFORMS, Platform


def connect(platform: Platform, settings: Settings) -> Retrying:
    """Return a platform's client with retries.

    Raises:
        InputError: If a setting that the platform requires is missing.
    """
    return Retrying(platform.connect(settings), Backoff(report=tell_hint))


class StatePrinter:
    """Prints changes of a run's state."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, submission: Submission) -> None:
        """Print the state of a run and of its steps, without the lines that were printed before."""
        lines = [f"{submission.job_id}: {submission.state} on {submission.machine}, {submission.url}"]
        lines += [f"[{step}] {state}" for step, state in submission.steps.items()]
        for line in lines:
            if (key := f"{submission.job_id} {line}") not in self._known:
                self._known.add(key)
                show_text(line, sys.stderr)


def tell_submission(submission: Submission, as_json: bool, facts: Mapping[str, Any] = {}) -> int:
    """Print the state of a run and return the exit code.

    Args:
        submission: The run.
        as_json: Whether to print JSON instead of text.
        facts: Additional fields of the JSON output.
    """
    lines = [f"{submission.job_id}: {submission.state}, to train on {submission.machine}", ""]
    lines += [f"  {step:<20}{state}" for step, state in submission.steps.items()]
    lines += ["", f"  run   {submission.url}", f"  logs  {submission.logs_url}"]
    known = dataclasses.asdict(submission)
    known |= {"passed_gate": submission.passed_gate, "promoted": submission.promoted, "result": submission.result}
    show({**known, **facts}, "\n".join(lines), as_json)
    if submission.state in (State.FAILED, State.CANCELLED):
        tell_error(f"{submission.error or submission.state}")
        tell_hint("`tpu-pipelines submit … --again` starts it again")
        return FAILED
    return REJECTED if submission.result == NOT_PROMOTED else DONE


def status(arguments: argparse.Namespace) -> int:
    """Print the state of the latest run with a given name and return the exit code."""
    return tell_submission(_latest(arguments)[1], arguments.json)


def cancel(arguments: argparse.Namespace) -> int:
    """Stop the latest run with a given name and return the exit code."""
    submitter, submission = _latest(arguments)
    if submission.state.is_final:
        show_text(f"{submission.job_id}: already {submission.state}")
        return DONE
    submitter.cancel(submission.job_id)
    show_text(f"{submission.job_id}: being cancelled")
    return DONE


def _latest(arguments: argparse.Namespace) -> tuple[Retrying, Submission]:
    """Return the platform's client, and the latest run with the given name."""
    settings = load_settings(os.environ, arguments.settings)
    platform = PLATFORMS[arguments.target]
    submitter = connect(platform, settings)
    if (submission := submitter.latest(arguments.name)) is None:
        where = ", ".join(f"{name} {getattr(settings, name)}" for name in platform.required_settings)
        place = f"with {hide_credentials(where)}" if where else f"on {platform.title}"
        raise InputError(
            f"There is no run {arguments.name!r} {place}: expected the name of a submitted configuration, or the ID "
            "of a job. Check the name and the settings."
        )
    return submitter, submission
