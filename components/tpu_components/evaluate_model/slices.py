"""Judges slices: the examples with the same value of a property, such as a class or a length."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.metrics.comparisons import compare
from tpu_components.core.metrics.definitions import NO_CONFIDENCE, direction
from tpu_components.core.metrics.intervals import find_interval
from tpu_components.core.metrics.model_metrics import GroundTruth
from tpu_components.core.results.evaluation_info import SliceMetric
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams

# Metric of a slice by task: each is also defined for a single class and for few examples.
SLICED: Mapping[str, str] = {CLASSIFICATION: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "loss"}
_UNITS: Mapping[str, str] = {LENGTH: "tokens", SIZE: "pixels"}
_NUM_QUARTERS = 4
# Property, its value, number of examples with this value, and their index in an array of all examples.
_Part = tuple[str, str, int, np.ndarray | tuple[slice, slice]]


def find_slices(params: EvaluateParams, truth: GroundTruth, outputs: np.ndarray) -> tuple[SliceMetric, ...]:
    """Return the metric of every slice that has examples, with the champion's metric.

    Return () for a language model.

    All confidence bounds hold simultaneously at the gate's confidence level. Therefore, each single bound has a higher
    confidence level (Bonferroni correction).

    Args:
        params: Properties by which to divide the examples, and the gate's confidence level.
        truth: The examples to divide.
        outputs: Predictions of the model and, if there is one, of the champion: float32[models, examples, …].
    """
    parts = [part for name in params.slices for part in _divide(name, truth)]
    confidence = params.confidence
    if confidence != NO_CONFIDENCE:
        confidence = 1 - (1 - confidence) / max(len(parts), 1)
    return tuple(_judge(part, truth, outputs, confidence) for part in parts)


def _divide(name: str, truth: GroundTruth) -> Iterator[_Part]:
    if name != CLASS:
        names, places = _by_value(truth.properties[name], _UNITS.get(name, ""))
        for i, value in enumerate(names):
            rows = np.flatnonzero(places == i)
            yield name, value, len(rows), rows
    elif truth.task.name == CLASSIFICATION:
        for i in np.unique(truth.targets).tolist():
            rows = np.flatnonzero(truth.targets == i)
            yield name, truth.names[i], len(rows), rows
    elif truth.task.name == MULTI_LABEL:
        for i, count in enumerate((truth.targets > 0).sum(axis=0).tolist()):
            if count:
                yield name, truth.names[i], count, (slice(None), slice(i, i + 1))


def _by_value(values: np.ndarray, unit: str) -> tuple[list[str], np.ndarray]:
    """Divide examples by a property. Return the slices' names, and the index of each example's slice, int[examples].

    Each distinct text is a slice. Numbers are divided into quarters.
    """
    if values.dtype.kind == "U":
        names, places = np.unique(values, return_inverse=True)
        return names.tolist(), places
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _NUM_QUARTERS + 1)[1:], method="inverted_cdf"))
    places = np.searchsorted(edges, values)  # Index of the first edge that is not below the value.
    parts = [values[places == i] for i in range(len(edges))]
    return [f"{part.min():,} to {part.max():,} {unit}" for part in parts], places


def _judge(part: _Part, truth: GroundTruth, outputs: np.ndarray, confidence: float) -> SliceMetric:
    by, name, num_examples, chosen = part
    metric = SLICED[truth.task.name]
    if isinstance(chosen, np.ndarray):
        own = truth.select(chosen)
    else:  # The slice of a label has all examples.
        own = dataclasses.replace(truth, targets=truth.targets[chosen])
    ours, *others = [
        estimate for answers in outputs if (estimate := own.estimators(answers[chosen])[metric]()) is not None
    ]
    interval = find_interval(ours, 2 * confidence - 1)
    if not others:
        return SliceMetric(by, name, num_examples, metric, ours.value, interval)
    difference = compare(ours, others[0], direction(metric), confidence)
    return SliceMetric(by, name, num_examples, metric, ours.value, interval, others[0].value, difference)
