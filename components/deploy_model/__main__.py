"""Deploy from the command line: `python -m components.deploy_model --records DIR … --output DIR --registry DIR …`."""

import argparse
import sys
from pathlib import Path

from components import command_line
from components.deploy_model import DeployParams, DeployResult, deploy_model


def main() -> int:
    """Run the step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.deploy_model", description=deploy_model.__doc__)
    for flag, step in (
        ("records", "create_tfrecords"),
        ("model", "train_model"),
        ("export", "export_model"),
        ("evaluation", "evaluate_model"),
    ):
        parser.add_argument(f"--{flag}", required=True, type=Path, help=f"Folder that {step} wrote.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write; appears whole or not at all.")
    command_line.add_params(parser, DeployParams)

    def work(arguments: argparse.Namespace) -> tuple[DeployResult, int]:
        params = command_line.params_from(arguments, DeployParams)
        result = deploy_model(
            params, arguments.records, arguments.model, arguments.export, arguments.evaluation, arguments.output
        )
        return result, command_line.DONE

    return command_line.run(parser, work)


if __name__ == "__main__":
    sys.exit(main())
