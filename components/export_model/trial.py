"""Tries a model before it is trained, in a process of its own: the model's code may do anything there.

Usage: python -m tpu_components.export_model.trial, with a request as JSON on stdin: the arguments of `try_out`, without
`work` and `warn`.
Prints one JSON line with `warnings` and `error`: the message of a mistake of the user, or an empty text.
"""

import json
import sys
import tempfile
from pathlib import Path

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import Interface
from tpu_components.core.files import storage
from tpu_components.core.models.step.hyperparameters import TrainParams
from tpu_components.export_model.exporting import try_out


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    interface, error = typed_values.read(request["interface"], Interface), ""
    training = typed_values.read(request["training"], TrainParams)
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="trial-") as work:
        request |= {"interface": interface, "training": training}
        try:
            with storage.naming_faults():
                try_out(**request, work=Path(work), warn=warnings.append)
        except InputError as mistake:
            error = str(mistake)
    print(json.dumps({"error": error, "warnings": warnings}))


if __name__ == "__main__":
    main()
