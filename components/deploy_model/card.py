"""Model card of a version: its README.md in Hugging Face's format, from the results of the earlier steps.

https://huggingface.co/docs/hub/model-cards

Sections of the template without content are left out. Equal facts give equal bytes: version number and date, which the
registry decides, are in `version.json` instead.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.comparison import Shift, find_shifts
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.drift.version_sketches import sketch_of
from tpu_components.core.examples.artifacts import (
    CODE_FILE,
    COPIES_FILE,
    EXPORT_FILE,
    TRAIN,
    Manifest,
    ModelInfo,
    Split,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    CorpusInput,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.text import START
from tpu_components.core.files import typed_json
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages.markdown import environment, plain
from tpu_components.core.pages.scores import Score, percent, scores_of, table_of
from tpu_components.core.registry.opening import origin_of_version
from tpu_components.core.registry.versions import Registry, short_digest
from tpu_components.core.results.evaluation_info import Evaluation, Slice
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.core.results.metric_table import direction, show, task_metrics
from tpu_components.deploy_model.front_matter import front_matter
from tpu_components.deploy_model.params import PREFLIGHT, DeployParams
from tpu_components.serving.params import ServeParams

_CLASSES = 20  # Rows of the table of classes.
_SLICES = 10
_DRIFTED = 5
_NAMED = 5  # Regression targets in the first sentence.
_NAME = 60  # Longest name of a class or slice, in characters.
# Hyper-parameters to show, in this order, unless they are off.
_SETTINGS = (
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
        export: Info of the export; None if the export has none.
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
    export: ExportInfo | None
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
        export=ExportInfo.load(export_dir) if (export_dir / EXPORT_FILE).is_file() else None,
        lineage=lineage,
        champion=champion,
        shifts=shifts,
        licence=params.licence,
        notes=params.notes,
    )


def write_card(facts: CardFacts) -> str:
    """Return the card: front matter in YAML, then Markdown."""
    manifest, evaluation = facts.manifest, facts.evaluation
    scores = scores_of(evaluation)
    yaml_text = front_matter(
        name=facts.model_name,
        licence=facts.licence,
        kind=manifest.input.kind,
        task=manifest.task,
        formats=facts.export.formats if facts.export else {},
        source=manifest.source,
        fingerprint=manifest.fingerprint,
        split=evaluation.split,
        figures={score.metric.name: (score.label, score.number) for score in scores},
    )
    slices = [Score.of_slice(part) for part in _worst(evaluation.slices)]
    footprint, code = _footprint(facts.lineage), facts.lineage.get("code")
    template = environment(Path(__file__).parent).get_template("card.md.jinja")
    text = template.render(
        facts=facts,
        manifest=manifest,
        evaluation=evaluation,
        scores=scores,
        results=table_of("metric", scores).markdown(),
        num_judged=_num_judged(evaluation),
        answers=_answers(manifest),
        takes=_takes(manifest.input),
        never_shown=[*_never_shown(manifest)],
        limits=[*_limits(facts, scores)],
        drifted=[shift for shift in facts.shifts or () if shift.drifted][:_DRIFTED],
        classes=_classes(manifest),
        num_classes=len(manifest.class_names),
        settings=_settings(facts.model),
        times=_times(facts.model.training),
        machine=_machine(facts.model.training),
        slices=table_of("slice", slices).markdown() if slices else "",
        num_slices=len(slices),
        footprint=footprint,
        compiler=_pairs(dict(sorted(footprint.compiler.items()))) if footprint else "",
        price=f"${footprint.usd_per_run:,.2f}" if footprint and footprint.usd_per_run >= 0.01 else "less than $0.01",
        billed_by=billed_by(footprint.target if footprint else ""),
        examples=_pairs({name: f"{split.num_examples:,}" for name, split in manifest.splits.items()}),
        copies=_copies(facts.copies),
        code={step: str(digest)[:16] for step, digest in sorted(code.items())} if isinstance(code, Mapping) else {},
        config=short_digest(facts.lineage.get("config")),
        example=_EXAMPLES[manifest.input.kind],
        port=ServeParams().port,
        name_of=_name,
        label=partial(_label, manifest.task),
        show=show,
        size=_size,
    )
    return f"---\n{yaml_text}---\n\n{text}"


def _num_judged(evaluation: Evaluation) -> int:
    unseen = evaluation.unseen
    return unseen.num_examples if unseen and unseen.scalars else int(evaluation.challenger.get("num_examples", 0))


def _name(text: str) -> str:
    return plain(text, _NAME) or repr(text)


def _label(task: str, metric: str) -> str:
    metrics = task_metrics(task)
    return metrics[metric].label if metric in metrics else metric


def _answers(manifest: Manifest) -> str:
    """Describe the output of a model for this data set."""
    names, count = manifest.class_names, f"{len(manifest.class_names):,}"
    return {
        CLASSIFICATION: f"the probability of each of {count} classes",
        MULTI_LABEL: f"the probability of each of {count} labels, any number of which may be right",
        REGRESSION: _listed([*map(_name, names[:_NAMED]), *(["others"] if len(names) > _NAMED else [])]),
        LANGUAGE_MODEL: f"the probability of each of {count} characters to come next",
    }[manifest.task]


def _takes(inputs: Any) -> str:
    """Describe the input of a model."""
    if isinstance(inputs, ImageInput):
        height, width, channels = inputs.image_shape
        return f"an image ({height} × {width} pixels, {'grey' if channels == 1 else 'in colour'})"
    if isinstance(inputs, CorpusInput):
        return f"the last {inputs.num_tokens:,} characters of a text"
    side = "last" if inputs.truncate == START else "first"
    return f"a text (of which the {side} {inputs.num_tokens:,} tokens count)"


_EXAMPLES = {"image": "photo.jpg", "text": "'a text'", "corpus": "'The beginning of a text'"}
_RANGES = {
    "brightness": "a mean brightness from {} to {} of 255",
    "height": "a height from {} to {} pixels",
    "width": "a width from {} to {} pixels",
    "words": "{} to {} words",
}


def _never_shown(manifest: Manifest) -> Iterator[str]:
    """Yield sentences about inputs that the training data do not cover."""
    train, inputs = manifest.splits.get(TRAIN), manifest.input
    if manifest.task == CLASSIFICATION:
        yield f"Given anything else, it still answers one of its {len(manifest.class_names):,} classes."
    if manifest.task == REGRESSION and train:
        for name, target in zip(manifest.class_names[:_CLASSES], train.targets, strict=False):
            yield (
                f"No training example has a '{_name(name)}' below {target.minimum:.4g} or above {target.maximum:.4g}."
            )
    if isinstance(inputs, CorpusInput):
        yield f"Characters other than its {len(manifest.class_names):,} are all the same to it."
    figures = train.distributions if train else {}
    ranges = [
        words.format(f"{figures[name].minimum:,.4g}", f"{figures[name].maximum:,.4g}")
        for name, words in _RANGES.items()
        if name in figures and figures[name].minimum < figures[name].maximum
    ]
    if ranges:
        yield f"The {inputs.plural} that it was trained on have {_listed(ranges)}; for others nothing is known."


def _limits(facts: CardFacts, scores: Sequence[Score]) -> Iterator[str]:
    """Yield sentences about the uncertainty of the metrics and the weaknesses of the model."""
    manifest, evaluation = facts.manifest, facts.evaluation
    split, plural = evaluation.split, manifest.input.plural
    judged = next((score for score in scores if score.interval), None)
    if judged:
        yield (
            f"{judged.label} was measured on {_num_judged(evaluation):,} {plural}; its 95 % confidence interval is "
            f"{judged.interval}."
        )
    yield from _weak_classes(manifest, evaluation)
    error = evaluation.challenger.get("calibration_error")
    if error is not None:
        yield f"Its probabilities are off by {percent(error)} on average (expected calibration error)."
    yield from _text_limits(manifest)
    statistics = manifest.splits[split].statistics if split in manifest.splits else {}
    if also := statistics.get("num_also_in_train"):
        yield f"{also:,} of the {split} {plural} are in the training data too, so the figures are too good."
    sets = facts.copies.get("contradictory")
    if sets and isinstance(sets, int):
        yield f"Sets of copies that have several labels, of which at least one is wrong: {sets:,}."
    if evaluation.unseen:
        yield evaluation.unseen.rule.text.capitalize() + "."
    if drifted := [shift.figure for shift in facts.shifts or () if shift.drifted]:
        names = _listed([f"'{_name(name)}'" for name in drifted[:_DRIFTED]])
        yield f"Its data have drifted from those of version {facts.champion}: {names}."


def _weak_classes(manifest: Manifest, evaluation: Evaluation) -> Iterator[str]:
    train = manifest.splits.get(TRAIN)
    if manifest.task in (CLASSIFICATION, MULTI_LABEL) and train and train.class_counts:
        least, name = min(zip(train.class_counts, manifest.class_names, strict=True), key=lambda pair: pair[0])
        of_all = f"{least:,} of {train.num_examples:,} {manifest.input.plural}"
        yield f"The class that it was shown least is '{_name(name)}', in {of_all}."
    if absent := evaluation.challenger.get("num_absent_classes"):
        yield f"{absent:,} classes have no example in the {evaluation.split} split: nothing is known of them."
    for part in _worst(evaluation.slices)[:1]:
        score = Score.of_slice(part)
        yield (
            f"It is worst where {plain(part.by)} is '{_name(part.name)}': {_label(manifest.task, part.metric).lower()} "
            f"{score.value}{f' ({score.interval})' if score.interval else ''} on {part.num_examples:,} "
            f"{manifest.input.plural}."
        )


def _text_limits(manifest: Manifest) -> Iterator[str]:
    inputs, train = manifest.input, manifest.splits.get(TRAIN)
    if not isinstance(inputs, TextInput) or not train:
        return
    told = train.statistics
    if cut := told.get("num_truncated"):
        part = "start" if inputs.truncate == START else "end"
        yield (
            f"{cut / train.num_examples:.1%} of the training texts are longer than {inputs.num_tokens:,} tokens: it "
            f"never saw their {part}."
        )
    if told.get("num_tokens"):
        yield f"{told['num_unknown'] / told['num_tokens']:.1%} of the training texts' tokens are not in its vocabulary."


def _worst(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices with the worst metrics, the worst first."""
    return sorted(slices, key=lambda part: part.value * (direction(part.metric) or 1))[:_SLICES]


def _classes(manifest: Manifest) -> list[tuple[str, tuple[int, ...]]]:
    """Return classes with their number of examples per split, the largest class first."""
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


def _times(training: Mapping[str, Any]) -> dict[str, str]:
    """Return rows for the card: epoch of the weights, examples seen and speed."""

    def number(name: str) -> float | None:
        value = training.get(name)
        return value if isinstance(value, int | float) else None

    times = {}
    if (epoch := number("best_epoch")) is not None:
        lowest = ", with the lowest validation loss" if training.get("judged_by") == "validation_loss" else ""
        times["Weights"] = f"of epoch {epoch}{lowest}"
    if (seen := number("examples_seen")) is not None and (steps := number("steps")) is not None:
        times["Examples seen"] = f"{seen:,} in {steps:,} steps"
    if (speed := number("examples_per_second")) is not None:
        times["Speed"] = f"{speed:,.0f} examples a second"
    return times


def _machine(training: Mapping[str, Any]) -> dict[str, str]:
    """Return rows for the card: hardware of the training and hours of use."""
    machine = {}
    if training.get("accelerator") and training.get("host"):
        count = training.get("num_replicas", 1)
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        machine["Hardware Type"] = f"{training['accelerator']}, {replicas}, on a host of {training['host']}"
    if (hours := _hours(training)) is not None:
        machine["Hours used"] = f"{hours:.2g}"
    return machine


def _hours(training: Mapping[str, Any]) -> float | None:
    """Return the hours that the training used a machine; None if unknown."""
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
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _size(num_bytes: int) -> str:
    """Format a size in bytes with a suitable unit.

    Example:
        >>> _size(2_048), _size(6_065_344), _size(16_911_433_728)
        ('2.0 KiB', '5.8 MiB', '15.8 GiB')
    """
    exponent, unit = next((pair for pair in ((30, "GiB"), (20, "MiB")) if num_bytes >> pair[0]), (10, "KiB"))
    return f"{num_bytes / 2**exponent:,.1f} {unit}"
