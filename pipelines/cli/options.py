"""Options that commands share."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

# The same numbers as components.command_line, whose import `--help` does without.
DONE, FAILED, BAD_INPUT, REJECTED = 0, 1, 2, 3


HERE = "local"  # Where a run may be, beside the platforms.


def show_text(text: str, stream: Any = None) -> None:
    """Print text that may hold names out of data or what a service says."""
    from components.table import printable

    print(printable(text), file=stream or sys.stdout, flush=True)


def add_config(command: Any, default: str = "") -> None:
    """Add the configuration, and `--set`."""
    command.add_argument(
        "config",
        nargs="?" if default else None,
        default=default,
        metavar="CONFIG",
        help="a ready example or a YAML file" + (f" (default: {default})" if default else ""),
    )
    command.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")


def add_workspace(command: Any) -> None:
    """Add `--workspace`."""
    command.add_argument(
        "--workspace", type=Path, default=Path("runs"), metavar="DIR", help="folder for runs (default: runs)"
    )


def add_target(command: Any, required: bool = False, also: tuple[str, ...] = ()) -> None:
    """Add `--target`."""
    from pipelines.settings import TARGET_SETTINGS

    targets, default = (*TARGET_SETTINGS, *also), None if required else "vertex"
    note = "" if required else f"(default: {default})"
    command.add_argument("--target", choices=targets, required=required, default=default, help=note)
    command.add_argument("--settings", type=Path, metavar="FILE", help="YAML; TPU_PIPELINES_… variables come first")


def _seconds(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, received {text}")
    return float(text)


def add_wait(command: Any) -> None:
    """Add what waiting for a run takes."""
    command.add_argument("--wait", action="store_true", help="until it ends; may be killed and started again at will")
    command.add_argument("--poll-seconds", type=_seconds, default=20.0, metavar="N", help="between looks (default: 20)")
