"""Model card of a version: its README.md in Hugging Face's format, from the results of the earlier steps.

https://huggingface.co/docs/hub/model-cards

Sections of the template without content are left out. Equal facts give equal bytes: version number and date, which the
registry decides, are in `version.json` instead.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import markupsafe
import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size, dollars, percent, plain_number, show
from tpu_components.core.base.typed_values import with_role
from tpu_components.core.drift.shifts import Shift, find_shifts, say_verdict
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.drift.version_sketches import sketch_of
from tpu_components.core.examples.artifacts import (
    CODE_FILE,
    COPIES_FILE,
    TRAIN,
    Distribution,
    Manifest,
    ModelInfo,
    TargetStatistics,
)
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    TEXT,
    AnyInput,
    CorpusInput,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.text import START
from tpu_components.core.files import typed_json
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.metrics.definitions import direction, task_metrics
from tpu_components.core.models.training_step.hyperparameters import Part, TrainParams
from tpu_components.core.pages.blocks import Block, Fields, Section, Sentences, Table, as_markdown
from tpu_components.core.pages.markdown import fence, plain, quote
from tpu_components.core.pages.scores import Score, scores_of, table_of
from tpu_components.core.registry.opening import origin_of_version
from tpu_components.core.registry.versions import Registry, short_digest
from tpu_components.core.results.evaluation_info import Evaluation, SliceMetric
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.deploy_model.params import PREFLIGHT, DeployParams
from tpu_components.serving.params import ServeParams

_CLASSES = 20  # Rows of the table of classes.
_SLICES = 10
_DRIFTED = 5
_TARGETS = 20
_NAMED = 5  # Regression targets in the first sentence.
_NAME = 60  # Longest name of a class or slice, in characters.
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
_ANSWERS = {
    CLASSIFICATION: "classes",
    MULTI_LABEL: "labels, any number of which may be right",
    LANGUAGE_MODEL: "characters to come next",
}
# Measurements of the examples that limit what the model can be used for.
_RANGES = {
    "brightness": "mean brightness (of 255)",
    "height": "height in pixels",
    "width": "width in pixels",
    "words": "number of words",
}
# By kind of input: an example for the command line, a request in curl's arguments, and the content of a batch.
_JSON = "-H 'Content-Type: application/json' -d '{\"instances\": [\"a text\"]}'"
_EXAMPLES = {
    IMAGE: (
        "photo.jpg",
        "-H 'Content-Type: image/jpeg' --data-binary @photo.jpg",
        "pixels in [0, 255], which it scales itself",
    ),
    TEXT: ("'a text'", _JSON, "ids of `model/vocabulary.txt`"),
    CORPUS: (
        "'The beginning of a text'",
        _JSON,
        "ids of characters, each a place in `class_names` of `model/model.json`",
    ),
}
_COMMANDS = """tpu-pipelines predict export {example}
tpu-pipelines serve export --port {port}
curl {request} http://127.0.0.1:{port}/predict"""
_LOAD = """import keras

with open("model/architecture.json") as file:
    model = keras.models.model_from_json(file.read())
model.load_weights("model/best.weights.h5")"""
_LOAD_WITH_CODE = """from pathlib import Path

from tpu_components.core.models.trained import load_trained_model

model = load_trained_model(Path("model"))"""


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

    @functools.cached_property
    def scores(self) -> Sequence[Score]:
        """The metrics of the model on the examples by which the gate judged it."""
        return scores_of(self.evaluation)

    @property
    def judged_on(self) -> str:
        """The examples from which `scores` are computed, in words, for example `30 images`."""
        return f"{self.evaluation.num_judged:,} {self.manifest.input.plural}"

    @property
    def worst_slices(self) -> Sequence[SliceMetric]:
        """The slices with the worst metrics, the worst first."""
        slices = self.evaluation.slices
        return sorted(slices, key=lambda part: part.value * (direction(part.metric) or 1))[:_SLICES]

    @functools.cached_property
    def footprint(self) -> Footprint | None:
        """Footprint of the training, as preflight estimated it; None if unknown."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return Footprint.read(self.lineage[PREFLIGHT])
        return None


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
    sections: dict[str, Sequence[Block]] = {
        "Model Details": [Section("Model Description", _description(facts))],
        "Uses": [
            Section("Direct Use", [_direct_use(facts.manifest)]),
            Section("Out-of-Scope Use", [Sentences(list(_out_of_scope(facts.manifest)))]),
        ],
        "Bias, Risks, and Limitations": [Sentences(list(_limits(facts)))],
        "How to Get Started with the Model": _start(facts.manifest.input, facts.has_code),
        "Training Details": [
            Section("Training Data", _data(facts)),
            Section("Training Procedure", _procedure(facts.model)),
        ],
        "Evaluation": [
            Section(markupsafe.Markup("Testing Data, Factors & Metrics"), _testing(facts)),
            Section("Results", _results(facts)),
        ],
        "Environmental Impact": [_impact(facts.model.training)],
        "Technical Specifications": [
            Section("Exported Formats", _formats(facts.export)),
            Section("Compute Infrastructure", _infrastructure(facts)),
        ],
    }
    card = Section(facts.model_name, [_summary(facts), *(Section(*pair) for pair in sections.items())])
    return f"---\n{_front_matter(facts)}---\n\n{as_markdown([card])}\n"


def _front_matter(facts: CardFacts) -> str:
    """Return the YAML by which Hugging Face's hub finds, shows and compares models, without the lines of dashes.

    There is no `datasets` key: it may only name data sets of the hub.
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md
    """
    manifest = facts.manifest
    kind = manifest.input.kind
    licence = facts.licence.lower()
    pipeline = _PIPELINES.get((kind, manifest.task), "")
    metrics = [
        # Six digits are enough.
        {
            "type": _METRICS.get(score.metric.name, score.metric.name),
            "value": float(f"{score.number:.6g}"),
            "name": score.label,
        }
        for score in facts.scores
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
        split = facts.evaluation.split
        revision = manifest.fingerprint
        dataset = {"type": "custom", "name": plain(manifest.source), "split": split, "revision": revision}
        results = {"task": {"type": pipeline or f"{kind}-{manifest.task}"}, "dataset": dataset, "metrics": metrics}
        content["model-index"] = [{"name": facts.model_name, "results": [results]}]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1 << 16)


def _summary(facts: CardFacts) -> str:
    """Describe input and output of the model, and its first metric."""
    names, task = facts.manifest.class_names, facts.manifest.task
    named = [*map(_name, names[:_NAMED]), *(["others"] if len(names) > _NAMED else [])]
    gives = ", ".join(named) if task == REGRESSION else f"the probability of each of {len(names):,} {_ANSWERS[task]}"
    summary = f"It takes {_describe_input(facts.manifest.input)} and gives {gives}."
    for score in facts.scores[:1]:
        interval = f" (95% interval {score.interval})" if score.interval else ""
        judged_on = f"{facts.judged_on} of its {facts.evaluation.split} split"
        summary += f" {score.label} on {judged_on}: {score.value}{interval}."
    return summary


def _describe_input(inputs: AnyInput) -> str:
    if isinstance(inputs, ImageInput):
        height, width, channels = inputs.image_shape
        return f"an image ({height} × {width} pixels, {'grey' if channels == 1 else 'in colour'})"
    if isinstance(inputs, CorpusInput):
        return f"the last {inputs.num_tokens:,} characters of a text"
    return f"a text (of which the {'last' if inputs.truncate == START else 'first'} {inputs.num_tokens:,} tokens count)"


def _description(facts: CardFacts) -> list[Block]:
    trainable = f" with {facts.footprint.parameters:,} trainable values" if facts.footprint else ""
    kind = f"{facts.model.name}, a Keras model{trainable}"
    notes = ["Notes of whoever made it:", quote(facts.notes)] if facts.notes.strip() else []
    return [Fields([("Model type", kind), ("License", facts.licence or "none was stated")]), *notes]


def _direct_use(manifest: Manifest) -> str:
    if manifest.task == LANGUAGE_MODEL:
        return "To continue texts like the one that it was trained on."
    answer = "To answer {} like those that it was trained on: see [Training Data](#training-data)."
    return markupsafe.Markup(answer).format(manifest.input.plural)


def _out_of_scope(manifest: Manifest) -> Iterator[str]:
    names = manifest.class_names
    train = manifest.splits.get(TRAIN)
    if manifest.task == CLASSIFICATION:
        yield f"Given anything else, it still answers one of its {len(names):,} classes."
    if isinstance(manifest.input, CorpusInput):
        yield f"Characters other than its {len(names):,} are all the same to it."
    for name, target in zip(names[:_TARGETS], train.targets if train else (), strict=False):
        yield f"No training example has a '{_name(name)}' {_outside(target)}."
    for name, words in _RANGES.items():
        if train and (figure := train.distributions.get(name)) and figure.minimum < figure.maximum:
            yield f"No training example that was measured has a {words} {_outside(figure)}."


def _outside(known: TargetStatistics | Distribution) -> str:
    return f"below {plain_number(known.minimum)} or above {plain_number(known.maximum)}"


def _limits(facts: CardFacts) -> Iterator[str]:
    manifest = facts.manifest
    evaluation = facts.evaluation
    inputs = manifest.input
    plural = inputs.plural
    train = manifest.splits.get(TRAIN)
    split = manifest.splits.get(evaluation.split)
    if known := next((score for score in facts.scores if score.interval), None):
        yield f"{known.label} was measured on {facts.judged_on}; its 95% confidence interval is {known.interval}."
    if manifest.task in (CLASSIFICATION, MULTI_LABEL) and train and train.class_counts:
        count, place = min((count, place) for place, count in enumerate(train.class_counts))
        rarest = _name(manifest.class_names[place])
        yield f"The class that it was shown least is '{rarest}', in {count:,} of {train.num_examples:,} {plural}."
    if absent := evaluation.challenger.get("num_absent_classes"):
        yield f"{absent:,} classes have no example in the {evaluation.split} split: nothing is known of them."
    for part in facts.worst_slices[:1]:
        score = Score.of_slice(part)
        value = f"{_label(manifest.task, part.metric).lower()} {score.with_interval}"
        yield f"It is worst where {part.by} is '{_name(part.name)}': {value} on {part.num_examples:,} {plural}."
    if (error := evaluation.challenger.get("calibration_error")) is not None:
        yield f"Its probabilities are off by {percent(error, 1)} on average (expected calibration error)."
    if isinstance(inputs, TextInput) and train:
        statistics = train.statistics
        end = "start" if inputs.truncate == START else "end"
        if cut := statistics.get("num_truncated"):
            share = percent(cut / train.num_examples, 1)
            limit = f"{inputs.num_tokens:,} tokens"
            yield f"{share} of the training texts are longer than {limit}: it never saw their {end}."
        if statistics.get("num_tokens"):
            share = percent(statistics["num_unknown"] / statistics["num_tokens"], 1)
            yield f"{share} of the training texts' tokens are not in its vocabulary."
    if split and (copied := split.statistics.get("num_also_in_train")):
        held = f"{evaluation.split} {plural}"
        yield f"{copied:,} of the {held} are in the training data too, so the figures are too good."
    contradictory = facts.copies.get("contradictory")
    if isinstance(contradictory, int) and contradictory:
        yield f"Sets of copies that have several labels, of which at least one is wrong: {contradictory:,}."
    if evaluation.unseen:
        yield f"{evaluation.unseen.rule.text.capitalize()}."
    if any(shift.drifted for shift in facts.shifts or ()):
        yield f"Compared with the data of version {facts.champion}, {say_verdict(facts.shifts or ())}."


def _start(inputs: AnyInput, has_code: bool) -> list[Block]:
    """Return commands and Keras code that predict with the files beside the card."""
    example, request, content = _EXAMPLES[inputs.kind]
    commands = _COMMANDS.format(example=example, request=request, port=ServeParams().port)
    package = " and tpu-pipelines, since layers of its own are in `model/code.zip`" if has_code else ""
    shape = ", ".join(map(str, inputs.shape))
    return [
        "In the folder of this file, with tpu-pipelines installed: an answer, and a server, on CPU.",
        fence(commands, "sh"),
        markupsafe.Markup(f"With Keras{package}, it takes {inputs.dtype}[batch, {shape}]: {content}."),
        fence(_LOAD_WITH_CODE if has_code else _LOAD, "python"),
    ]


def _data(facts: CardFacts) -> list[Block]:
    manifest, champion = facts.manifest, facts.champion
    names, splits = manifest.class_names, manifest.splits
    fields = [
        ("Source", manifest.source),
        ("Examples", _pairs({name: f"{split.num_examples:,}" for name, split in splits.items()})),
        ("Divided by", manifest.split_rule),
        ("Fingerprint", manifest.fingerprint),
        ("Quarantined", f"{len(manifest.quarantined):,} unreadable" if manifest.quarantined else "none"),
        ("Copies", _copies(facts.copies)),
        (f"Beside the data of version {champion}", "" if facts.shifts is None else say_verdict(facts.shifts)),
    ]
    drifted = [(_name(shift.figure), shift.now, shift.before) for shift in facts.shifts or () if shift.drifted]
    classes = [(_name(name), *(f"{count:,}" for count in counts)) for name, counts in _classes(manifest)]
    targets = [
        (_name(name), *map(plain_number, (target.mean, target.std, target.minimum, target.maximum)))
        for name, target in zip(names[:_TARGETS], splits[TRAIN].targets if TRAIN in splits else (), strict=False)
    ]
    return [
        Fields(fields),
        Table(dict.fromkeys(("Drifted", "Now", "Before"), "<"), drifted[:_DRIFTED]),
        Table({"Class": "<", **dict.fromkeys(splits, ">")}, classes),
        f"The largest {len(classes)} of {len(names):,} classes." if 0 < len(classes) < len(names) else "",
        Table({"Target": "<", **dict.fromkeys(("Mean", "Deviation", "Least", "Greatest"), ">")}, targets),
    ]


def _classes(manifest: Manifest) -> list[tuple[str, tuple[int, ...]]]:
    """Return the largest classes, each with its number of examples per split; empty for tasks without classes."""
    if manifest.task not in (CLASSIFICATION, MULTI_LABEL):
        return []
    counts = zip(*(split.class_counts for split in manifest.splits.values()), strict=True)
    return sorted(zip(manifest.class_names, counts, strict=True), key=lambda row: -sum(row[1]))[:_CLASSES]


def _procedure(model: ModelInfo) -> list[Block]:
    """Return the hyper-parameters that are in effect, and how many epochs, examples and steps the model was trained."""
    training = model.training
    shown = with_role(TrainParams, Part.CARD)
    settings = {name: training.get(name) for name in shown if training.get(name) not in _OFF}
    settings = {"model_parameters": _pairs(model.parameters), **settings, "seed": training.get("seed", "")}
    rows = [(markupsafe.Markup(f"`{name}`"), str(value)) for name, value in settings.items() if value != ""]
    epoch, seen, steps = (_count(training.get(name)) for name in ("best_epoch", "examples_seen", "steps"))
    rate = _count(training.get("examples_per_second"))
    lowest = ", with the lowest validation loss" if training.get("judged_by") == "validation_loss" else ""
    speeds = [
        ("Weights", epoch and f"of epoch {epoch}{lowest}"),
        ("Examples seen", seen and steps and f"{seen} in {steps} steps"),
        ("Speed", rate and f"{rate} examples a second"),
    ]
    return [
        Section("Training Hyperparameters", [Table({"Parameter": "<", "Value": "<"}, rows)]),
        Section("Speeds, Sizes, Times", [Fields(speeds)]),
    ]


def _testing(facts: CardFacts) -> list[Block]:
    worst = facts.worst_slices
    slices = facts.evaluation.slices
    part = f"The worst {len(worst)} of {len(slices):,} slices. " if len(worst) < len(slices) else ""
    note = f"{part}All intervals hold together, with the gate's confidence."
    table = table_of("slice", [Score.of_slice(each) for each in worst])
    return [
        Section("Testing Data", [f"{facts.judged_on} of the {facts.evaluation.split} split."]),
        Section("Factors", [note, table] if worst else []),
    ]


def _results(facts: CardFacts) -> list[Block]:
    evaluation = facts.evaluation
    rules = [*evaluation.gate.reasons, *([evaluation.baseline.rule] if evaluation.baseline else [])]
    bounds = f", the bounds of a difference from the champion, {facts.champion}, with the gate's"
    return [
        table_of("metric", facts.scores),
        f"Intervals hold with 95% confidence{bounds if facts.champion else ''}.",
        Section("Summary", [Sentences([rule.text for rule in dict.fromkeys(rules)], "The gate let it pass:")]),
    ]


def _impact(training: Mapping[str, Any]) -> Fields:
    """Return the hardware of the training, and the hours for which it was used."""
    accelerator = training.get("accelerator")
    host = training.get("host")
    replicas = training.get("num_replicas", 1)
    number = "1 replica" if replicas == 1 else f"{replicas} replicas"
    machine = f"{accelerator}, {number}, on a host of {host}" if accelerator and host else ""
    paid: Any = training.get("paid_seconds")
    seconds: Any = sum(paid.values()) if isinstance(paid, Mapping) else training.get("seconds")
    hours = f"{seconds / 3600:.2g}" if isinstance(seconds, int | float) else ""
    return Fields([("Hardware Type", machine), ("Hours used", hours)])


def _formats(export: ExportInfo) -> list[Block]:
    sample = f"{export.compared_on.num_examples:,} {export.input.plural} of the {export.compared_on.split} split"
    measures = ("Size", _label(export.task, export.judged), "Same answers", "Largest difference", "Time of one")
    rows = [
        (
            name,
            measured.file,
            byte_size(measured.bytes),
            "" if measured.score is None else show(measured.score),
            percent(measured.agreement, 2),
            f"{measured.max_difference:.2g}",
            f"{measured.latency} ms",
        )
        for name, measured in export.formats.items()
    ]
    return [
        f"Compared with the trained model on {sample}:",
        Table({"Format": "<", "File in export/": "<", **dict.fromkeys(measures, ">")}, rows),
        *(f"Without {name}: {reason}" for name, reason in export.left_out.items()),
    ]


def _infrastructure(facts: CardFacts) -> list[Block]:
    """Return what preflight found, and the versions of compiler, configuration and code."""
    footprint = facts.footprint
    code = facts.lineage.get("code")
    hardware: list[Block] = []
    if footprint:
        peak = byte_size(footprint.peak_bytes)
        capacity = byte_size(footprint.capacity_bytes)
        price = ""
        if footprint.device_usd_per_run:
            price = f"{dollars(footprint.device_usd_per_run)} at {billed_by(footprint.target)}, if the host keeps up"
        figures = [
            ("Memory", f"{peak} of {capacity} on each chip"),
            ("Step", f"{footprint.step_ms:.3g} ms for a batch of {footprint.global_batch:,}"),
            ("Price of a run", price),
        ]
        hardware = [f"Preflight compiled the training for {footprint.machine}, where it fits:", Fields(figures)]
    software = [
        ("Compiled by", _pairs(dict(sorted(footprint.compiler.items()))) if footprint else ""),
        ("Configuration", short_digest(facts.lineage.get("config"))),
    ]
    if isinstance(code, Mapping):
        software += [(f"Code of {step}", str(digest)[:16]) for step, digest in sorted(code.items())]
    return [Section("Hardware", hardware), Section("Software", [Fields(software)])]


def _name(text: str) -> str:
    return plain(text, _NAME) or repr(text)


def _count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else ""


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


def _label(task: str, metric: str) -> str:
    metrics = task_metrics(task)
    return metrics[metric].label if metric in metrics else metric
