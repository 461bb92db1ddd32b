"""The command `tpu-pipelines`: a file for each group of commands."""

from tpu_pipelines.cli.main import main

__all__ = ["main"]
