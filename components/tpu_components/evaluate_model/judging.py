"""Judges a model: computes the metrics of all models, compares them, and lets the gate decide."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.metrics.comparisons import compare_metrics
from tpu_components.core.metrics.definitions import NO_CONFIDENCE
from tpu_components.core.metrics.model_metrics import GroundTruth, ModelMetrics, compute_metrics
from tpu_components.core.registry.held_out import HeldOutSet
from tpu_components.core.results.evaluation_info import EvaluatedModel, Evaluation, Groups, TestSetUse, Unseen
from tpu_components.evaluate_model.baseline import find_baseline
from tpu_components.evaluate_model.gate import Comparison, decide
from tpu_components.evaluate_model.params import EvaluateParams
from tpu_components.evaluate_model.predicting import Predictions
from tpu_components.evaluate_model.rivals import Rival, describe_champion
from tpu_components.evaluate_model.slices import find_slices


def judge(
    params: EvaluateParams,
    manifest: Manifest,
    model: EvaluatedModel,
    rivals: Sequence[Rival],
    predictions: Predictions,
    seen: np.ndarray | None,
    held_out: HeldOutSet | None,
) -> tuple[Evaluation, list[ModelMetrics], list[Comparison]]:
    """Judge a model by the examples on which neither the model nor a rival was trained.

    If there are no such examples, the model is judged by all examples.

    Args:
        params: The rules of the gate.
        manifest: The data set.
        model: Description of the model.
        rivals: The models with which the model is compared, the champion first.
        predictions: Predictions of the model and of its rivals.
        seen: Result of `find_seen_examples`.
        held_out: The gate's earlier decisions on the test set, or None if they are not counted.

    Returns:
        The evaluation, the metrics of all models, and the comparisons with the rivals, all on the examples by which the
        model was judged.
    """
    test_set = None
    if held_out and params.confidence > NO_CONFIDENCE:
        whole = 1 - params.confidence
        planned = params.test_decisions
        rate = held_out.error_rate(whole, planned)
        test_set = TestSetUse(len(held_out.decisions) + 1, planned, whole, rate, held_out.examples_uri)
        params = dataclasses.replace(params, confidence=1 - rate)
    counted = predictions
    unseen = None
    if seen is not None:
        unseen = Unseen.find(seen, predictions.keys)
        if unseen.num_examples:
            counted = predictions.select(np.flatnonzero(~seen.any(axis=0)))
    measured = _compute_metrics(params, counted)
    ours = measured[0]
    truth = counted.truth
    comparisons = [
        Comparison(rival.whose, theirs.metrics, compare_metrics(ours, theirs, params.confidence))
        for rival, theirs in zip(rivals, measured[1:], strict=True)
    ]
    baseline = find_baseline(truth, counted.outputs[0])
    groups = _describe_groups(truth, ours)
    slices = find_slices(params, truth, counted.outputs[:2])
    evaluation = Evaluation(
        split=params.split,
        dataset_fingerprint=manifest.fingerprint,
        model=model,
        class_names=manifest.class_names,
        gate=decide(
            params,
            ours,
            comparisons,
            num_not_finite=predictions.num_not_finite,
            baseline=baseline,
            slices=slices,
            remarks=[rule for known in (unseen, groups, test_set) if known and (rule := known.rule)],
        ),
        challenger=ours.as_dict(),
        champion=measured[1].as_dict() if rivals else None,
        registered_champion=describe_champion(params.champion, rivals),
        baseline=baseline,
        unseen=unseen,
        intervals=ours.intervals,
        differences=comparisons[0].differences if comparisons else {},
        slices=slices,
        groups=groups,
        test_set=test_set,
    )
    return evaluation, measured, comparisons


def _describe_groups(truth: GroundTruth, measured: ModelMetrics) -> Groups | None:
    groups = truth.groups
    metric = truth.task.judged
    if groups is None or metric not in measured.estimates:
        return None
    num_independent = measured.estimates[metric].num_independent or len(groups)
    return Groups(len(np.unique(groups)), len(groups), metric, num_independent)


def _compute_metrics(params: EvaluateParams, predictions: Predictions) -> list[ModelMetrics]:
    further = [*predictions.further.values()]
    return [compute_metrics(predictions.truth, outputs, params.top_k, further) for outputs in predictions.outputs]


def record(
    held_out: HeldOutSet, evaluation: Evaluation, rivals: Sequence[Rival], comparisons: Sequence[Comparison]
) -> bool:
    """Record a decision in the registry, and return whether it was recorded.

    It is not recorded if another process has recorded a decision since `held_out` was read. In that case, read the
    decisions and decide again.
    """
    compared = {rival.digest: each.metrics for rival, each in zip(rivals, comparisons, strict=True)}
    return held_out.record(evaluation.model.digest, evaluation.gate.promote, evaluation.judged_metrics[0], compared)
