"""Train from the command line: `python -m components.train_model --model NAME --records DIR --output DIR`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.train_model import TrainParams, TrainResult, train_model


def main() -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.train_model", description=train_model.__doc__)
    parser.add_argument("--records", required=True, type=Path, help="Folder that create_tfrecords wrote.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    parser.add_argument("--checkpoint-dir", type=Path, help="Where checkpoints live between sessions.")
    command_line.add_params(parser, TrainParams)

    def work(arguments: argparse.Namespace) -> tuple[TrainResult, int]:
        params = command_line.params_from(arguments, TrainParams)
        return train_model(params, arguments.records, arguments.output, arguments.checkpoint_dir), command_line.DONE

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
