"""The registry in words and as JSON, and what may be done to it by hand."""

import getpass
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import in_one_line, lay_out
from tpu_components.core.drift.sketches import ANSWERS, SKETCH
from tpu_components.core.examples.interface import judged_figure
from tpu_components.core.registry.folder import ModelRegistry, list_models
from tpu_components.core.registry.reference import CHAMPION
from tpu_components.core.registry.signing import verify_version
from tpu_components.core.registry.versions import CARD_FILE, Move
from tpu_components.core.results.metric_table import show
from tpu_components.serving.exported import load_model

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


def as_rows(root: Path, model_name: str = "") -> list[dict[str, Any]]:
    """Return a row per version, of one model or of all: number, aliases, time, metrics, parent, size and damage.

    Every file of every version is read and checked.

    Raises:
        InputError: If there is no registry, or no such model in it, or its aliases cannot be read.
    """
    models = [_model(root, model_name)] if model_name else list_models(root)
    if not models:
        raise InputError(f"There is no registry in {root}: expected models, received none. Check --workspace.")
    return [_row(model, number) for model in models for number in model.numbers()]


def _row(model: ModelRegistry, number: str) -> dict[str, Any]:
    aliases = [alias for alias, at in model.aliases().items() if at == number]
    row = {"model": model.model_name, "version": number, "aliases": aliases}
    try:
        version = model.version(number)
    except InputError as error:
        return row | {"created": "", "metrics": {}, "parent": "", "num_bytes": 0, "damage": [str(error)]}
    facts = {name: getattr(version, name) for name in ("created", "metrics", "parent", "num_bytes")}
    return row | facts | {"damage": list(version.damage())}


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows, to be read by people; what is damaged is named below them."""
    lines = []
    for row in rows:
        metrics = row["metrics"]
        judged = judged_figure(metrics)
        score = f"{judged} {show(metrics[judged])}" if judged else "-"
        loss = show(metrics["loss"]) if "loss" in metrics else "-"
        aliases, parent, size = ", ".join(row["aliases"]), row["parent"] or "-", f"{row['num_bytes'] / 2**20:.1f}"
        lines.append((row["model"], row["version"], aliases, row["created"], score, loss, parent, size))
    damage = [f"damaged: {row['model']} {row['version']}: {words}" for row in rows for words in row["damage"]]
    return "\n".join([*lay_out(_COLUMNS, lines), *map(in_one_line, damage)])


def describe(root: Path, model_name: str, number: str = "") -> dict[str, Any]:
    """Describe a version, the champion if none is named, with all that is recorded of it, and the alias's history.

    Raises:
        InputError: If there is no such version, or it is damaged.
    """
    model = _model(root, model_name)
    version = model.find(number or CHAMPION)
    if version is None:
        raise InputError(
            f"{model_name!r} has no {number or CHAMPION} in {root}. Name a version; `registry list` shows them."
        )
    aliases = [alias for alias, at in model.aliases().items() if at == version.number]
    history = [vars(move) for move in model.moves()]
    return {
        "model": model_name,
        "version": version.number,
        "aliases": aliases,
        **version.as_dict(),
        "directory": str(version.directory),
        "card": str(version.directory / CARD_FILE) if CARD_FILE in version.files else "",
        "history": history,
    }


def as_text(description: Mapping[str, Any]) -> str:
    """Return a description, to be read by people: without checksums and sketches."""
    shown = {name: value for name, value in description.items() if name not in ("files", "history", "lineage")}
    moves = [
        f"{move['time']}  {move['by']:<9}{move['previous'] or '-'} → {move['version']}  {move['reason']}"
        for move in description["history"]
    ]
    facts = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120)
    lineage = {name: value for name, value in description["lineage"].items() if name not in (SKETCH, ANSWERS)}
    lineage_text = yaml.safe_dump({"lineage": lineage}, allow_unicode=True, width=120)
    return f"{facts}{lineage_text}history:\n" + "\n".join(f"  {in_one_line(move)}" for move in moves)


def promote(root: Path, model_name: str, number: str, reason: str = "", verify_key: str = "") -> Move:
    """Make a version the champion by hand, once its export has loaded and answered a blank image.

    Raises:
        InputError: If there is no such version, it is the champion already, damaged, or not signed with the key's pair.
    """
    model = _model(root, model_name)
    version = model.version(number)
    version.check_files()
    if verify_key:
        verify_version(version.directory, verify_key)
    load_model(version.export_dir)
    return model.override(number, CHAMPION, reason or _by_hand())


def roll_back(root: Path, model_name: str, reason: str = "", verify_key: str = "") -> Move:
    """Return to the champion before this one, whose files are checked first.

    Raises:
        InputError: If there was none, it is damaged, or not signed with the key's pair.
    """
    return _model(root, model_name).roll_back(CHAMPION, reason or _by_hand(), verify_key)


def _model(root: Path, model_name: str) -> ModelRegistry:
    model = ModelRegistry(root, model_name)
    model.require()
    return model


def _by_hand() -> str:
    try:
        return f"by {getpass.getuser()}"
    except (KeyError, OSError):  # An id without a name, as in many containers.
        return f"by user {os.getuid()}"
