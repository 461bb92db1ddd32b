"""Scores a model and the champion, lets the gate decide, and writes the evaluation and its report."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    EVALUATION_FILE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    Manifest,
    load_history,
)
from tpu_components.core.examples.interface import LANGUAGE_MODEL, ImageInput, TextInput
from tpu_components.core.examples.slice_values import SIZE, load_slices
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines import device as devices
from tpu_components.core.models.language_model import StepModel
from tpu_components.core.models.trained import load_trained_model
from tpu_components.core.pages.blocks import Block
from tpu_components.core.registry.versions import model_digest
from tpu_components.core.results.evaluation_info import EvaluatedModel
from tpu_components.core.results.receipt import Receipt
from tpu_components.evaluate_model.judging import judge, record
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams, EvaluateResult
from tpu_components.evaluate_model.predicting import Predictions, find_seen_examples, predict_split
from tpu_components.evaluate_model.report import render_report, show_examples, show_passages
from tpu_components.evaluate_model.rivals import find_held_out, load_matching_info, load_rivals


def evaluate_model(
    params: EvaluateParams, records_dir: str | Path, model_dir: str | Path, output: str | Path
) -> EvaluateResult:
    """Score a model on one split, and the champion too if there is one, and decide whether to promote the model.

    Every example counts once. Metrics depend on the batch size and the number of replicas only by rounding. The
    decision leaves out the examples on which one of the models was trained, unless this would leave no examples.

    Args:
        params: The split, the champion and the rules of the gate.
        records_dir: Folder that create_tfrecords wrote.
        model_dir: Folder that train_model wrote.
        output: Folder for the evaluation, the predictions and the report. It is written completely or not at all.

    Raises:
        InputError: If the split is empty, a model is damaged or does not fit the data set, a metric in the rules does
            not exist for the task, or the decision cannot be recorded in the champion's registry.
        PlatformError: If the registry's bucket does not respond.
    """
    records_dir = Location(records_dir).as_path()
    model_dir = Location(model_dir).as_path()
    output = Location(output).as_path()
    storage.require_output(output, EVALUATION_FILE)
    manifest = Manifest.load(records_dir)
    manifest.split(params.split)
    params = params.of_task(manifest.task)
    check_slices(params, manifest, records_dir)
    info = load_matching_info(model_dir, manifest, "model")
    digest = model_digest(model_dir)
    with tempfile.TemporaryDirectory(prefix="champion-") as scratch:
        rivals, held_out = load_rivals(params, manifest, records_dir, digest, Path(scratch))
        models = [model_dir, *(rival.directory for rival in rivals)]
        device = devices.prepare(params.backend, params.accelerator, params.num_replicas, "float32")
        predictions = predict_split(params, device, records_dir, manifest, models)
        seen = find_seen_examples(params.split, records_dir, manifest.fingerprint, models)
    model = EvaluatedModel(info.name, info.parameters, "best", digest)
    evaluation, measured, comparisons = judge(params, manifest, model, rivals, predictions, seen, held_out)
    # Record the decision before writing the evaluation: whoever reads the evaluation may promote the model.
    while held_out and not record(held_out, evaluation, rivals, comparisons):
        held_out = find_held_out(params, records_dir, digest, rivals[0])
        evaluation, measured, comparisons = judge(params, manifest, model, rivals, predictions, seen, held_out)
    with storage.staged_directory(output) as staged:
        evaluation.save(staged)
        np.savez_compressed(staged / PREDICTIONS_FILE, **predictions.saved)
        examples = _show_examples(params, device, records_dir, manifest, model_dir, predictions)
        receipt = Receipt.find(model_dir)  # Models of other programs and of older versions have none.
        if receipt and params.prediction:
            receipt = receipt.with_prediction(params.prediction)
            receipt.save(staged)
        gate = {name: value for name, value in dataclasses.asdict(params).items() if name != "prediction"}
        report = render_report(evaluation, manifest, info, load_history(model_dir), examples, gate, receipt)
        (staged / REPORT_FILE).write_text(report, encoding="utf-8")
    decision = evaluation.gate
    verdict = "passed the gate" if decision.promote else "did not pass the gate"
    progress.say("evaluate_model", f"{verdict}: {decision.decisive}")
    return EvaluateResult(
        promote=decision.promote,
        reasons=decision.reasons,
        num_examples=evaluation.challenger["num_examples"],
        metrics=measured[0].metrics,
        champion_metrics=measured[1].metrics if rivals else None,
    )


def check_slices(params: EvaluateParams, manifest: Manifest, records_dir: Path) -> None:
    """Check that the examples have every property in `EvaluateParams.slices`.

    Raises:
        InputError: If a property is missing.
    """
    known = [CLASS, *([LENGTH] if isinstance(manifest.input, TextInput) else [])]
    kept = [*known, *load_slices(records_dir, params.split)]
    if SIZE in params.slices and SIZE not in kept and isinstance(manifest.input, ImageInput):
        raise InputError(
            f"Cannot divide the examples into slices by {SIZE!r}: the records in {records_dir} were written by an "
            "earlier version, without the sizes of the images. Run create_tfrecords again, or remove "
            f"{SIZE!r} from slices."
        )
    params.check_slices(kept)


def _show_examples(
    params: EvaluateParams,
    device: devices.Device,
    records_dir: Path,
    manifest: Manifest,
    model_dir: Path,
    predictions: Predictions,
) -> list[Block]:
    def pick(indices: Sequence[int]) -> Mapping[int, Any]:
        pick_some = records.pick_texts if isinstance(manifest.input, TextInput) else records.pick_inputs
        return pick_some(records_dir, manifest, params.split, indices)

    examples = manifest.class_names, predictions.keys, predictions.truth.targets
    if manifest.task != LANGUAGE_MODEL:
        return show_examples(
            manifest.interface.task, *examples, list(predictions.outputs[:2]), params.num_pictures, pick
        )
    with device.scope():
        return show_passages(*examples, predictions.outputs[0], pick, StepModel(load_trained_model(model_dir)))
