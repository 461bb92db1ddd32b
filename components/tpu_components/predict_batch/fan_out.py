"""Predicts by several commands: `python -m tpu_components.predict_batch.fan_out answer|merge`.

Each command `answer` writes a range of the files to a folder of its own, and `merge` combines these folders. The model
and the folders may be in a bucket. The bytes are the same as on one machine.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.component.command_line import StepCommand, run_commands
from tpu_components.core.files import storage
from tpu_components.core.work.resume_state import ResumeState, range_of
from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.predicting import answer_files
from tpu_components.predict_batch.prediction_files import SUMMARY_FILE, plan_answers, publish


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
        InputError: If the model or the source cannot be used, `number` is out of range, or the folder, in a bucket, has
            predictions of another model, source or parameters.
    """
    plan = plan_answers(params, export)
    wanted = range_of(number, num_ranges, len(plan.names))
    return AnsweredRange(len(wanted), answer_files(plan, ResumeState(directory).begin(plan.digest), wanted))


def merge_ranges(params: PredictParams, export: str, folders: Sequence[str], directory: Path) -> PredictResult:
    """Combine the files of all ranges. The bytes are the same as those that `predict_batch` writes.

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


_EXPORT = {"help": "Folder that export_model wrote, here or in a bucket."}
_NUMBER = {"type": int, "help": "Number of the range, from 0."}
_RANGES = {"type": int, "help": "Number of ranges in all."}
_PARTS = {"nargs": "+", "help": "Folders that answer wrote, in any order."}
_OUTPUT = {"help": "Folder to write; answer's also in a bucket."}
_COMMANDS = {
    "answer": StepCommand(
        answer_range,
        PredictParams,
        "Answer one range of the files; for each range, anywhere.",
        {"export": _EXPORT, "output": _OUTPUT, "number": _NUMBER, "ranges": _RANGES},
    ),
    "merge": StepCommand(
        merge_ranges,
        PredictParams,
        "Put the files of all ranges together, once.",
        {"export": _EXPORT, "parts": _PARTS, "output": {"type": Path, **_OUTPUT}},
    ),
}


def main() -> int:
    """Run one of the commands; returns the exit code."""
    return run_commands(
        "python -m tpu_components.predict_batch.fan_out",
        "Answer examples by several commands, to the bytes that one machine writes.",
        _COMMANDS,
    )


if __name__ == "__main__":
    sys.exit(main())
