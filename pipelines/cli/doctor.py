"""Commands that ask before anything is paid: doctor."""

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from pipelines.cli.options import BAD_INPUT, DONE, add_config, add_target, show_text


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        epilog="Example: tpu-pipelines doctor digits --target vertex",
        help="what a cloud platform still lacks for a run",
        description="Ask a cloud platform, reading alone, for everything that a run of the configuration needs there: "
        "✓ is there, ✗ is missing, with what to do, and ? is what it does not say to you. Exits with 2 if something is "
        "missing.",
    )
    add_config(doctor)
    add_target(doctor)
    doctor.add_argument("--kube-context", default="", metavar="NAME", help="kubeflow: ask its cluster, too, as kubectl")
    doctor.add_argument("--json", action="store_true", help="print a JSON list, and nothing else, on stdout")
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from pipelines.config import load_config
    from pipelines.doctor.examining import as_dicts, examine
    from pipelines.doctor.findings import as_table, missing_of
    from pipelines.settings import TARGET_SETTINGS, load_settings

    settings = load_settings(os.environ, arguments.settings)
    settings.require(*TARGET_SETTINGS[arguments.target])
    config = load_config(arguments.config, arguments.overrides)
    findings = examine(config, arguments.target, settings, arguments.kube_context)
    show_text(json.dumps(as_dicts(findings)) if arguments.json else as_table(findings))
    return BAD_INPUT if missing_of(findings) else DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_doctor,)
