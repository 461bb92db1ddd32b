"""Compile a training step: `python -m components.preflight_training --records DIR --output DIR --model NAME`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.preflight_training import PreflightParams, PreflightResult, preflight_training


def main() -> int:
    """Run the step; returns the exit code, 3 if the training step does not fit or breaks a budget."""
    parser = argparse.ArgumentParser(
        prog="python -m components.preflight_training", description=preflight_training.__doc__
    )
    parser.add_argument("--records", required=True, type=Path, help="Folder that create_tfrecords wrote.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    command_line.add_params(parser, PreflightParams)

    def work(arguments: argparse.Namespace) -> tuple[PreflightResult, int]:
        params = command_line.params_from(arguments, PreflightParams)
        result = preflight_training(params, arguments.records, arguments.output)
        return result, command_line.DONE if result.passed else command_line.REJECTED

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
