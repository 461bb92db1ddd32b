"""The command `registry`: lists and shows registered models, and moves the champion by hand."""

import argparse
import dataclasses
import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tpu_components.core.base.errors import DONE, InputError
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.drift.sketches import ANSWERS, SKETCH
from tpu_components.core.pages.blocks import Table
from tpu_components.core.pages.scores import score_and_loss
from tpu_components.core.registry.folder import ModelRegistry, list_models
from tpu_components.core.registry.reference import CHAMPION
from tpu_components.core.registry.signing import verify_version
from tpu_components.core.registry.versions import CARD_FILE
from tpu_components.serving.exported import load_model
from tpu_components.serving.params import key_to_verify
from tpu_pipelines.cli.output import show

_COLUMNS = {
    "model": "<",
    "version": "<",
    "alias": "<",
    "created": "<",
    "score": ">",
    "loss": ">",
    "parent": ">",
    "MiB": ">",
}
# Arguments of each action, and their smallest and largest number.
_ARGUMENTS = {
    "list": ("[NAME]", 0, 1),
    "show": ("NAME [VERSION]", 1, 2),
    "promote": ("NAME VERSION", 2, 2),
    "rollback": ("NAME", 1, 1),
}


def registry(arguments: argparse.Namespace) -> int:
    """List, show, promote or roll back registered models. Return the exit code."""
    root = arguments.registry or arguments.workspace / "registry"
    action = arguments.action
    name, number = arguments.name, arguments.version
    words, least, most = _ARGUMENTS[action]
    if not least <= bool(name) + bool(number) <= most:
        raise InputError(
            (
                f"Wrong arguments for registry {action}: expected registry {action} {words}. Received: registry "
                f"{action} {name} {number}"
            ).rstrip()
        )
    verify_key = key_to_verify(arguments.verify, {})
    if verify_key and action not in ("promote", "rollback"):
        raise InputError(
            f"--verify is not supported with registry {action}: expected promote or rollback. To only verify a "
            "version, use `tpu-pipelines verify`."
        )
    models = [ModelRegistry(root, name)] if name else list_models(root)
    for model in models:
        model.require()
    if action == "list":
        if not models:
            raise InputError(
                f"No models are registered in {root}. A run registers its model if the gate promotes it. "
                "Check --workspace."
            )
        # Every file of every version is read and checked.
        rows = [_row(model, each) for model in models for each in model.numbers()]
        show(rows, _as_table(rows), arguments.json)
    elif action == "show":
        description = _describe(models[0], number or CHAMPION)
        show(description, _as_text(description), arguments.json)
    else:
        reason = arguments.reason or _by_hand()
        move = (
            _promote(models[0], number, reason, verify_key)
            if action == "promote"
            else models[0].roll_back(CHAMPION, reason, verify_key)
        )
        text = f"{name} version {move.version} is the champion, after {move.previous or 'none'}"
        show(dataclasses.asdict(move), text, arguments.json)
    return DONE


def _row(model: ModelRegistry, number: str) -> dict[str, Any]:
    """Return `model`, `version`, `aliases`, `created`, `metrics`, `parent`, `num_bytes` and `damage` of a version."""
    row = {"model": model.model_name, "version": number, "aliases": _aliases(model, number)}
    try:
        version = model.version(number)
    except InputError as error:
        return row | {"created": "", "metrics": {}, "parent": "", "num_bytes": 0, "damage": [str(error)]}
    facts = {name: getattr(version, name) for name in ("created", "metrics", "parent", "num_bytes")}
    return row | facts | {"damage": list(version.damage())}


def _aliases(model: ModelRegistry, number: str) -> list[str]:
    return [alias for alias, at in model.aliases().items() if at == number]


def _as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the versions as a table, with a line for each damaged file below it."""
    lines = []
    for row in rows:
        size = f"{row['num_bytes'] / 2**20:.1f}"
        facts = [row["created"], *score_and_loss(row["metrics"])]
        lines.append((row["model"], row["version"], ", ".join(row["aliases"]), *facts, row["parent"] or "-", size))
    damage = [f"damaged: {row['model']} {row['version']}: {words}" for row in rows for words in row["damage"]]
    return "\n".join([*Table(_COLUMNS, lines).lines(), *map(in_one_line, damage)])


def _describe(model: ModelRegistry, number: str) -> dict[str, Any]:
    """Return all metadata of a version, and the history of its model's alias `champion`.

    Raises:
        InputError: If the version does not exist, or is damaged.
    """
    version = model.find(number)
    if version is None:
        raise InputError(
            f"{model.model_name!r} in {model.root} has no version with the alias {number!r}. "
            "`tpu-pipelines registry list` shows the versions and their aliases."
        )
    return {
        "model": model.model_name,
        "version": version.number,
        "aliases": _aliases(model, version.number),
        **version.as_dict(),
        "directory": str(version.directory),
        "card": str(version.directory / CARD_FILE) if CARD_FILE in version.files else "",
        "history": [vars(move) for move in model.moves()],
    }


def _as_text(description: Mapping[str, Any]) -> str:
    """Return a description as text, without checksums and sketches."""
    shown = {name: value for name, value in description.items() if name not in ("files", "history", "lineage")}
    moves = [
        f"{move['time']}  {move['by']:<9}{move['previous'] or '-'} → {move['version']}  {move['reason']}"
        for move in description["history"]
    ]
    facts = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120)
    lineage = {name: value for name, value in description["lineage"].items() if name not in (SKETCH, ANSWERS)}
    lineage_text = yaml.safe_dump({"lineage": lineage}, allow_unicode=True, width=120)
    return f"{facts}{lineage_text}history:\n" + "\n".join(f"  {in_one_line(move)}" for move in moves)


def _promote(model: ModelRegistry, number: str, reason: str, verify_key: str) -> Any:
    """Make a version the champion by hand. Return the move of the alias.

    Before that, the export is loaded and run once on a blank input.

    Raises:
        InputError: If the version does not exist, is already the champion, is damaged, or has no valid signature.
    """
    version = model.version(number)
    if verify_key:
        verify_version(version.directory, verify_key)
    version.check_files()
    load_model(version.export_dir)
    return model.override(number, CHAMPION, reason)


def _by_hand() -> str:
    try:
        return f"by {getpass.getuser()}"
    except (KeyError, OSError):  # A user ID without a name, for example in a container.
        return f"by user {os.getuid()}"
