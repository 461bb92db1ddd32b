"""Rejects the removed commands and components that predicted the examples of one source in parallel tasks.

Components that were compiled before the removal call `answer_range` and `merge_ranges`.
"""

import sys
from typing import Any, NoReturn

from tpu_components.core.base.errors import InputError
from tpu_components.core.component.command_line import exit_code, print_error


def answer_range(*_: Any) -> NoReturn:
    """Raise an InputError that says what to use instead of predicting in parallel tasks."""
    raise InputError(
        "Predicting in parallel tasks was removed. Use predict_batch, which works on one machine, or predict_batch "
        "with engine=beam (in a pipeline: predict_with_beam), which works on several. Both write the same files."
    )


merge_ranges = answer_range


def main() -> int:
    """Print the error that predicting in parallel tasks was removed. Return exit code 2."""
    return exit_code(answer_range, print_error)


if __name__ == "__main__":
    sys.exit(main())
