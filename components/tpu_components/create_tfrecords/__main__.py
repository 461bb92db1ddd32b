"""Command line of create_tfrecords: `python -m tpu_components.create_tfrecords --source images:DIR --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.create_tfrecords import WriteParams, write_records


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        write_records,
        WriteParams,
        reads={},
        example="--source sklearn:digits --output /tmp/digits/records",
    )


if __name__ == "__main__":
    sys.exit(main())
