"""Commands that submit to a cloud platform or check it: compile, submit, schedule, doctor."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import BAD_INPUT, DONE, InputError
from tpu_components.core.base.retries import Backoff
from tpu_components.core.base.states import Status
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_pipelines.checks.check_list import (
    ASKED,
    examine,
    first_checks,
    image_check,
    model_findings,
    require_first,
    require_ready,
)
from tpu_pipelines.cli.jobs import StatePrinter, connect, tell_submission
from tpu_pipelines.cli.output import show_findings, show_text, tell_hint
from tpu_pipelines.config.configuration import Config, load_config
from tpu_pipelines.config.settings import Settings, load_settings
from tpu_pipelines.pipeline import compile as compiling
from tpu_pipelines.platforms.findings import Finding, answer, as_script, ask_all, errors_in
from tpu_pipelines.platforms.platform import PLATFORMS, Platform
from tpu_pipelines.runs.prerequisites import check_model_works, needs_check
from tpu_pipelines.starting.data_copy import copy_words
from tpu_pipelines.submission.schedule import change_state, check_cron, upsert
from tpu_pipelines.submission.submit import RunPlan, describe, plan_submission, put_carried, wait
from tpu_pipelines.submission.submit import submit as submit_run


def write_pipeline(arguments: argparse.Namespace) -> int:
    """Write the pipeline as a file for a platform and return the exit code."""
    config = load_config(arguments.config, arguments.overrides)
    settings = load_settings(os.environ, arguments.settings)
    output = arguments.output
    platform = PLATFORMS[arguments.target]
    compiling.check_output(output)
    compiled = compiling.compile_pipeline(config, platform, settings)
    storage.write_bytes(output, compiled.package.encode())
    tell_sent(platform, settings, config.training.model, compiled.run.carried)
    for uri, content in compiled.run.carried.items():
        place = Location(uri)
        # The name contains the digest, so no other file is overwritten.
        path = output.parent / f"{Path(place.name).stem}-{place.parent.name[:12]}{Path(place.name).suffix}"
        storage.write_bytes(path, content)
        tell_hint(f"copy the model, which was written next to the pipeline: {shlex.join(copy_words(str(path), place))}")
    show_text(f"{output}: {config.name} for {arguments.target}, to train on {compiled.run.machine.slice}")
    show_text(compiled.run.timeout.reason)
    return DONE


def tell_sent(platform: Platform, settings: Settings, model: str, carried: Mapping[str, bytes]) -> None:
    """Print hints about the image of a run, and about the files that are uploaded with the model's code.

    Args:
        platform: The platform.
        settings: Settings with the images.
        model: Model of the configuration.
        carried: Content of each uploaded file by its destination.
    """
    _tell_findings([*answer(image_check(platform, settings.images)), *model_findings(model, carried)])


def _tell_findings(findings: Iterable[Finding]) -> None:
    """Print hints for all findings that are not ok."""
    for finding in findings:
        if finding.state != Status.OK:
            tell_hint(str(finding))


def plan_checked(arguments: argparse.Namespace, config: Config, settings: Settings) -> RunPlan:
    """Return the plan of a run. Check its model first, so that a broken model is found before it costs anything.

    If the data have to be downloaded first, the model is not checked here, but only when the steps run.

    Raises:
        InputError: If the run cannot be planned, or the model does not work.
    """
    plan = plan_submission(config, PLATFORMS[arguments.target], settings)
    if plan.data is not None and needs_check(config):
        check_model_works(config, plan.data)
    return plan


def ask_first(arguments: argparse.Namespace, config: Config, settings: Settings) -> None:
    """Run quick checks of the platform before a run is submitted, unless --no-doctor is set. Print hints.

    Raises:
        InputError: If the run would fail.
    """
    if not arguments.no_doctor:
        _tell_findings(require_ready(config, PLATFORMS[arguments.target], settings))


def submit(arguments: argparse.Namespace) -> int:
    """Compile the pipeline and start its run, or find the run if it was already started. Return the exit code."""
    if arguments.output and not arguments.dry_run:
        raise InputError("--output requires --dry-run. Add --dry-run, or remove --output.")
    settings = load_settings(os.environ, arguments.settings)
    platform = PLATFORMS[arguments.target]
    config = load_config(arguments.config, arguments.overrides)
    if not arguments.dry_run:
        require_first(config, platform, settings)
    elif not _has_all_first(arguments, config, settings):
        return BAD_INPUT
    submitter = connect(platform, settings)
    plan = plan_checked(arguments, config, settings)
    tell_hint(plan.runs[0].timeout.reason)
    if arguments.dry_run:
        _tell_dry_run(arguments, config, plan, [submitter.describe(job) for job in plan.jobs])
        return DONE
    if plan.resources:
        tell_hint(plan.resources)
    tell_sent(platform, settings, config.training.model, plan.carried)
    ask_first(arguments, config, settings)
    submission = submit_run(plan, submitter, arguments.again)
    if arguments.wait:
        submission = wait(plan, submission, submitter, StatePrinter(), arguments.poll_seconds)
    return tell_submission(submission, arguments.json)


def _has_all_first(arguments: argparse.Namespace, config: Config, settings: Settings) -> bool:
    """Return whether a dry run can be planned.

    If it cannot, print everything that is missing, in the order in which it is needed.
    """
    findings = ask_all(first_checks(config, PLATFORMS[arguments.target], settings))
    if all(error.about == "image" for error in errors_in(findings)):
        return True
    stream = sys.stderr if arguments.json else sys.stdout
    show_text(f"{config.name} for {arguments.target}, not sent (dry run)\n", stream)
    show_findings(findings, stream=stream)
    return False


def _tell_dry_run(arguments: argparse.Namespace, config: Config, plan: RunPlan, requests: Sequence[Any]) -> None:
    """Print the planned run and its missing requirements.

    --json also prints the requests, and --output writes them.
    """
    stream = sys.stderr if arguments.json else sys.stdout
    show_text(f"{config.name} for {arguments.target}, not sent (dry run)\n", stream)
    show_findings(list(describe(config, plan)), stream=stream)
    show_text("", stream)
    content = json.dumps(requests, indent=2)
    if arguments.output:
        storage.write_bytes(arguments.output, f"{content}\n".encode())
    if arguments.json:
        print(content)
    elif not arguments.output:
        tell_hint("--output FILE writes the request, and --json prints it")


def schedule(arguments: argparse.Namespace) -> int:
    """Create, change, pause, resume or delete the schedule of a configuration. Return the exit code."""
    config = load_config(arguments.config, arguments.overrides)
    settings = load_settings(os.environ, arguments.settings)
    platform = PLATFORMS[arguments.target]
    if not arguments.action:
        check_cron(arguments.cron)
        require_first(config, platform, settings, needs_image=not arguments.dry_run)
    dry = " (dry run)" if arguments.dry_run else ""
    if arguments.action:
        done = {"pause": "paused", "resume": "active", "delete": "deleted"}[arguments.action] + dry
        for changed in change_state(connect(platform, settings), config.name, arguments.action, arguments.dry_run):
            show_text(f"{config.name}: {done}, schedule {changed.schedule_id} at {changed.cron!r}")
        return DONE
    # Without retries: repeating a request could create a second schedule, so `upsert` retries as a whole.
    client = platform.connect(settings)
    plan = plan_checked(arguments, config, settings)
    tell_sent(platform, settings, config.training.model, plan.carried)
    if not arguments.dry_run:
        ask_first(arguments, config, settings)
        put_carried(plan)
    change = upsert(client, plan.jobs[0], arguments.cron, Backoff(report=tell_hint), arguments.dry_run)
    if change.difference:
        show_text(change.difference)
    state = "paused" if change.schedule.is_paused else f"next run {change.schedule.next_run or 'unknown'}"
    show_text(f"{config.name}: {change.action}{dry}, {state}\n{change.schedule.url}")
    if change.duplicates:
        tell_hint(
            f"other schedules with this name also start runs: {', '.join(change.duplicates)}. `--delete` "
            "deletes all of them",
        )
    return DONE


def doctor(arguments: argparse.Namespace) -> int:
    """Check that a platform has everything that a run needs. Return 2 if there are errors or hints, otherwise 0."""
    settings = load_settings(os.environ, arguments.settings)
    config = load_config(arguments.config, arguments.overrides)
    findings = examine(config, ASKED, PLATFORMS[arguments.target], settings, context=arguments.kube_context)
    show_findings(findings, arguments.json)
    if arguments.script:
        title = (
            f"Creates and grants everything that `tpu-pipelines doctor` found missing for {config.name} on "
            f"{arguments.target}."
        )
        storage.write_bytes(arguments.script, as_script(findings, title).encode())
        has_commands = any(finding.commands for finding in findings)
        advice = "read {0}, then run it: bash {0}" if has_commands else "{0} contains no commands; follow its comments"
        tell_hint(advice.format(shlex.quote(str(arguments.script))))
    return BAD_INPUT if {Status.ERROR, Status.HINT} & {finding.state for finding in findings} else DONE
