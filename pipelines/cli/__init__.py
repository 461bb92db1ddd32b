"""The command `tpu-pipelines`: a table of all commands, and a file for each group of them."""

from tpu_pipelines.cli.main import main

__all__ = ["main"]
