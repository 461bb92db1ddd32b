"""Command line of the engines: `python -m tpu_components.create_tfrecords.engines plan|write|…`."""

import sys
from pathlib import Path

from tpu_components.core.component.command_line import StepCommand, run_commands
from tpu_components.create_tfrecords import WriteParams
from tpu_components.create_tfrecords.engines import beam, fan_out

_PLAN = {"help": "Folder that the plan command wrote, local or in a bucket."}
_NUMBER = {"type": int, "help": "Number of the range, from 0."}
_PARTS = {"nargs": "+", "help": "Folders that the write commands wrote, in any order."}
_OUTPUT = {"help": "Folder to write. For the plan and write commands, it may be in a bucket."}
_RECORDS = {"type": Path, **_OUTPUT}
_VERSION = {"default": "", "help": "Expected version of the data, from list_source. If empty, any version is accepted."}
_COMMANDS = {
    "plan": StepCommand(
        fan_out.plan_parts,
        WriteParams,
        "Plan the parts. Run this command once.",
        {"output": _OUTPUT, "data-version": _VERSION},
    ),
    "write": StepCommand(
        fan_out.write_parts,
        WriteParams,
        "Write one range of parts. Run this command for each range, on any machine.",
        {"plan": _PLAN, "output": _OUTPUT, "number": _NUMBER},
    ),
    "merge": StepCommand(
        fan_out.merge_parts,
        WriteParams,
        "Merge the parts of all ranges. Run this command once.",
        {"plan": _PLAN, "parts": _PARTS, "output": _RECORDS},
    ),
    "beam": StepCommand(
        beam.write_with_beam,
        WriteParams,
        "Write records with the workers of an Apache Beam runner.",
        {"output": _RECORDS, "data-version": _VERSION},
    ),
}


def main() -> int:
    """Run one of the commands and return the exit code."""
    return run_commands(
        "python -m tpu_components.create_tfrecords.engines",
        "Write records with several commands. The files are the same as if one machine had written them.",
        _COMMANDS,
    )


if __name__ == "__main__":
    sys.exit(main())
