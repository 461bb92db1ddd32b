"""Command line of import_model: `python -m tpu_components.import_model --records DIR --model FILE --output DIR`."""

import sys

from tpu_components.core.component import command_line
from tpu_components.import_model import ImportParams, import_model


def main() -> int:
    """Run the step and return the exit code."""
    return command_line.run_step(
        import_model,
        ImportParams,
        reads={"records": "create_tfrecords", "model": "another program, or its .keras file"},
        example="--records records --model flowers.keras --class-names daisy rose tulip --output model",
    )


if __name__ == "__main__":
    sys.exit(main())
