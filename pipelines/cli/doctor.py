"""Commands that ask a platform what it has and what it does: doctor, smoke."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tpu_components.core.base.states import Status
from tpu_pipelines.cli.options import (
    BAD_INPUT,
    DONE,
    FAILED,
    add_config,
    add_poll,
    add_set,
    add_target,
    output_file,
    show_findings,
    show_text,
)
from tpu_pipelines.cli.platforms import Progress, ask_first, connect


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        epilog="Example: tpu-pipelines doctor digits --target vertex",
        help="what a cloud platform still lacks for a run",
        description="Ask a cloud platform, reading alone, for everything that a run of the configuration needs there: "
        "ok is there; error is missing and hint is not as it should be, with what to do; unknown is what it does not "
        "say to you. Exits with 2 at an error or a hint.",
    )
    add_config(doctor)
    add_target(doctor)
    doctor.add_argument("--kube-context", default="", metavar="NAME", help="kubeflow: ask its cluster, too, as kubectl")
    doctor.add_argument("--json", action="store_true", help="print a JSON list, and nothing else, on stdout")
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.checking.check_list import ASKED, examine
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.config.settings import TARGET_SETTINGS, load_settings

    settings = load_settings(os.environ, arguments.settings)
    settings.require(*TARGET_SETTINGS[arguments.target])
    config = load_config(arguments.config, arguments.overrides)
    findings = examine(config, ASKED, arguments.target, settings, context=arguments.kube_context)
    show_findings(findings, arguments.json)
    return BAD_INPUT if {Status.ERROR, Status.HINT} & {finding.state for finding in findings} else DONE


def _add_smoke(commands: Any) -> None:
    smoke = commands.add_parser(
        "smoke",
        epilog="Example: tpu-pipelines smoke --target vertex --machine v5e-1 --yes",
        help="the smallest run on a cloud platform, for what only that can say",
        description="Send the smallest run, the digits on one TPU, twice: the second time the platform's cache is to "
        "answer. Prints as a table what only the platform can say: user and rights, the TPU seen, times, cache. Says "
        "the price first, and sends nothing without --yes.",
    )
    add_target(smoke)
    add_set(smoke)
    smoke.add_argument("--machine", default="v5e-1", metavar="NAME", help="to train on (default: v5e-1)")
    smoke.add_argument("--yes", action="store_true", help="the price is fine: send it")
    add_poll(smoke)
    smoke.add_argument("--no-doctor", action="store_true", help="as of submit")
    smoke.add_argument("--json", action="store_true", help="print questions and answers as JSON on stdout")
    smoke.add_argument(
        "--report", type=output_file, metavar="FILE", help="write what the platform answered as rules for a fake of it"
    )
    smoke.set_defaults(command=_smoke)


def _smoke(arguments: argparse.Namespace) -> int:
    settings, submitter = connect(arguments)
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.files import storage
    from tpu_pipelines.pipeline.compile import require_step_image
    from tpu_pipelines.submission.smoke import plan_smoke, run_smoke

    smoke = plan_smoke(arguments.target, arguments.machine, settings, arguments.overrides)
    require_step_image(smoke.plan.image, arguments.target)
    show_text(f"price: {smoke.price}", sys.stderr)
    if not arguments.yes:
        raise InputError("Nothing was sent: expected --yes, which confirms the price.")
    ask_first(arguments, smoke.config, settings, smoke.plan.image)
    report = run_smoke(smoke, submitter, Progress(), arguments.poll_seconds)
    show_text(json.dumps(dict(report.rows)) if arguments.json else str(report))
    if arguments.report:
        storage.write_bytes(arguments.report, report.as_rules().encode())
    return DONE if report.has_succeeded else FAILED


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_doctor,
    _add_smoke,
)
