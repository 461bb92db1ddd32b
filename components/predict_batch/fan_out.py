"""Predictions by several commands: `python -m tpu_components.predict_batch.fan_out answer|merge`.

Each command `answer` writes a range of the files to a folder of its own, and `merge` combines these. The model and the
folders may be in a bucket. The bytes are the same as on one machine.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.files import storage
from tpu_components.core.step import command_line
from tpu_components.core.work.resume_state import ResumeState, range_of
from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.predicting import answer_files
from tpu_components.predict_batch.prediction_files import SUMMARY_FILE, plan_answers, publish

_PROGRAM = "python -m tpu_components.predict_batch.fan_out"


@dataclasses.dataclass(frozen=True)
class AnsweredRange:
    """A finished range of files: number of the files, and of those that existed already."""

    num_files: int
    num_kept: int


def answer_range(params: PredictParams, export: str, directory: str, number: int, num_ranges: int) -> AnsweredRange:
    """Predict the examples of a range of files; a command that is started again continues after the finished files.

    Args:
        params: Source and format.
        export: Folder that export_model wrote, local or in a bucket.
        directory: Folder of this range, local or in a bucket.
        number: Number of the range, from 0.
        num_ranges: Number of ranges in all.

    Raises:
        InputError: If the model or the source cannot be used, there is no such range, or the folder, in a bucket, has
            predictions of another model, source or parameters.
    """
    plan, state = plan_answers(params, export), ResumeState(directory)
    wanted = range_of(number, num_ranges, len(plan.names))
    state.begin(plan.digest)
    return AnsweredRange(len(wanted), answer_files(plan, state, wanted))


def merge_ranges(params: PredictParams, export: str, folders: Sequence[str], directory: Path) -> PredictResult:
    """Combine the files of all ranges to the same bytes as those of `predict_batch`.

    Args:
        params: Parameters of the ranges.
        export: Folder of the model, local or in a bucket.
        folders: Folders that `answer_range` wrote, one for each range, in any order.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If a file is missing, damaged, or of another model, source or parameters; see also
            `predict_batch`.
    """
    storage.require_output(directory, SUMMARY_FILE)
    return publish(plan_answers(params, export), list(map(ResumeState, folders)), directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Answer examples by several commands, to the bytes that one machine writes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    answer = commands.add_parser("answer", help="Answer one range of the files; for each range, anywhere.")
    answer.add_argument("--number", required=True, type=int, help="Number of the range, from 0.")
    answer.add_argument("--ranges", required=True, type=int, help="Number of ranges in all.")
    merge = commands.add_parser("merge", help="Put the files of all ranges together, once.")
    merge.add_argument("--parts", required=True, nargs="+", help="Folders that answer wrote, in any order.")
    for command in (answer, merge):
        command.add_argument("--export", required=True, help="Folder that export_model wrote, here or in a bucket.")
        command.add_argument("--output", required=True, help="Folder to write; answer's also in a bucket.")
        command_line.add_params(command, PredictParams)
    return parser


def _work(arguments: argparse.Namespace) -> tuple[Any, int]:
    params = command_line.params_from(arguments, PredictParams)
    if arguments.command == "answer":
        answered = answer_range(params, arguments.export, arguments.output, arguments.number, arguments.ranges)
        return answered, command_line.DONE
    return merge_ranges(params, arguments.export, arguments.parts, Path(arguments.output)), command_line.DONE


def main() -> int:
    """Run one of the commands; returns the exit code."""
    return command_line.run(_parser(), _work)


if __name__ == "__main__":
    sys.exit(main())
