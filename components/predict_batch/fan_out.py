"""Predictions by several commands: `python -m components.predict_batch.fan_out answer|merge`.

Each command of `answer` finishes a range of the files in a folder of its own, and `merge` puts these together. Folders
are on a disk, or in a bucket that is mounted; the bytes are those of one machine.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components import command_line, storage
from components.errors import InputError
from components.predict_batch.params import PredictParams, PredictResult
from components.predict_batch.predicting import (
    SUMMARY_FILE,
    answer_files,
    begin,
    begun_beside,
    is_begun,
    note_of,
    plan_answers,
    publish,
)
from components.share import Share

_PROGRAM = "python -m components.predict_batch.fan_out"


@dataclasses.dataclass(frozen=True)
class AnsweredRange:
    """A range of files that has been answered: the files, and those of them that were there already."""

    num_files: int
    num_kept: int


def answer_range(
    params: PredictParams, export_dir: Path, directory: Path, number: int, num_ranges: int
) -> AnsweredRange:
    """Answer the examples of a range of files; a command that is started again goes on behind what is finished.

    Args:
        params: Source to read, and the form to write.
        export_dir: Folder that export_model wrote.
        directory: Folder to write the files to; it is this range's alone.
        number: Number of the range, from 0.
        num_ranges: Number of ranges in all.

    Raises:
        InputError: If the model or the source cannot be used, or there is no such range.
    """
    if not 0 <= number < num_ranges:
        raise InputError(f"There is no range {number}: expected one from 0 to {num_ranges - 1}. Correct the number.")
    storage.require_writable(directory)
    plan = plan_answers(params, export_dir)
    begin(directory, plan.digest)
    wanted = Share(number, num_ranges).within(len(plan.names))
    return AnsweredRange(len(wanted), answer_files(plan, directory, wanted))


def merge_ranges(params: PredictParams, export_dir: Path, folders: Sequence[Path], directory: Path) -> PredictResult:
    """Put the files of all ranges together: the same bytes as `predict_batch` writes alone.

    Args:
        params: Parameters by which they were answered.
        export_dir: Folder of the model that did.
        folders: Folders that `answer_range` wrote, one for each range, in any order.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If a file is missing, or of another model, source or parameters; and as `predict_batch` says.
    """
    storage.require_output(directory, SUMMARY_FILE)
    plan = plan_answers(params, export_dir)
    if others := [folder for folder in folders if not is_begun(folder, plan.digest)]:
        raise InputError(
            f"Cannot put {others[0]} together with the others: expected answers of this model to this source by these "
            "parameters, received others or none. Answer that range again."
        )
    begun = begun_beside(directory)
    begin(begun, plan.digest)
    missing = []
    for place, name in enumerate(plan.names):
        held = next((folder for folder in folders if note_of(folder, name).is_file()), None)
        if held is None:
            missing.append(place)
        elif not note_of(begun, name).is_file():
            for file in (held / "whole" / name, note_of(held, name)):  # The note last: it says that the file is there.
                storage.write_bytes(begun / file.relative_to(held), file.read_bytes())
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(plan.names):,} files are missing, {plan.names[missing[0]]} the first: expected "
            f"the folders of all ranges, received {len(folders)}. Answer the others, and name all folders."
        )
    return publish(plan, begun, directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Answer examples by several commands, to the bytes that one machine writes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    answer = commands.add_parser("answer", help="Answer one range of the files; for each range, anywhere.")
    answer.add_argument("--number", required=True, type=int, help="Number of the range, from 0.")
    answer.add_argument("--ranges", required=True, type=int, help="Number of ranges in all.")
    merge = commands.add_parser("merge", help="Put the files of all ranges together, once.")
    merge.add_argument("--parts", required=True, type=Path, nargs="+", help="Folders that answer wrote, in any order.")
    for command in (answer, merge):
        command.add_argument("--export", required=True, type=Path, help="Folder that export_model wrote.")
        command.add_argument("--output", required=True, type=Path, help="Folder to write.")
        command_line.add_params(command, PredictParams)
    return parser


def _work(arguments: argparse.Namespace) -> tuple[Any, int]:
    params = command_line.params_from(arguments, PredictParams)
    if arguments.command == "answer":
        answered = answer_range(params, arguments.export, arguments.output, arguments.number, arguments.ranges)
        return answered, command_line.DONE
    return merge_ranges(params, arguments.export, arguments.parts, arguments.output), command_line.DONE


def main() -> int:
    """Run one of the commands; returns the exit code."""
    return command_line.run(_parser(), _work)


if __name__ == "__main__":
    sys.exit(main())
