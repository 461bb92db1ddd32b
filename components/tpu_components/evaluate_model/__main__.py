"""Command line of evaluate_model: `python -m tpu_components.evaluate_model --records DIR --model DIR --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.evaluate_model import EvaluateParams, evaluate_model


def main() -> int:
    """Run the step and return the exit code: 3 if the gate does not promote the model."""
    return command_line.run_step(
        evaluate_model,
        EvaluateParams,
        reads={"records": "create_tfrecords", "model": "train_model"},
        example="--records records --model model --output evaluation",
        accepted="promote",
    )


if __name__ == "__main__":
    sys.exit(main())
