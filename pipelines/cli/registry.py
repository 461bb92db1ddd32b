"""Commands about registered models."""

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from tpu_pipelines.cli.options import DONE, add_workspace, show_text, user_path


def _add_registry(commands: Any) -> None:
    registry = commands.add_parser(
        "registry",
        epilog="Example: tpu-pipelines registry promote digits 0003 --reason 'tried by hand'",
        help="list registered models, show one, promote one by hand or roll back",
        description="list [NAME]: the versions of every model, or of one. show NAME [VERSION]: all that is recorded of "
        "the champion, or of a version. promote NAME VERSION: make it the champion, whatever the gate says. "
        "rollback NAME: return to the champion before; runs do not undo that.",
    )
    registry.add_argument("action", choices=("list", "show", "promote", "rollback"))
    registry.add_argument("name", nargs="?", default="", metavar="NAME", help="the model, as the run that made it")
    registry.add_argument("version", nargs="?", default="", metavar="VERSION", help="as 0001")
    add_workspace(registry)
    registry.add_argument(
        "--registry", type=user_path, metavar="DIR", help="a registry elsewhere than in the workspace"
    )
    registry.add_argument("--reason", default="", metavar="TEXT", help="goes into the history")
    registry.add_argument(
        "--verify",
        metavar="FILE",
        help="move the champion only to a version whose signatures hold for this public key",
    )
    registry.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    registry.set_defaults(command=_registry)


def _registry(arguments: argparse.Namespace) -> int:
    from tpu_components.core.base.errors import InputError
    from tpu_components.serving.params import key_to_verify
    from tpu_pipelines.runs import versions as registry

    root, action = arguments.registry or arguments.workspace / "registry", arguments.action
    name, version = arguments.name, arguments.version
    least, most = {"list": (0, 1), "show": (1, 2), "promote": (2, 2), "rollback": (1, 1)}[action]
    if not least <= bool(name) + bool(version) <= most:
        words = {"list": "[NAME]", "show": "NAME [VERSION]", "promote": "NAME VERSION", "rollback": "NAME"}[action]
        raise InputError(f"Expected registry {action} {words}. Received: registry {action} {name} {version}".rstrip())
    verify_key = key_to_verify(arguments.verify, {})
    if verify_key and action not in ("promote", "rollback"):
        raise InputError(f"registry {action} verifies nothing: --verify is of promote and rollback. Use `verify`.")
    answer: Any
    if action == "list":
        answer = registry.as_rows(root, name)
        text = registry.as_table(answer)
    elif action == "show":
        answer = registry.describe(root, name, version)
        text = registry.as_text(answer)
    else:
        how = arguments.reason, verify_key
        move = registry.promote(root, name, version, *how) if action == "promote" else None
        answer = dataclasses.asdict(move or registry.roll_back(root, name, *how))
        text = f"{name} version {answer['version']} is the champion, after {answer['previous'] or 'none'}"
    if arguments.json:
        print(json.dumps(answer))
    else:
        show_text(text)
    return DONE


COMMANDS: tuple[Callable[[Any], None], ...] = (_add_registry,)
