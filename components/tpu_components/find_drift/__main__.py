"""Command line of find_drift: `python -m tpu_components.find_drift --records DIR --against VERSION --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.find_drift import DriftParams, find_drift


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        find_drift,
        DriftParams,
        reads={"records": "create_tfrecords"},
        example="--records records --against runs/registry/digits@champion --output drift",
        accepted="alike",
    )


if __name__ == "__main__":
    sys.exit(main())
