"""Command line: `python -m tpu_components.deploy_model --records DIR … --output DIR --registry DIR …`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.deploy_model import DeployParams, deploy_model


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        deploy_model,
        DeployParams,
        reads={
            "records": "create_tfrecords",
            "model": "train_model",
            "export": "export_model",
            "evaluation": "evaluate_model",
        },
        example="--records records --model model --export export"
        " --evaluation evaluation --output deployment --registry registry",
    )


if __name__ == "__main__":
    sys.exit(main())
