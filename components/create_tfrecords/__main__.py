"""Write records from the command line: `python -m components.create_tfrecords --source images:DIR --output DIR`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.create_tfrecords import WriteParams, WriteResult, write_records


def main() -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.create_tfrecords", description=write_records.__doc__)
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    command_line.add_params(parser, WriteParams)

    def work(arguments: argparse.Namespace) -> tuple[WriteResult, int]:
        return write_records(command_line.params_from(arguments, WriteParams), arguments.output), command_line.DONE

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
