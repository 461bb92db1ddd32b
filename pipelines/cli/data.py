"""Commands about data and predictions: drift, monitor."""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from tpu_pipelines.cli.options import (
    DONE,
    REJECTED,
    VERSION_FORMS,
    add_workspace,
    number,
    output_file,
    show_text,
    user_path,
)

_COLUMNS = {"figure": "<", "now": ">", "before": ">", "effect": ">", "threshold": ">", "by luck": ">", "": "<"}


def _add_drift(commands: Any) -> None:
    drift = commands.add_parser(
        "drift",
        epilog="Example: tpu-pipelines drift runs/flowers/records --against flowers@champion",
        help="whether data look like others: 0 no drift, 3 drifted",
        description="Compare the figures that records have of their examples (brightness, contrast, sharpness, "
        "colours, sizes; words and unknown ones; classes or targets; what was set aside) with those of other records, "
        "or of those that a registered version was made of. A figure has drifted where chance explains the difference "
        "in fewer cases than the confidence leaves, all figures together, and where it is large enough to matter.",
    )
    drift.add_argument("records", metavar="RECORDS", help="folder that create_tfrecords wrote, here or in a bucket")
    drift.add_argument(
        "--against",
        required=True,
        metavar="RECORDS|VERSION",
        help=f"the records to compare them with, or a version: {VERSION_FORMS}",
    )
    add_workspace(drift)
    _add_confidence(drift, "of data that are alike, so many drift in no figure (default: 0.99)")
    drift.add_argument("--output", type=output_file, metavar="FILE", help="page to write, as drift.html")
    drift.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    drift.set_defaults(command=_drift)


def _add_confidence(command: argparse.ArgumentParser, words: str) -> None:
    share = number("a share from 0.5 to below 1", lambda share: 0.5 <= share < 1)
    command.add_argument("--confidence", type=share, default=0.99, metavar="SHARE", help=words)


def _drift(arguments: argparse.Namespace) -> int:
    from tpu_components.core.drift.comparison import as_dict, find_shifts, say_power
    from tpu_pipelines.runs.data_drift import sketch_place
    from tpu_pipelines.runs.exports import find_compared

    against = find_compared(arguments.against, arguments.workspace, "a folder of records, here or in a bucket")
    new, old = (sketch_place(place) for place in (arguments.records, against))
    shifts = find_shifts(new, old, arguments.confidence)
    if arguments.output:
        from tpu_components.find_drift.finding import write_page

        write_page(new, old, shifts, arguments.output, (arguments.records, against))
    if arguments.json:
        print(json.dumps(as_dict(shifts)))
    else:
        show_text(_as_table(shifts, say_power(new, old, shifts, "examples")))
    return REJECTED if any(shift.drifted for shift in shifts) else DONE


def _add_monitor(commands: Any) -> None:
    monitor = commands.add_parser(
        "monitor",
        epilog="Example: tpu-pipelines monitor log.jsonl --against digits@champion --latency-ms 50",
        help="whether a server's predictions look like those evaluated: 0 no drift, 3 drifted",
        description="Compare the predictions that a server has logged (`tpu-pipelines serve --log FILE`) with those "
        "that the same format of the version made of its test split: confidence and mix of classes, by the rules of "
        "`drift`, and the requests' time with a limit that 95 of 100 are to keep to.",
    )
    monitor.add_argument("log", type=user_path, metavar="LOG", help="file that the server wrote")
    monitor.add_argument("--against", required=True, metavar="VERSION", help=f"version that answered: {VERSION_FORMS}")
    add_workspace(monitor)
    limit = number("a number above 0", lambda limit: 0 < limit < math.inf)
    monitor.add_argument("--latency-ms", type=limit, metavar="MS", help="time that 95 of 100 requests may take")
    _add_confidence(monitor, "of logs like the evaluation, so many drift in no figure (default: 0.99)")
    monitor.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    monitor.set_defaults(command=_monitor)


def _monitor(arguments: argparse.Namespace) -> int:
    from tpu_pipelines.retraining.monitoring import watch
    from tpu_pipelines.runs.exports import find_compared

    against = find_compared(arguments.against, arguments.workspace)
    watched = watch(arguments.log, against, arguments.latency_ms, arguments.confidence)
    if arguments.json:
        print(json.dumps(watched.as_dict()))
    else:
        rest = ", ".join(f"{count:,} {reason}" for reason, count in watched.left_out.items())
        times = "no request's first one, so that no time is known"
        if watched.ms:
            times = f"half in {watched.ms[0]:g} ms, 95 % in {watched.ms[1]:g} ms"
        unnamed = f" ({watched.num_without_version:,} without a version)" if watched.num_without_version else ""
        counted = f"predictions of {watched.version}: {watched.num_predictions:,}{unnamed}, {times}"
        show_text(f"{counted}; left out: {rest or 'no line'}")
        if 0 < watched.share < 1:
            hint = f"{watched.share:.2g} of all predictions are logged, as --log-share of `tpu-pipelines serve` says"
            show_text(f"{hint}; --log-share 1 logs each")
        show_text(_as_table(watched.shifts, watched.power))
    return REJECTED if watched.drifted else DONE


def _as_table(shifts: Sequence[Any], power: str) -> str:
    """Return differences to be read by people: the outcome, every figure, the rule, and what can be shown at all."""
    from tpu_components.core.base.terminal import lay_out
    from tpu_components.core.drift.comparison import say_rule, say_verdict

    rows = [
        (
            shift.figure,
            shift.now,
            shift.before,
            f"{shift.effect:.3f}",
            f"{shift.threshold:g}",
            f"{shift.luck:.2g}",
            "drifted" if shift.drifted else "",
        )
        for shift in shifts
    ]
    return "\n".join([say_verdict(shifts), *lay_out(_COLUMNS, rows), say_rule(shifts), power])


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_drift, _add_monitor)
