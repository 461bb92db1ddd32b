"""Commands about TPUs that need none: preflight, machines."""

import argparse
import json
import math
import os
from collections.abc import Callable
from typing import Any

from tpu_pipelines.cli.options import (
    DONE,
    REJECTED,
    VERSION_FORMS,
    add_config,
    add_markdown,
    add_workspace,
    number,
    show_text,
    tell_hint,
)

_LIMIT = 0.2  # Share by which a training may be slower or dearer than another.


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
    preflight.add_argument(
        "--target",
        type=_targets,
        default=("vertex",),
        metavar="NAME[,NAME]",
        help="whose price a run is judged by: vertex, kubeflow, or both, side by side (default: vertex)",
    )
    preflight.add_argument(
        "--against",
        metavar="VERSION|REPORT",
        help=f"fail where it is slower or dearer than a registered version ({VERSION_FORMS}), or than the first of a "
        "preflight.json",
    )
    preflight.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="for so many examples, of which the data at hand are a sample: time, price and waiting for data to come",
    )
    preflight.add_argument(
        "--image-bytes", type=int, metavar="N", help="with --examples: bytes of an image file (default: as at hand)"
    )
    share = number("a share that is not negative, as 0.2", lambda share: 0 <= share < math.inf)
    for name, what in (("slower", "an epoch may be slower"), ("dearer", "a run may be dearer")):
        help_text = f"with --against: by how much {what}, as a share (default: {_LIMIT})"
        preflight.add_argument(f"--{name}", type=share, metavar="SHARE", help=help_text)
    add_markdown(preflight)
    add_workspace(preflight)
    preflight.add_argument("--json", action="store_true", help="print the report, and nothing else, on stdout")
    preflight.set_defaults(command=_preflight)


def _targets(text: str) -> tuple[str, ...]:
    """Read the platforms whose prices are asked for."""
    from tpu_pipelines.config.settings import TARGET_SETTINGS

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in TARGET_SETTINGS]:
        raise argparse.ArgumentTypeError(
            f"unknown target {unknown[0]!r}: expected {' or '.join(TARGET_SETTINGS)}, or both with a comma"
        )
    return names


def _planned(arguments: argparse.Namespace) -> Any:
    """Return the data that are said to come; None where the data at hand are all."""
    from tpu_components.core.base.errors import InputError
    from tpu_pipelines.checking.preflight import PlannedData

    if arguments.examples is None:
        if arguments.image_bytes is not None:
            raise InputError(
                "--image-bytes is of examples to come. Received: no --examples. Say how many there will be."
            )
        return None
    if arguments.against:
        raise InputError(
            "--against counts as many examples as the other training had. Received: --examples as well. Use one."
        )
    return PlannedData(arguments.examples, arguments.image_bytes or 0)


def _preflight(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_components.core.examples.artifacts import PREFLIGHT_FILE, PREFLIGHT_REPORT_FILE
    from tpu_components.preflight_training.report import as_text
    from tpu_pipelines.checking.footprints import FootprintComparison, load_baseline
    from tpu_pipelines.checking.preflight import preflight
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.runs.exports import find_compared

    limits = [_LIMIT if limit is None else limit for limit in (arguments.slower, arguments.dearer)]
    if not arguments.against and (arguments.slower, arguments.dearer) != (None, None):
        raise InputError("--slower and --dearer are limits beside another training. Received: no --against. Name one.")
    names = [name.strip() for name in (arguments.compare or arguments.machine or "").split(",") if name.strip()]
    config = load_config(arguments.config, arguments.overrides)
    against, baseline = arguments.against, None
    if against:
        baseline = load_baseline(find_compared(against, arguments.workspace, "a preflight.json or its folder"))
    directory = arguments.workspace / f"{config.name}-preflight"
    like = baseline.footprint if baseline else None
    report = preflight(config, names, directory, like, arguments.target, _planned(arguments))
    comparison = FootprintComparison.make(report, baseline, *limits) if baseline else None
    if baseline and len(report.machines) > 1:
        tell_hint(f"of these machines the first alone, {report.machines[0].machine}, is held against {baseline.name}")
    if arguments.json:
        compared = {"against": comparison.as_dict()} if comparison else {}
        print(json.dumps(json.loads((directory / PREFLIGHT_FILE).read_text()) | compared))
    else:
        show_text(as_text(report) + (f"\n\n{comparison.as_text()}" if comparison else ""))
        show_text(f"\n{os.path.relpath(directory / PREFLIGHT_REPORT_FILE)}")
    if arguments.markdown:
        from tpu_pipelines.retraining.job_summary import append, render_preflight

        append(arguments.markdown, render_preflight(config.name, report, comparison))
    enough = any if arguments.compare else all  # One of those to choose from; all that a run may get.
    passed = enough(machine.passed for machine in report.machines) and not (comparison and comparison.broken)
    return DONE if passed else REJECTED


def _add_machines(commands: Any) -> None:
    machines = commands.add_parser(
        "machines",
        epilog="Example: tpu-pipelines machines --generation v5e",
        help="list the TPU machines that a configuration can name",
        description="List every TPU slice that Vertex trains on: its fields, its chips, its prices, its regions.",
    )
    machines.add_argument("--generation", default="", metavar="NAME", help="only of this one, as v5e")
    machines.add_argument("--region", default="", metavar="NAME", help="only what trains there, as us-west1")
    machines.add_argument("--json", action="store_true", help="print a JSON list, with the source of every value")
    machines.set_defaults(command=_machines)


def _machines(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.config.machines import as_rows, as_table, select_slices

    slices = select_slices(arguments.generation, arguments.region)
    if arguments.json:
        print(json.dumps(as_rows(slices, arguments.region)))
    else:
        show_text(as_table(slices, arguments.region))
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_preflight,
    _add_machines,
)
