"""Commands for editors and shells: schema, completion."""

import argparse

import shtab

from tpu_components.core.base.errors import DONE
from tpu_pipelines.config import schema as settings
from tpu_pipelines.config.configuration import ready_examples


def schema(arguments: argparse.Namespace) -> int:
    """Print all settings as JSON Schema or Markdown and return the exit code."""
    print(settings.as_markdown() if arguments.markdown else settings.as_text(), end="")
    return DONE


def completion(arguments: argparse.Namespace) -> int:
    """Print a script with which a shell completes commands and return the exit code."""
    files = {"CONFIG": shtab.FILE, "FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "RUN": shtab.DIRECTORY}
    (subparsers,) = (action for action in arguments.parser._actions if isinstance(action.choices, dict))
    for command in subparsers.choices.values():
        for action in command._actions:
            if action.metavar == "CONFIG":
                # Completes the names of ready examples, and YAML files.
                action.complete = {"bash": "_tpu_pipelines_config", "zsh": "_tpu_pipelines_config", "tcsh": "f"}
            elif action.metavar in files:
                action.complete = files[action.metavar]
    names = " ".join(ready_examples())
    preamble = {
        "bash": f'_tpu_pipelines_config() {{\n  compgen -W "{names}" -- "$1"\n  compgen -f -X "!*.y*ml" -- "$1"\n}}',
        "zsh": f'_tpu_pipelines_config() {{\n  compadd {names}\n  _files -g "*.(yaml|yml)"\n}}',
    }
    print(shtab.complete(arguments.parser, shell=arguments.shell, preamble=preamble.get(arguments.shell, "")))
    return DONE
