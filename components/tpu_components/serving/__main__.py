"""Entry point of the serving image: `python -m tpu_components.serving [EXPORT_DIR]`.

It reads Vertex AI's AIP_* environment variables:
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

import os
import sys

from tpu_components.core.base.errors import DONE
from tpu_components.core.base.import_path import leave_current_folder
from tpu_components.core.component import command_line
from tpu_components.core.component.step_inputs import params_from
from tpu_components.serving.params import REMOVED_FLAGS, ServeParams, key_to_verify, vertex_defaults


def main() -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code."""
    leave_current_folder()
    parser = command_line.ArgumentParser(
        prog="python -m tpu_components.serving",
        description="Serve an export over HTTP, as Vertex AI requires of a container.",
        epilog="Example: python -m tpu_components.serving runs/digits/export --port 8080",
    )
    parser.add_argument(
        "export_dir",
        nargs="?",
        default=os.environ.get("AIP_STORAGE_URI"),
        metavar="EXPORT_DIR",
        help="the export folder of a run, local or on gs:// (default: AIP_STORAGE_URI)",
    )
    command_line.add_params(parser, ServeParams)
    parser.removed = REMOVED_FLAGS

    def call() -> int:
        parser.set_defaults(**vertex_defaults(os.environ))
        arguments = parser.parse_args()
        arguments.verify = key_to_verify(getattr(arguments, "verify", None), os.environ)
        if not arguments.export_dir:
            parser.error("no export to serve: pass EXPORT_DIR, or set AIP_STORAGE_URI")
        params = params_from(vars(arguments), ServeParams)
        from tpu_components.serving.server import serve

        serve(arguments.export_dir, params)
        return DONE

    return command_line.exit_code(call, command_line.print_error)


if __name__ == "__main__":
    sys.exit(main())
