"""Records by several commands or Beam: `python -m tpu_components.create_tfrecords.engines plan|write|merge|…`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from tpu_components.core.step import command_line
from tpu_components.create_tfrecords import WriteParams
from tpu_components.create_tfrecords.engines import beam, fan_out

_PROGRAM = "python -m tpu_components.create_tfrecords.engines"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Write records by several commands, to the bytes that one machine writes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="Plan the parts, once.")
    write = commands.add_parser("write", help="Write one range of them; for each range, anywhere.")
    merge = commands.add_parser("merge", help="Put the parts of all ranges together, once.")
    with_beam = commands.add_parser("beam", help="All of it, on workers of an Apache Beam runner.")
    for command in (write, merge):
        command.add_argument("--plan", required=True, help="Folder that plan wrote, here or in a bucket.")
    write.add_argument("--number", required=True, type=int, help="Number of the range, from 0.")
    merge.add_argument("--parts", required=True, nargs="+", help="Folders that write wrote, in any order.")
    for command in (plan, write, merge, with_beam):
        command.add_argument("--output", required=True, help="Folder to write; plan's and write's also in a bucket.")
        command_line.add_params(command, WriteParams)
    return parser


def _work(arguments: argparse.Namespace) -> tuple[Any, int]:
    params = command_line.params_from(arguments, WriteParams)
    if arguments.command == "plan":
        return fan_out.plan_parts(params, arguments.output), command_line.DONE
    if arguments.command == "write":
        return fan_out.write_parts(params, arguments.plan, arguments.output, arguments.number), command_line.DONE
    if arguments.command == "beam":
        return beam.write_with_beam(params, Path(arguments.output)), command_line.DONE
    return fan_out.merge_parts(params, arguments.plan, arguments.parts, Path(arguments.output)), command_line.DONE


def main() -> int:
    """Run one of the commands; returns the exit code."""
    return command_line.run(_parser(), _work)


if __name__ == "__main__":
    sys.exit(main())
