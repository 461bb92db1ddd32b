"""Scores a model and the champion, lets the gate decide, and writes the evaluation and its report."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.states import NOT_PROMOTED, PROMOTED
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import (
    EVALUATION_FILE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    Manifest,
    load_history,
)
from tpu_components.core.examples.interface import LANGUAGE_MODEL, TextInput
from tpu_components.core.files import storage
from tpu_components.core.machines import device as devices
from tpu_components.core.pages.blocks import Block
from tpu_components.core.registry.versions import model_digest
from tpu_components.core.results.evaluation_info import EvaluatedModel, Evaluation, RegisteredChampion, Unseen
from tpu_components.core.results.metric_table import scalars
from tpu_components.evaluate_model.examples import show_examples, show_passages
from tpu_components.evaluate_model.figures import Figures, compare_figures, compute_figures, find_baseline, macro_notes
from tpu_components.evaluate_model.gate import decide
from tpu_components.evaluate_model.params import EvaluateParams, EvaluateResult
from tpu_components.evaluate_model.report import render_report
from tpu_components.evaluate_model.scoring import (
    Scores,
    find_champion,
    find_seen_examples,
    load_matching_info,
    score,
)
from tpu_components.evaluate_model.slices import check_slices, find_slices


def evaluate_model(params: EvaluateParams, records_dir: Path, model_dir: Path, output: Path) -> EvaluateResult:
    """Score a model and, if there is one, the champion on one split, and judge it.

    Every example counts once. The figures do not depend on the batch size or the number of replicas, but for rounding.
    A model that was trained on examples of the split is judged by the others, as is the champion.

    Args:
        params: The split, the champion and the rules of the gate.
        records_dir: Folder that create_tfrecords wrote.
        model_dir: Folder that train_model wrote.
        output: Folder for the evaluation, the predictions and the report; it appears whole or not at all.

    Raises:
        InputError: If the split is empty, a model is damaged or does not fit the data set, or a metric that is asked
            for is another task's.
    """
    storage.require_output(output, EVALUATION_FILE)
    manifest = Manifest.load(records_dir)
    params.check_task(manifest.task)
    manifest.split(params.split)
    check_slices(params, manifest, records_dir)
    info = load_matching_info(model_dir, manifest, "model")
    digest = model_digest(model_dir)
    with tempfile.TemporaryDirectory(prefix="champion-") as scratch:
        champion = find_champion(params.champion, digest, Path(scratch))
        models = [model_dir]
        if champion.directory:
            models.append(champion.directory)
            load_matching_info(champion.directory, manifest, "champion").check_files(champion.directory)
        device = devices.prepare(params.backend, params.accelerator, params.num_replicas, "float32")
        scores = score(params, device, records_dir, manifest, models)
        seen = find_seen_examples(params.split, records_dir, manifest.fingerprint, models)
    model = EvaluatedModel(info.name, info.parameters, "best", digest)
    evaluation = _judge(params, manifest, model, champion.registered, scores, seen)
    with storage.staged_directory(output) as staged:
        evaluation.save(staged)
        np.savez_compressed(staged / PREDICTIONS_FILE, **scores.predictions)
        examples = _show_examples(params, device, records_dir, manifest, model_dir, scores)
        report = render_report(evaluation, manifest, info, load_history(model_dir), examples)
        (staged / REPORT_FILE).write_text(report, encoding="utf-8")
    decision, ours, theirs = evaluation.gate, evaluation.challenger, evaluation.champion
    verdict = PROMOTED if decision.promote else NOT_PROMOTED
    progress.say("evaluate_model", f"{verdict}: " + "; ".join(map(str, decision.reasons)))
    return EvaluateResult(
        promote=decision.promote,
        reasons=decision.reasons,
        num_examples=ours["num_examples"],
        metrics=scalars(manifest.task, ours),
        champion_metrics=scalars(manifest.task, theirs) if theirs else None,
    )


def _judge(
    params: EvaluateParams,
    manifest: Manifest,
    model: EvaluatedModel,
    registered_champion: RegisteredChampion | None,
    scores: Scores,
    seen: np.ndarray | None,
) -> Evaluation:
    """Judge a model by the examples that no model has seen; by all, where every example has been seen."""
    figures = judged = _compute_figures(params, manifest, scores)
    judges, unseen = scores, None
    if seen is not None:
        rest = np.flatnonzero(~seen.any(axis=0))
        if len(rest):
            judges = scores.select(rest)
            judged = _compute_figures(params, manifest, judges)
        unseen = Unseen.find(seen, scores.keys, [own.metrics for own in judged] if len(rest) else [])
    ours, theirs = judged[0], judged[1] if len(judged) > 1 else None
    baseline = find_baseline(manifest.interface.task, judges.targets, judges.outputs[0], manifest.class_names)
    differences = compare_figures(ours, theirs, params.confidence) if theirs else {}
    slices = find_slices(params, manifest, judges.targets, judges.outputs, judges.properties)
    decision = decide(
        params,
        ours.metrics,
        theirs.metrics if theirs else None,
        num_not_finite=scores.num_not_finite,
        baseline=baseline,
        notes=macro_notes(figures[0].as_dict()),
        differences=differences,
        slices=slices,
        unseen=unseen,
    )
    return Evaluation(
        split=params.split,
        dataset_fingerprint=manifest.fingerprint,
        model=model,
        class_names=manifest.class_names,
        gate=decision,
        challenger=figures[0].as_dict(),
        champion=figures[1].as_dict() if theirs else None,
        registered_champion=registered_champion,
        baseline=baseline,
        unseen=unseen,
        intervals=ours.intervals,
        differences=differences,
        slices=slices,
    )


def _compute_figures(params: EvaluateParams, manifest: Manifest, scores: Scores) -> list[Figures]:
    """Return the figures of every model."""
    task, names = manifest.interface.task, manifest.class_names
    return [compute_figures(task, scores.targets, outputs, names, params.top_k) for outputs in scores.outputs]


def _show_examples(
    params: EvaluateParams,
    device: devices.Device,
    records_dir: Path,
    manifest: Manifest,
    model_dir: Path,
    scores: Scores,
) -> list[Block]:
    if manifest.task == LANGUAGE_MODEL:
        return show_passages(params.split, device, records_dir, manifest, model_dir, scores)
    pick = records.pick_texts if isinstance(manifest.input, TextInput) else records.pick_inputs

    def pick_contents(indices: Sequence[int]) -> Mapping[int, Any]:
        return pick(records_dir, manifest, params.split, indices)

    return show_examples(manifest.interface.task, manifest.class_names, scores, params.num_pictures, pick_contents)
