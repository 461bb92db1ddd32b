"""Writes the model card of a version from the results of the earlier steps.

The card is the version's README.md in Hugging Face's format: https://huggingface.co/docs/hub/model-cards. It has front
matter, instructions for using the model, and the blocks of the evaluation's report. Equal inputs give equal bytes.
Therefore, the version number and the date, which the registry determines, are in `version.json` and not in the card.
"""

import math
from collections.abc import Sequence
from typing import Any

import markupsafe
import yaml

from tpu_components.core.examples.artifacts import Manifest, ModelInfo
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
)
from tpu_components.core.examples.text import START
from tpu_components.core.pages.blocks import Block, Fields, Section, as_markdown
from tpu_components.core.pages.evaluation import (
    compare_slices,
    describe_decision,
    describe_training,
    list_settings,
    tabulate_names,
)
from tpu_components.core.pages.markdown import fence, plain, quote
from tpu_components.core.pages.scores import Score, scores_of, table_of
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.deploy_model.params import DeployParams
from tpu_components.serving.params import ServeParams

_CLASSES = 20  # Rows of the table of classes, labels or targets.
_NAMED = 5  # Regression targets in the first sentence.
_NAME = 60  # Longest name of a target in that sentence, in characters.
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
# Our metrics that have another name in https://huggingface.co/metrics.
_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "macro_precision": "precision",
    "macro_recall": "recall",
    "macro_roc_auc": "roc_auc",
    "mean_absolute_error": "mae",
    "r2": "r_squared",
}
_ANSWERS = {
    CLASSIFICATION: "classes",
    MULTI_LABEL: "labels, any number of which may be correct",
    LANGUAGE_MODEL: "characters to come next",
}
# By kind of input: an example for the command line, a request in curl's arguments, and the content of a batch.
_JSON = "-H 'Content-Type: application/json' -d '{\"instances\": [\"a text\"]}'"
_EXAMPLES = {
    IMAGE: (
        "photo.jpg",
        "-H 'Content-Type: image/jpeg' --data-binary @photo.jpg",
        "pixels in [0, 255], which the model scales",
    ),
    TEXT: ("'a text'", _JSON, "IDs of `model/vocabulary.txt`"),
    CORPUS: (
        "'The beginning of a text'",
        _JSON,
        "IDs of characters, each the index of a name in `class_names` of `model/model.json`",
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


def write_card(
    params: DeployParams,
    manifest: Manifest,
    model: ModelInfo,
    evaluation: Evaluation,
    export: ExportInfo,
    has_code: bool,
) -> str:
    """Return the card: front matter in YAML, then Markdown.

    Args:
        params: Name of the model, licence and notes.
        manifest: Manifest of the data set.
        model: Info of the trained model.
        evaluation: Result of the evaluation.
        export: Info of the export.
        has_code: Whether the model contains the user's code, which is needed to rebuild the model.
    """
    scores = scores_of(evaluation)
    notes = ["Notes of the author:", quote(params.notes)] if params.notes.strip() else []
    details: list[Block] = [Fields([("License", params.licence or "not stated")]), *notes]
    bounds = " A difference from the champion has the confidence bounds of the gate." if evaluation.champion else ""
    results: list[Block] = [
        describe_decision(evaluation),
        table_of("metric", scores),
        f"Intervals hold with 95% confidence.{bounds}" if scores else "",
        *compare_slices(evaluation),
        *tabulate_names(evaluation, manifest, model, most=_CLASSES),
    ]
    # The titles of the sections, and their order, are those of the hub's template.
    sections: dict[str, Sequence[Block]] = {
        "Model Details": details,
        "How to Get Started with the Model": _start(manifest.input, export, has_code),
        "Training Details": [
            describe_training(evaluation.split, manifest, model),
            Section("Training Hyperparameters", [list_settings(manifest, model, {})]),
        ],
        "Evaluation": results,
    }
    summary = _summary(manifest, evaluation, scores)
    card = Section(params.model_name, [summary, *(Section(*pair) for pair in sections.items())])
    return f"---\n{_front_matter(params, manifest, evaluation, export, scores)}---\n\n{as_markdown([card])}\n"


def _front_matter(
    params: DeployParams, manifest: Manifest, evaluation: Evaluation, export: ExportInfo, scores: Sequence[Score]
) -> str:
    """Return the YAML with which the Hugging Face hub finds, shows and compares models, without the `---` lines.

    There is no `datasets` key, because it may name only data sets that are on the hub.
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md
    """
    kind = manifest.input.kind
    licence = params.licence.lower()
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
    tags += ["tflite"] if {"float", "int8"} & export.formats.keys() else []
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
        split = evaluation.split
        revision = manifest.fingerprint
        dataset = {"type": "custom", "name": plain(manifest.source), "split": split, "revision": revision}
        results = {"task": {"type": pipeline or f"{kind}-{manifest.task}"}, "dataset": dataset, "metrics": metrics}
        content["model-index"] = [{"name": params.model_name, "results": [results]}]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1 << 16)


def _summary(manifest: Manifest, evaluation: Evaluation, scores: Sequence[Score]) -> str:
    """Describe input and output of the model, and its first metric."""
    names = manifest.class_names
    task = manifest.task
    named = [*(plain(name, _NAME) for name in names[:_NAMED]), *(["others"] if len(names) > _NAMED else [])]
    gives = ", ".join(named) if task == REGRESSION else f"the probability of each of {len(names):,} {_ANSWERS[task]}"
    summary = f"It takes {_describe_input(manifest.input)} and returns {gives}."
    for score in scores[:1]:
        judged_on = f"{evaluation.num_judged:,} {manifest.input.plural} of its {evaluation.split} split"
        summary += f" {score.label} on {judged_on}: {score.with_interval}."
    return summary


def _describe_input(inputs: AnyInput) -> str:
    if isinstance(inputs, ImageInput):
        height, width, channels = inputs.image_shape
        return f"an image ({height} × {width} pixels, {'grey' if channels == 1 else 'in colour'})"
    if isinstance(inputs, CorpusInput):
        return f"the last {inputs.num_tokens:,} characters of a text"
    return (
        f"a text (of which the {'last' if inputs.truncate == START else 'first'} {inputs.num_tokens:,} tokens are used)"
    )


def _start(inputs: AnyInput, export: ExportInfo, has_code: bool) -> list[Block]:
    """Return commands and Keras code that predict with the files next to the card."""
    example, request, content = _EXAMPLES[inputs.kind]
    commands = _COMMANDS.format(example=example, request=request, port=ServeParams().port)
    package = " and tpu-pipelines, because the code of its custom layers is in `model/code.zip`" if has_code else ""
    shape = ", ".join(map(str, inputs.shape))
    return [
        "With tpu-pipelines, in the folder of this file: predict, or serve predictions on a CPU.",
        fence(commands, "sh"),
        markupsafe.Markup(f"With Keras{package}, the model takes {inputs.dtype}[batch, {shape}]: {content}."),
        fence(_LOAD_WITH_CODE if has_code else _LOAD, "python"),
        f"Files in export/: {', '.join(facts.file for facts in export.formats.values())}.",
        *(f"Without {name}: {reason}" for name, reason in export.left_out.items()),
    ]
