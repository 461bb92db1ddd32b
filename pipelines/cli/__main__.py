"""`python -m pipelines.cli`: the command without its script."""

import sys

from pipelines.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
