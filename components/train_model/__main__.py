"""Train from the command line: `python -m components.train_model --model NAME --records DIR --output DIR`."""

import sys

from components import command_line
from components.train_model import TrainParams, train_model


def main() -> int:
    """Run the step; returns the exit code."""
    return command_line.run_step(
        train_model,
        TrainParams,
        reads={"records": "create_tfrecords"},
        example="--records records --output model --model digits_cnn",
        optional={"checkpoint_dir": "Folder of the checkpoints between sessions; beside the output if not given."},
    )


if __name__ == "__main__":
    sys.exit(main())
