"""Command line: `python -m tpu_components.preflight_training --records DIR --output DIR --model NAME`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.preflight_training import PreflightParams, preflight_training


def main() -> int:
    """Run the step and return the exit code: 3 if the training step does not fit or exceeds a budget."""
    return command_line.run_step(
        preflight_training,
        PreflightParams,
        reads={"records": "create_tfrecords"},
        example="--records records --output preflight --model digits_cnn",
        accepted="passed",
    )


if __name__ == "__main__":
    sys.exit(main())
