"""Commands about TPUs that need none: preflight, machines."""

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from pipelines.cli.options import DONE, REJECTED, add_config, add_workspace, show_text


def _add_preflight(commands: Any) -> None:
    preflight = commands.add_parser(
        "preflight",
        epilog="Example: tpu-pipelines preflight digits --compare v2-8,v5e-4",
        help="compile the training step for a TPU, without one: fit, time, price",
        description="Compile the training step with the real TPU compiler on this machine, which needs no TPU, and say "
        "whether it fits, how long a step and an epoch take, what a run costs and how long the device waits for data.",
    )
    add_config(preflight)
    machines = preflight.add_mutually_exclusive_group()
    machines.add_argument(
        "--machine", metavar="NAME", help="a TPU slice, as v5e-4 (default: the configuration's, and its fallbacks)"
    )
    machines.add_argument("--compare", metavar="NAME,NAME…", help="several slices, side by side")
    add_workspace(preflight)
    preflight.add_argument("--json", action="store_true", help="print the report, and nothing else, on stdout")
    preflight.set_defaults(command=_preflight)


def _preflight(arguments: argparse.Namespace) -> int:
    from components.artifacts import PREFLIGHT_FILE, PREFLIGHT_REPORT_FILE
    from components.preflight_training.report import as_text
    from pipelines.config import load_config
    from pipelines.preflight import preflight

    names = [name.strip() for name in (arguments.compare or arguments.machine or "").split(",") if name.strip()]
    config = load_config(arguments.config, arguments.overrides)
    directory = arguments.workspace / f"{config.name}-preflight"
    report = preflight(config, names, directory)
    if arguments.json:
        print((directory / PREFLIGHT_FILE).read_text())
    else:
        show_text(as_text(report))
        print(f"\n{os.path.relpath(directory / PREFLIGHT_REPORT_FILE)}")
    enough = any if arguments.compare else all  # One of those to choose from; all that a run may get.
    return DONE if enough(machine.passed for machine in report.machines) else REJECTED


def _add_machines(commands: Any) -> None:
    machines = commands.add_parser(
        "machines",
        epilog="Example: tpu-pipelines machines --generation v5e",
        help="list the TPU machines that a configuration can name",
        description="List every TPU slice that Vertex trains on: its fields, its chips, its list price, its regions.",
    )
    machines.add_argument("--generation", default="", metavar="NAME", help="only of this one, as v5e")
    machines.add_argument("--region", default="", metavar="NAME", help="only what trains there, as us-west1")
    machines.add_argument("--json", action="store_true", help="print a JSON list, with the source of every value")
    machines.set_defaults(command=_machines)


def _machines(arguments: argparse.Namespace) -> int:
    from pipelines.machines import as_rows, as_table, select_slices

    slices = select_slices(arguments.generation, arguments.region)
    if arguments.json:
        print(json.dumps(as_rows(slices, arguments.region)))
    else:
        print(as_table(slices, arguments.region))
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_preflight,
    _add_machines,
)
