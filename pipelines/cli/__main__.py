"""`python -m tpu_pipelines.cli`: the command without its script."""

import sys

from tpu_pipelines.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
