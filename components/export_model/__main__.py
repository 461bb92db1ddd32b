"""Export from the command line: `python -m components.export_model --records DIR --model DIR --output DIR`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.export_model import ExportParams, ExportResult, export_model


def main() -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.export_model", description=export_model.__doc__)
    parser.add_argument("--records", required=True, type=Path, help="Folder that create_tfrecords wrote.")
    parser.add_argument("--model", required=True, type=Path, help="Folder that train_model wrote.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    command_line.add_params(parser, ExportParams)

    def work(arguments: argparse.Namespace) -> tuple[ExportResult, int]:
        params = command_line.params_from(arguments, ExportParams)
        return export_model(params, arguments.records, arguments.model, arguments.output), command_line.DONE

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
