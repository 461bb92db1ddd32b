"""Blocks that describe an evaluated model, for its report and its model card."""

import json
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.formatting import percent, plain_number
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, TextInput, as_fields
from tpu_components.core.examples.text import START
from tpu_components.core.pages.blocks import SIGNS, Block, Cell, Fields, Section, Sentences, Table
from tpu_components.core.pages.scores import Score, table_of
from tpu_components.core.results.evaluation_info import Evaluation

_MAX_SLICES = 30
_GOODPUT = {
    "trained": "training",
    "start_up": "start-up",
    "waiting": "waiting for input and checkpoints",
    "lost": "lost in interruptions",
    "other": "validation and other work",
}
_BEST_EPOCH = {
    "validation_loss": ", the lowest validation loss",
    "loss": ", the lowest training loss: there is no validation split",
}
# Title, first column heading and notes of the table of classes, labels or targets.
_TABLES = {
    CLASSIFICATION: ("Classes, weakest first", "Class"),
    MULTI_LABEL: ("Labels, weakest first", "Label", "A label is predicted if its probability is above 50%."),
    REGRESSION: (
        "Targets",
        "Target",
        "Each row is in the unit of its target. R² is the share of a target's variance that the model explains.",
    ),
}
_COLUMNS = {
    "support": "Examples",
    "precision": "Precision",
    "recall": "Recall",
    "champion_precision": "Champion's precision",
    "champion_recall": "Champion's recall",
    "weight": "Weight in the loss",
    "f1": "F1",
    "average_precision": "Average precision",
    "roc_auc": "ROC AUC",
    "mean_absolute_error": "Mean absolute error",
    "root_mean_squared_error": "Root mean squared error",
    "median_absolute_error": "Median absolute error",
    "r2": "R²",
}


def describe_decision(evaluation: Evaluation) -> Sentences:
    """Return a list of sentences: the gate's decision as the title, and the outcome of each rule."""
    decision = "Passed the gate" if evaluation.gate.promote else "Did not pass the gate"
    rules = [f"{SIGNS[rule.passed]} {rule.text}" for rule in evaluation.gate.reasons]
    return Sentences(rules, decision, evaluation.gate.promote)


def list_replicas(training: Mapping[str, Any]) -> str:
    """Return the number and kind of the devices that a model was trained on, for example `8 × tpu`."""
    return f"{training['num_replicas']:,} × {training['accelerator']}"


def describe_training(split: str, manifest: Manifest, info: ModelInfo) -> Fields:
    """Return named values that describe a model's data and training, such as splits and devices.

    Args:
        split: Split on which the model was evaluated.
        manifest: Description of the data set.
        info: Description of the model.
    """
    training = info.training
    frozen = []
    left = training.get("epochs", 0)  # Training may have stopped before the end of a stage.
    for stage in training.get("stages", ()):
        if count := min(stage["epochs"], left):
            frozen.append(f"{count} with {', '.join(stage['frozen']) or 'nothing'} frozen")
        left -= count
    in_stages = f" ({', then '.join(frozen)})" if frozen else ""
    synchronized = f"synchronised over the batch of all {training.get('num_replicas')} replicas"
    copies = manifest.split(split).statistics.get("num_also_in_train")
    run = training and {
        "Trained on": f"{list_replicas(training)}, {training['backend']}, {training['precision']}",
        "Training": f"{training['epochs']} epochs{in_stages}, {training['seconds']:,.0f} s, "
        f"{training['examples_per_second']:,.0f} {manifest.input.plural}/s",
        "Started from": training.get("initial_model", ""),
        "Goodput": _describe_goodput(training),
        "Best epoch": f"{training['best_epoch']}{_BEST_EPOCH.get(training.get('judged_by', ''), '')}",
        "Batch normalisation": synchronized if training.get("num_synchronized_layers") else "",
    }
    facts = {
        "Model": info.name,
        "Data": manifest.source,
        "Data fingerprint": manifest.fingerprint[:16],
        "Splits": ", ".join(f"{name} {split.num_examples:,}" for name, split in manifest.splits.items()),
        "Scored on": split,
        "Quarantined": f"{len(manifest.quarantined):,} unreadable inputs",
        **(run if training else {"Trained by": "another program; import_model imported it"}),
        **_describe_texts(manifest, split),
        "Also in train": "" if copies is None else f"{copies:,} {manifest.input.plural}, exact copies",
    }
    return Fields(list(facts.items()))


def _describe_goodput(training: Mapping[str, Any]) -> str:
    if not (paid := training.get("paid_seconds")):
        return ""
    parts = ", ".join(f"{paid[part]:,.0f} {words}" for part, words in _GOODPUT.items())
    sessions = "1 session" if training["sessions"] == 1 else f"{training['sessions']:,} sessions"
    return f"{percent(training['goodput'])} of {sum(paid.values()):,.0f} s in {sessions}: {parts}"


def _describe_texts(manifest: Manifest, split: str) -> dict[str, str]:
    texts = manifest.input
    statistics = manifest.split(split).statistics
    if not isinstance(texts, TextInput):
        return {}
    side = "last" if texts.truncate == START else "first"
    return {
        "Texts": f"the {side} {texts.num_tokens} tokens of each text; {statistics['num_truncated']:,} texts are longer",
        "Unknown words": f"{percent(statistics['num_unknown'] / statistics['num_tokens'], 2)} of the tokens",
    }


def list_settings(manifest: Manifest, info: ModelInfo, gate: Mapping[str, Any]) -> Fields:
    """Return a list of the settings of data, model, training and gate, with their values. Empty values are left out.

    Args:
        manifest: Description of the data set.
        info: Description of the model.
        gate: Fields of `EvaluateParams`; may be empty.
    """
    data = {"source": manifest.source, "split": manifest.split_rule, "columns": manifest.columns, "task": manifest.task}
    sections = {
        "data": {**data, **as_fields(manifest.input)},
        "model": {"name": info.name, **info.parameters},
        "training": info.training,
        "gate": gate,
    }
    values_by_name = (
        (f"{section}.{name}", value if isinstance(value, str) else json.dumps(value))
        for section, settings in sections.items()
        for name, value in settings.items()
    )
    return Fields([(name, text) for name, text in values_by_name if text not in ("{}", "[]", "null")])


def compare_slices(evaluation: Evaluation) -> list[Block]:
    """Return a section that compares slices with the champion, the worst slice first.

    Return an empty list without a champion.
    """
    compared = [(part.difference.advantage, i) for i, part in enumerate(evaluation.slices) if part.difference]
    slices = [Score.of_slice(evaluation.slices[i]) for _, i in sorted(compared)[:_MAX_SLICES]]
    if not slices:
        return []
    chance = "Brackets show confidence intervals of the differences. All intervals together have the gate's confidence."
    return [Section("Slices, the worst compared with the champion first", [chance, table_of("slice", slices)])]


def tabulate_names(evaluation: Evaluation, manifest: Manifest, info: ModelInfo, most: int | None = None) -> list[Block]:
    """Return a table of metrics with a row for each class, label or target, or an empty list for a language model.

    Classes and labels are sorted by metric, the weakest first. Rows of classes also have the champion's metrics, and
    the weight of the class in the training loss.

    Args:
        evaluation: Metrics of the model and of the champion.
        manifest: Description of the data set.
        info: Description of the model.
        most: Largest number of rows, or None for all.
    """
    task = manifest.task
    weights: Mapping[str, float] = info.training.get("weights_by_class", {})
    if task not in _TABLES:
        return []
    (title, noun, *notes), figures = _TABLES[task], evaluation.challenger
    theirs = {item["name"]: item for item in (evaluation.champion or {}).get("per_class", ())}
    weakest_first = [
        row
        | ({f"champion_{name}": theirs[row["name"]][name] for name in ("precision", "recall")} if theirs else {})
        | ({"weight": weights.get(row["name"])} if weights else {})
        for row in sorted(figures.get("per_class", ()), key=lambda item: (item["support"] == 0, item["f1"]))
    ]
    rows = weakest_first or figures["per_target"]
    if most and len(rows) > most:
        notes.append(f"The first {most:,} of {len(rows):,} rows.")
    columns = {noun: "<", **dict.fromkeys((_COLUMNS[name] for name in rows[0] if name != "name"), ">")}
    table = Table(columns, [[_show_figure(name, value) for name, value in row.items()] for row in rows[:most]])
    return [Section(title, [*notes, table])]


def _show_figure(name: str, value: Any) -> str | Cell:
    if isinstance(value, str):
        return value
    if value is None:
        return Cell("–", "note")
    if name.endswith(("error", "weight")):
        return plain_number(value)
    if name == "r2":
        return f"{value:.4f}"
    return f"{value:,}" if name == "support" else Cell(f"{value:.3f}", share=value)
