"""Runs the command `tpu-pipelines` as `python -m tpu_pipelines.cli`, without an installed script."""

import sys

from tpu_pipelines.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
