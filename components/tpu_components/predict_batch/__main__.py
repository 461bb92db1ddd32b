"""Command line: `python -m tpu_components.predict_batch --export DIR --source images:DIR --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.predict_batch import PredictParams, predict_batch


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        predict_batch,
        PredictParams,
        reads={"export": "export_model"},
        folder=str,  # Also in a bucket.
        example="--export export --source images:photos --output predictions",
    )


if __name__ == "__main__":
    sys.exit(main())
