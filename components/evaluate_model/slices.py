"""Parts of the examples, each judged by itself: a better mean may hide a class that broke."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, ImageInput, Task, TextInput
from tpu_components.core.examples.slice_values import SIZE, load_slices
from tpu_components.core.results.evaluation_info import Slice
from tpu_components.core.results.metric_table import direction
from tpu_components.evaluate_model.estimates import compare, estimators, find_interval
from tpu_components.evaluate_model.params import CLASS, LENGTH, NO_CONFIDENCE, EvaluateParams

# The figure of a slice: one that a single class, and a handful of examples, has as well.
SLICED: Mapping[str, str] = {CLASSIFICATION: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "loss"}
_UNITS: Mapping[str, str] = {LENGTH: "tokens", SIZE: "pixels"}
_NUM_QUARTERS = 4
# Property and its value, number of examples that have it, and what selects their part of an array of all examples.
_Part = tuple[str, str, int, np.ndarray | tuple[slice, slice]]


def check_slices(params: EvaluateParams, manifest: Manifest, records_dir: Path) -> None:
    """Check that the examples can be divided as the parameters say.

    Raises:
        InputError: If they do not have a property that is asked for.
    """
    known = [CLASS, *([LENGTH] if isinstance(manifest.input, TextInput) else [])]
    kept = [*known, *load_slices(records_dir, params.split)]
    if SIZE in params.slices and SIZE not in kept and isinstance(manifest.input, ImageInput):
        raise InputError(
            f"Cannot divide the examples by {SIZE!r}, as slices asks: expected the sizes of all pictures beside the "
            f"records, received none in {records_dir}, which an older version wrote. Run create_tfrecords again."
        )
    params.check_slices(kept)


def find_slices(
    params: EvaluateParams,
    manifest: Manifest,
    labels: np.ndarray,
    outputs: np.ndarray,
    properties: Mapping[str, np.ndarray],
) -> tuple[Slice, ...]:
    """Return the figures of every slice that has examples; a language model has no slices.

    All bounds together hold with the gate's confidence: that of each is higher, by Bonferroni's rule.

    Args:
        params: Properties by which to divide, and the confidence.
        manifest: The data set.
        labels: Targets of all examples, each shaped as `Interface.target_shape` says.
        outputs: float32[models, examples, ...]: answers of the model and, if there is one, the champion.
        properties: Arrays of all examples by name, see `Scores`.
    """
    parts = [part for name in params.slices for part in _divide(name, manifest, labels, properties)]
    confidence = params.confidence
    if confidence != NO_CONFIDENCE:
        confidence = 1 - (1 - confidence) / max(len(parts), 1)
    return tuple(_judge(part, manifest.interface.task, labels, outputs, confidence) for part in parts)


def _divide(name: str, manifest: Manifest, labels: np.ndarray, properties: Mapping[str, np.ndarray]) -> Iterator[_Part]:
    if name != CLASS:
        values = properties[name]
        groups = _by_value(values) if values.dtype.kind == "U" else _in_quarters(values, _UNITS[name])
        for value, rows in groups:
            yield name, value, len(rows), rows
    elif manifest.task == CLASSIFICATION:
        for i in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == i)
            yield name, manifest.class_names[i], len(rows), rows
    elif manifest.task == MULTI_LABEL:
        for i, count in enumerate((labels > 0).sum(axis=0).tolist()):
            if count:
                yield name, manifest.class_names[i], count, (slice(None), slice(i, i + 1))


def _by_value(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    names, places = np.unique(values, return_inverse=True)
    for i, name in enumerate(names.tolist()):
        yield name, np.flatnonzero(places == i)


def _in_quarters(amounts: np.ndarray, unit: str) -> Iterator[tuple[str, np.ndarray]]:
    edges = np.unique(np.quantile(amounts, np.linspace(0, 1, _NUM_QUARTERS + 1)[1:], method="inverted_cdf"))
    quarters = np.searchsorted(edges, amounts)  # The first that its amount is not above.
    for i in range(len(edges)):
        rows = np.flatnonzero(quarters == i)
        yield f"{amounts[rows].min():,} to {amounts[rows].max():,} {unit}", rows


def _judge(part: _Part, task: Task, labels: np.ndarray, outputs: np.ndarray, confidence: float) -> Slice:
    by, name, num_examples, chosen = part
    metric = SLICED[task.name]
    found = (estimators(task, labels[chosen], answers[chosen])[metric]() for answers in outputs)
    ours, *others = [estimate for estimate in found if estimate]
    interval = find_interval(ours, 2 * confidence - 1)
    if not others:
        return Slice(by, name, num_examples, metric, ours.value, interval)
    difference = compare(ours, others[0], direction(metric), confidence)
    return Slice(by, name, num_examples, metric, ours.value, interval, others[0].value, difference)
