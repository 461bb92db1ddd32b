"""Write records from the command line: `python -m components.create_tfrecords --source images:DIR --output DIR`."""

import sys

from components import command_line
from components.create_tfrecords import WriteParams, write_records


def main() -> int:
    """Run the step; returns the exit code."""
    return command_line.run_step(
        write_records,
        WriteParams,
        reads={},
        example="--source sklearn:digits --output /tmp/digits/records",
    )


if __name__ == "__main__":
    sys.exit(main())
