"""Command line of export_model: `python -m tpu_components.export_model --records DIR --model DIR --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.export_model import ExportParams, export_model


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        export_model,
        ExportParams,
        reads={"records": "create_tfrecords", "model": "train_model"},
        example="--records records --model model --output export",
    )


if __name__ == "__main__":
    sys.exit(main())
