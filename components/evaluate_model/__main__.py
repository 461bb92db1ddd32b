"""Score a model from the command line: `python -m components.evaluate_model --records DIR --model DIR --output DIR`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.evaluate_model import EvaluateParams, EvaluateResult, evaluate_model


def main() -> int:
    """Run the step; returns the exit code, 3 if the gate says no."""
    parser = argparse.ArgumentParser(prog="python -m components.evaluate_model", description=evaluate_model.__doc__)
    parser.add_argument("--records", required=True, type=Path, help="Folder that create_tfrecords wrote.")
    parser.add_argument("--model", required=True, type=Path, help="Folder that train_model wrote.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    command_line.add_params(parser, EvaluateParams)

    def work(arguments: argparse.Namespace) -> tuple[EvaluateResult, int]:
        params = command_line.params_from(arguments, EvaluateParams)
        result = evaluate_model(params, arguments.records, arguments.model, arguments.output)
        return result, command_line.DONE if result.promote else command_line.REJECTED

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
