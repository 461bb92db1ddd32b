"""The command that makes a shell complete the others."""

import argparse
from collections.abc import Callable
from typing import Any

from tpu_pipelines.cli.options import DONE


def _add_completion(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        epilog="Example: tpu-pipelines completion bash",
        help="print what makes your shell complete these commands",
        description="Print a script for a shell, with which it completes commands, flags, ready examples and files. "
        'Bash: eval "$(tpu-pipelines completion bash)" in ~/.bashrc. Zsh: tpu-pipelines completion zsh > a file '
        "_tpu-pipelines in a folder of $fpath.",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh")
    completion.set_defaults(command=_completion)


def _completion(arguments: argparse.Namespace) -> int:
    import shtab

    from tpu_pipelines.config.configuration import ready_examples

    files = {"CONFIG": shtab.FILE, "FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "RUN": shtab.DIRECTORY}
    (subparsers,) = (action for action in arguments.parser._actions if isinstance(action.choices, dict))
    for command in subparsers.choices.values():
        for action in command._actions:
            if action.metavar == "CONFIG":
                # Names are offered; a file is completed where the word begins like one.
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


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_completion,)
