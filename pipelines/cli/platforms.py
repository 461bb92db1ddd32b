"""Commands that meet a cloud platform: compile, submit, status, cancel, schedule."""

import argparse
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_pipelines.cli.options import (
    DONE,
    FAILED,
    REJECTED,
    add_config,
    add_target,
    add_wait,
    output_file,
    show_findings,
    show_text,
    tell_error,
    tell_findings,
    tell_hint,
    user_path,
)


def _add_compile(commands: Any) -> None:
    compile_ = commands.add_parser(
        "compile",
        epilog="Example: tpu-pipelines compile digits --target vertex --output digits.yaml",
        help="write the pipeline as a file for a cloud platform",
        description="Write the pipeline as a file for a cloud platform, training on the machine of the configuration. "
        "Needs no account; settings that are known by now go into the file.",
    )
    add_config(compile_)
    add_target(compile_, required=True)
    compile_.add_argument("--output", type=user_path, required=True, metavar="FILE", help="as pipeline.yaml")
    compile_.set_defaults(command=_compile)


def _compile(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.config.settings import load_settings
    from tpu_pipelines.pipeline.compile import compile_pipeline

    config = load_config(arguments.config, arguments.overrides)
    settings = load_settings(os.environ, arguments.settings)
    compiled = compile_pipeline(config, arguments.target, arguments.output, settings)
    _tell_sent(arguments.target, compiled.image, config.training.model, compiled.carried)
    for place, content in compiled.carried.items():
        path = _write_beside(compiled.path, place, content)
        tell_hint(f"the model travels beside the pipeline: gcloud storage cp {path} {place}")
    show_text(f"{compiled.path}: {config.name} for {arguments.target}, to train on {compiled.machine.slice}")
    show_text(compiled.timeout.reason)
    return DONE


def _write_beside(output: Path, place: str, content: bytes) -> Path:
    """Write a model beside its pipeline, by its name and its digest: no other file has that name."""
    from tpu_components.core.files import storage

    digest, name = place.split("/")[-2:]
    path = output.parent / f"{Path(name).stem}-{digest[:12]}{Path(name).suffix}"
    storage.write_bytes(path, content)
    return path


def _tell_sent(target: str, image: str, model: str, carried: Mapping[str, bytes]) -> None:
    """Hint at an image that may change, and at the files that travel with a model's code."""
    from tpu_pipelines.checking.platform_check import image_check, model_findings
    from tpu_pipelines.doctor.findings import answer

    tell_findings([*answer(image_check(image, target)), *model_findings(model, carried)])


def connect(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the settings, and the platform, which repeats what an outage stops. Missing settings are named first."""
    from tpu_pipelines.config.settings import TARGET_SETTINGS, load_settings

    settings = load_settings(os.environ, arguments.settings)
    settings.require(*TARGET_SETTINGS[arguments.target])
    from tpu_components.core.base.retries import Backoff
    from tpu_pipelines.platforms.jobs import Retrying

    platform = importlib.import_module(f"tpu_pipelines.platforms.{arguments.target}").connect(settings)
    return settings, Retrying(platform, Backoff(report=tell_hint))


def _add_submit(commands: Any) -> None:
    submit = commands.add_parser(
        "submit",
        epilog="Example: tpu-pipelines submit digits --set machine=v5e-4 --wait",
        help="run the pipeline on a cloud platform",
        description="Compile the pipeline and start it on a cloud platform. The same configuration, data and code are "
        "the same run: it is started once, and found when it is submitted again. Where its machine cannot be had, the "
        "fallbacks are tried.",
    )
    add_config(submit)
    add_target(submit)
    add_wait(submit)
    submit.add_argument("--again", action="store_true", help="start it once more if it has ended")
    add_no_doctor(submit)
    submit.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    submit.add_argument("--output", type=output_file, metavar="FILE", help="of a dry run: write what is sent, as JSON")
    submit.add_argument(
        "--json", action="store_true", help="print the run, or of a dry run what is sent, as JSON alone on stdout"
    )
    submit.set_defaults(command=_submit)


def add_no_doctor(parser: Any) -> None:
    """Add the way around what is asked first."""
    parser.add_argument(
        "--no-doctor", action="store_true", help="do not ask first for sign-in, bucket, image and service account"
    )


def plan_checked(arguments: argparse.Namespace, config: Any, settings: Any) -> Any:
    """Return a run as it would be sent; refuses a model that would fail once it costs money.

    Where the data have to be downloaded, the steps find what is wrong with the model.
    """
    from tpu_pipelines.checking.model_check import check_model_works, needs_check
    from tpu_pipelines.pipeline.compile import require_step_image
    from tpu_pipelines.submission.submit import plan_submission

    plan = plan_submission(config, arguments.target, settings)
    if plan.data is not None and needs_check(config):
        check_model_works(config, plan.data)
    if not arguments.dry_run:
        require_step_image(plan.image, arguments.target)
    _tell_sent(arguments.target, plan.image, config.training.model, plan.carried)
    return plan


def _submit(arguments: argparse.Namespace) -> int:
    if arguments.output and not arguments.dry_run:
        from tpu_components.core.base.errors import InputError

        raise InputError("--output is of a dry run: expected --dry-run beside it. Add that, or leave --output out.")
    settings, submitter = connect(arguments)
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.submission.submit import submit

    config = load_config(arguments.config, arguments.overrides)
    plan = plan_checked(arguments, config, settings)
    for said in filter(None, (plan.timeout, plan.resources)):
        tell_hint(said)
    if arguments.dry_run:
        _tell_dry_run(arguments, config, plan, [submitter.describe(job) for job in plan.jobs])
        return DONE
    ask_first(arguments, config, settings, plan.image)
    return _follow(arguments, plan, submit(plan, submitter, arguments.again), submitter)


def ask_first(arguments: argparse.Namespace, config: Any, settings: Any, image: str) -> None:
    """Refuse a run that cannot work, unless nobody is to be asked; hint at what only may stand in its way."""
    from tpu_pipelines.checking.check_list import require_ready

    if not arguments.no_doctor:
        tell_findings(require_ready(config, arguments.target, settings, image))


def _tell_dry_run(arguments: argparse.Namespace, config: Any, plan: Any, requests: list[Any]) -> None:
    """Say what the run would be and what is missing; its specification is long, and printed or written if asked for."""
    from tpu_components.core.files import storage
    from tpu_pipelines.submission.submit import describe

    stream = sys.stderr if arguments.json else sys.stdout
    show_text(f"{config.name} for {arguments.target}, not sent (dry run)\n", stream)
    show_findings(list(describe(config, plan, arguments.target)), stream=stream)
    show_text("", stream)
    content = json.dumps(requests, indent=2)
    if arguments.output:
        storage.write_bytes(arguments.output, f"{content}\n".encode())
    if arguments.json:
        print(content)
    elif not arguments.output:
        tell_hint("--output FILE writes what is sent, and --json prints it")


def _follow(
    arguments: argparse.Namespace, plan: Any, submission: Any, submitter: Any, facts: Mapping[str, Any] = {}
) -> int:
    """Wait for a run if that is asked for, and tell what is known of it, and `facts` beside."""
    from tpu_pipelines.submission.submit import wait

    if arguments.wait:
        submission = wait(plan, submission, submitter, Progress(), arguments.poll_seconds)
    return tell_submission(submission, arguments.json, facts)


class Progress:
    """Prints what is new of a run."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, submission: Any) -> None:
        """Print each line once."""
        lines = [f"{submission.job_id}: {submission.state} on {submission.machine}, {submission.url}"]
        lines += [f"[{step}] {state}" for step, state in submission.steps.items()]
        for line in lines:
            if (key := f"{submission.job_id} {line}") not in self._known:
                self._known.add(key)
                show_text(line, sys.stderr)


def tell_submission(submission: Any, as_json: bool, facts: Mapping[str, Any] = {}) -> int:
    """Print what is known of a run; the exit code that goes with it."""
    from tpu_components.core.base.states import State

    if as_json:
        print(json.dumps({**dataclasses.asdict(submission), "promoted": submission.promoted, **facts}))
    else:
        show_text(f"{submission.job_id}: {submission.state}, to train on {submission.machine}\n")
        for step, state in submission.steps.items():
            show_text(f"  {step:<20}{state}")
        show_text(f"\n  run   {submission.url}\n  logs  {submission.logs_url}")
    if submission.state in (State.FAILED, State.CANCELLED):
        tell_error(f"{submission.error or submission.state}")
        tell_hint("`tpu-pipelines submit … --again` starts it once more")
        return FAILED
    return REJECTED if submission.state is State.SUCCEEDED and not submission.promoted else DONE


def _add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        epilog="Example: tpu-pipelines status digits",
        help="what became of a run on a cloud platform",
        description="Say what became of the newest run of a name; exits as `submit --wait` does.",
    )
    status.add_argument("name", metavar="NAME", help="of the configuration, or the id of a job")
    add_target(status)
    status.add_argument("--json", action="store_true", help="print the run as JSON, and nothing else, on stdout")
    status.set_defaults(command=lambda arguments: tell_submission(_latest(arguments)[1], arguments.json))


def _add_cancel(commands: Any) -> None:
    cancel = commands.add_parser(
        "cancel",
        epilog="Example: tpu-pipelines cancel digits",
        help="stop a run on a cloud platform",
        description="Stop the newest run.",
    )
    cancel.add_argument("name", metavar="NAME", help="of the configuration, or the id of a job")
    add_target(cancel)
    cancel.set_defaults(command=_cancel)


def _cancel(arguments: argparse.Namespace) -> int:
    submitter, submission = _latest(arguments)
    if submission.state.is_final:
        show_text(f"{submission.job_id}: {submission.state} already")
        return DONE
    submitter.cancel(submission.job_id)
    show_text(f"{submission.job_id}: being cancelled")
    return DONE


def _latest(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the platform, and the newest run of a name."""
    settings, submitter = connect(arguments)
    from tpu_components.core.base.errors import InputError

    if (submission := submitter.latest(arguments.name)) is None:
        where = f"in {settings.project}, {settings.region}"
        if arguments.target == "kubeflow":
            from tpu_pipelines.config.settings import hide_credentials

            where = f"at {hide_credentials(settings.kfp_host)}"
        raise InputError(
            f"There is no run {arguments.name!r} {where}: expected the name of a configuration that was submitted, or "
            "the id of a job. Check the name and the settings."
        )
    return submitter, submission


def _add_schedule(commands: Any) -> None:
    schedule = commands.add_parser(
        "schedule",
        epilog="Example: tpu-pipelines schedule digits --cron '0 3 * * *'",
        help="run the pipeline on a cloud platform at certain times",
        description="Create the schedule of a configuration or change it, and print what changes; there is one for "
        "each name. The platform starts its runs on the configuration's machine; it knows no fallbacks.",
    )
    add_config(schedule)
    actions = schedule.add_mutually_exclusive_group(required=True)
    actions.add_argument("--cron", metavar="EXPRESSION", help="as '0 3 * * *' or 'TZ=Europe/Berlin 0 3 * * 1-5'")
    for action, text in (("pause", "start no more runs"), ("resume", "start runs again"), ("delete", "forget it")):
        actions.add_argument(f"--{action}", action="store_const", const=action, dest="action", help=text)
    add_target(schedule)
    add_no_doctor(schedule)
    schedule.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    schedule.set_defaults(command=_schedule)


def _schedule(arguments: argparse.Namespace) -> int:
    settings, submitter = connect(arguments)
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.submission.schedule import change_state, check_cron, upsert
    from tpu_pipelines.submission.submit import put_carried

    config = load_config(arguments.config, arguments.overrides)
    platform, backoff = submitter.platform, submitter.backoff
    dry = " (dry run)" if arguments.dry_run else ""
    if arguments.action:
        done = {"pause": "paused", "resume": "active", "delete": "deleted"}[arguments.action] + dry
        for schedule in change_state(submitter, config.name, arguments.action, arguments.dry_run):
            show_text(f"{config.name}: {done}, schedule {schedule.schedule_id} at {schedule.cron!r}")
        return DONE
    check_cron(arguments.cron)
    plan = plan_checked(arguments, config, settings)
    if not arguments.dry_run:
        ask_first(arguments, config, settings, plan.image)
        put_carried(plan)
    change = upsert(platform, plan.jobs[0], arguments.cron, backoff, arguments.dry_run)
    if change.difference:
        show_text(change.difference)
    state = "paused" if change.schedule.is_paused else f"next run {change.schedule.next_run or 'not known yet'}"
    show_text(f"{config.name}: {change.action}{dry}, {state}\n{change.schedule.url}")
    if change.duplicates:
        tell_hint(
            f"other schedules have this name and run beside it: {', '.join(change.duplicates)}. `--delete` "
            "deletes all of them",
        )
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_compile,
    _add_submit,
    _add_status,
    _add_cancel,
    _add_schedule,
)
