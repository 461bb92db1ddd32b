"""Model card of a version: its README.md in Hugging Face's format, from the results of the earlier steps.

https://huggingface.co/docs/hub/model-cards

Sections of the template without content are left out. Equal facts give equal bytes: version number and date, which the
registry decides, are in `version.json` instead.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tpu_components.core.base import formatting
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.comparison import Shift, find_shifts
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.drift.version_sketches import sketch_of
from tpu_components.core.examples.artifacts import (
    CODE_FILE,
    COPIES_FILE,
    TRAIN,
    Manifest,
    ModelInfo,
    Split,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    TEXT,
)
from tpu_components.core.files import typed_json
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages.markdown import environment, plain
from tpu_components.core.pages.scores import Score, scores_of, table_of
from tpu_components.core.registry.opening import origin_of_version
from tpu_components.core.registry.versions import Registry, short_digest
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.core.results.metric_table import direction, task_metrics
from tpu_components.deploy_model.params import PREFLIGHT, DeployParams
from tpu_components.serving.params import ServeParams

_CLASSES = 20  # Rows of the table of classes.
_SLICES = 10
_DRIFTED = 5
_NAMED = 5  # Regression targets in the first sentence.
_NAME = 60  # Longest name of a class or slice, in characters.
# Hyper-parameters to show, in this order, unless they are off.
_SETTINGS = (
    "initial_model",
    "epochs",
    "stages",
    "batch_size_per_replica",
    "num_replicas",
    "optimizer",
    "learning_rate",
    "learning_rate_scaling",
    "learning_rate_schedule",
    "warmup_epochs",
    "weight_decay",
    "random_flip",
    "random_crop_pixels",
    "random_resized_crop",
    "mixup_alpha",
    "label_smoothing",
    "ema_decay",
    "early_stopping_epochs",
    "precision",
    "backend",
    "sharding",
)
# From https://huggingface.co/docs/hub/repositories-licenses (August 2026); the hub calls any other licence `other`.
_HUB_LICENCES = """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0
    grok2-community h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2
    llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail
    openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
"""
_PIPELINES = {
    (IMAGE, CLASSIFICATION): "image-classification",
    (IMAGE, MULTI_LABEL): "image-classification",
    (TEXT, CLASSIFICATION): "text-classification",
    (TEXT, MULTI_LABEL): "text-classification",
    (CORPUS, LANGUAGE_MODEL): "text-generation",
}
# Our metrics with another name in https://huggingface.co/metrics.
_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "macro_precision": "precision",
    "macro_recall": "recall",
    "macro_roc_auc": "roc_auc",
    "mean_absolute_error": "mae",
    "r2": "r_squared",
}
_OFF: tuple[Any, ...] = (None, 0, "", "none", "auto", "replicated", [], ())


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """Facts for a model card.

    Attributes:
        model_name: Name of the model in the registry.
        manifest: Manifest of the data set.
        copies: Content of `copies.json`; empty if there is no such file.
        model: Info of the trained model.
        has_code: Whether the model contains code of the user, which is needed to rebuild it.
        evaluation: Result of the evaluation.
        export: Info of the export.
        lineage: Origin of the version.
        champion: Version that the model was compared with; empty if there was none.
        shifts: Drift of the data from the champion's data; None if unknown.
        licence: Identifier of the licence; empty if none was stated.
        notes: The user's own text.
    """

    model_name: str
    manifest: Manifest
    copies: Mapping[str, Any]
    model: ModelInfo
    has_code: bool
    evaluation: Evaluation
    export: ExportInfo
    lineage: Mapping[str, Any]
    champion: str = ""
    shifts: Sequence[Shift] | None = None
    licence: str = ""
    notes: str = ""


def read_facts(
    params: DeployParams,
    registry: Registry,
    folders: tuple[Path, Path, Path],
    manifest: Manifest,
    evaluation: Evaluation,
    lineage: Mapping[str, Any],
    champion: str,
) -> CardFacts:
    """Read the facts for a model card from the folders of the steps.

    Args:
        params: Licence and notes.
        registry: Registry of the model.
        folders: Folders that create_tfrecords, train_model and export_model wrote.
        manifest: Manifest of the records.
        evaluation: Evaluation of the model.
        lineage: Origin of the version.
        champion: Number of the version that the model was compared with; empty if there was none.
    """
    records_dir, model_dir, export_dir = folders
    copies: Any = {}
    with contextlib.suppress(OSError, ValueError):  # Older records have no copies.json.
        copies = typed_json.decode((records_dir / COPIES_FILE).read_bytes())
    shifts = None
    with contextlib.suppress(InputError):  # The champion has no sketch, or one of another kind.
        if champion and (version := registry.find(champion)):
            before = sketch_of(origin_of_version(registry.model_name, version))
            shifts = find_shifts(DataSketch.make(manifest), before)
    return CardFacts(
        model_name=params.model_name,
        manifest=manifest,
        copies=copies if isinstance(copies, dict) else {},
        model=ModelInfo.load(model_dir),
        has_code=(model_dir / CODE_FILE).is_file(),
        evaluation=evaluation,
        export=ExportInfo.load(export_dir),
        lineage=lineage,
        champion=champion,
        shifts=shifts,
        licence=params.licence,
        notes=params.notes,
    )


def write_card(facts: CardFacts) -> str:
    """Return the card: front matter in YAML, then Markdown."""
    manifest, evaluation = facts.manifest, facts.evaluation
    names, train, footprint = manifest.class_names, manifest.splits.get(TRAIN), _footprint(facts.lineage)
    scores = scores_of(evaluation)
    worst = sorted(evaluation.slices, key=lambda part: part.value * (direction(part.metric) or 1))[:_SLICES]
    slices, code = list(map(Score.of_slice, worst)), facts.lineage.get("code")
    drifted = [shift for shift in facts.shifts or () if shift.drifted][:_DRIFTED]
    rarest = None
    if manifest.task in (CLASSIFICATION, MULTI_LABEL) and train and train.class_counts:
        rarest = min(zip(train.class_counts, names, strict=True), key=lambda pair: pair[0])
    unseen, num_judged = evaluation.unseen, int(evaluation.challenger.get("num_examples", 0))
    if unseen and unseen.scalars:
        num_judged = unseen.num_examples
    text = (
        environment(Path(__file__).parent)
        .get_template("card.md.jinja")
        .render(
            facts=facts,
            manifest=manifest,
            evaluation=evaluation,
            scores=scores,
            results=table_of("metric", scores).markdown(),
            judged=next((score for score in scores if score.interval), None),
            num_judged=num_judged,
            answers=_ANSWERS,
            targets=_listed([*map(_name, names[:_NAMED]), *(["others"] if len(names) > _NAMED else [])]),
            ranges=_ranges(train.distributions if train else {}),
            rarest=rarest,
            drifted=drifted,
            drifted_names=_listed([f"'{_name(shift.figure)}'" for shift in drifted]),
            classes=_classes(manifest),
            settings=_settings(facts.model),
            hours=_hours(facts.model.training),
            worst=worst,
            slices=slices,
            slices_table=table_of("slice", slices).markdown() if slices else "",
            footprint=footprint,
            compiler=_pairs(dict(sorted(footprint.compiler.items()))) if footprint else "",
            billed_by=billed_by(footprint.target if footprint else ""),
            examples=_pairs({name: f"{split.num_examples:,}" for name, split in manifest.splits.items()}),
            copies=_copies(facts.copies),
            code={step: str(digest)[:16] for step, digest in sorted(code.items())} if isinstance(code, Mapping) else {},
            config=short_digest(facts.lineage.get("config")),
            port=ServeParams().port,
            count="{:,}".format,
            label=partial(_label, manifest.task),
            name_of=_name,
            formatting=formatting,
        )
    )
    return f"---\n{_front_matter(facts, scores)}---\n\n{text}"


def _front_matter(facts: CardFacts, scores: Sequence[Score]) -> str:
    """Return the YAML by which Hugging Face's hub finds, shows and compares models, without the lines of dashes.

    There is no `datasets` key: it may only name data sets of the hub.
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md
    """
    manifest, kind, licence = facts.manifest, facts.manifest.input.kind, facts.licence.lower()
    pipeline = _PIPELINES.get((kind, manifest.task), "")
    metrics = [
        # Six digits are enough.
        {
            "type": _METRICS.get(score.metric.name, score.metric.name),
            "value": float(f"{score.number:.6g}"),
            "name": score.label,
        }
        for score in scores
        if math.isfinite(score.number)
    ]
    tags = ["tpu-pipelines", kind, {MULTI_LABEL: "multi-label", REGRESSION: REGRESSION}.get(manifest.task, "")]
    tags += ["tflite"] if {"float", "int8"} & facts.export.formats.keys() else []
    content: dict[str, Any] = {}
    if licence:  # SPDX ignores case; the hub uses lower case.
        is_known = licence in _HUB_LICENCES.split()
        content = {"license": licence} if is_known else {"license": "other", "license_name": licence}
    content["library_name"] = "keras"
    if pipeline:
        content["pipeline_tag"] = pipeline
    content["tags"] = [tag for tag in tags if tag]
    if metrics:
        content["metrics"] = list(dict.fromkeys(metric["type"] for metric in metrics))
        split, revision = facts.evaluation.split, manifest.fingerprint
        dataset = {"type": "custom", "name": plain(manifest.source), "split": split, "revision": revision}
        results = {"task": {"type": pipeline or f"{kind}-{manifest.task}"}, "dataset": dataset, "metrics": metrics}
        content["model-index"] = [{"name": facts.model_name, "results": [results]}]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1 << 16)


def _name(text: str) -> str:
    return plain(text, _NAME) or repr(text)


def _label(task: str, metric: str) -> str:
    metrics = task_metrics(task)
    return metrics[metric].label if metric in metrics else metric


_ANSWERS = {
    CLASSIFICATION: "classes",
    MULTI_LABEL: "labels, any number of which may be right",
    LANGUAGE_MODEL: "characters to come next",
}
_RANGES = {
    "brightness": "a mean brightness from {} to {} of 255",
    "height": "a height from {} to {} pixels",
    "width": "a width from {} to {} pixels",
    "words": "{} to {} words",
}


def _ranges(figures: Mapping[str, Any]) -> str:
    """Describe the ranges of brightness, size and words in the training data; empty if all are constant or unknown."""
    ranges = [
        words.format(f"{figures[name].minimum:,.4g}", f"{figures[name].maximum:,.4g}")
        for name, words in _RANGES.items()
        if name in figures and figures[name].minimum < figures[name].maximum
    ]
    return _listed(ranges)


def _classes(manifest: Manifest) -> list[tuple[str, tuple[int, ...]]]:
    """Return the largest classes, each with its number of examples per split; empty for tasks without classes."""
    splits: Sequence[Split] = tuple(manifest.splits.values())
    if manifest.task not in (CLASSIFICATION, MULTI_LABEL):
        return []
    rows = list(zip(manifest.class_names, zip(*(split.class_counts for split in splits), strict=True), strict=True))
    return sorted(rows, key=lambda row: -sum(row[1]))[:_CLASSES]


def _settings(model: ModelInfo) -> dict[str, Any]:
    """Return the hyper-parameters to show, by name, without those that are off."""
    training = model.training
    settings = {name: training[name] for name in _SETTINGS if training.get(name) not in _OFF}
    parameters = {"model_parameters": _pairs(model.parameters)} if model.parameters else {}
    return {**parameters, **settings, **({"seed": training["seed"]} if "seed" in training else {})}


def _hours(training: Mapping[str, Any]) -> float | None:
    """Return the machine hours of the training; None if unknown."""
    paid: Any = training.get("paid_seconds")
    seconds: Any = sum(paid.values()) if isinstance(paid, Mapping) else training.get("seconds")
    return seconds / 3600 if isinstance(seconds, int | float) else None


def _footprint(lineage: Mapping[str, Any]) -> Footprint | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return Footprint.read(lineage[PREFLIGHT])
    return None


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _copies(copies: Mapping[str, Any]) -> str:
    """Describe the copies (duplicates) among the examples; empty if unknown."""
    words = {"exact": "equal to another example", "near": "nearly so", "left_out": "left out for it"}
    words |= {"across_splits": "sets of them across splits"}
    known = {name: copies[name] for name in words if isinstance(copies.get(name), int)}
    if known and not any(known.values()):
        return "none"
    return ", ".join(f"{count:,} {words[name]}" for name, count in known.items())


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
