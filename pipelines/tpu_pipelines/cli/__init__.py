"""The command `tpu-pipelines`: a table of all commands, and a module for each group of commands."""

from tpu_pipelines.cli.main import main

__all__ = ["main"]
