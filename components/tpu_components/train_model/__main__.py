"""Command line of train_model: `python -m tpu_components.train_model --model NAME --records DIR --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.core.machines.hosts import parse_host
from tpu_components.train_model import TrainParams, train_model


def main() -> int:
    """Run the command line of train_model and return the exit code."""
    return command_line.run_step(
        train_model,
        TrainParams,
        reads={"records": "create_tfrecords"},
        example="--records records --output model --model digits_cnn",
        optional={
            "checkpoint_dir": (
                command_line.local_path,
                "Folder for checkpoints, from which a restarted command continues. The default is a folder next to the "
                "output.",
            ),
            "hosts": (
                parse_host,
                "This host, if several hosts train together: INDEX/COUNT@ADDRESS[:PORT], where ADDRESS is the "
                "address of host 0. The default comes from the environment.",
            ),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
